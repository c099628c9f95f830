"""Admin pages as the tests read and send them."""

from __future__ import annotations

from typing import Any, Protocol

from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse


class SignIn(Protocol):
    """Signs somebody in who has only these permissions."""

    def __call__(self, *permissions: str) -> Client: ...


def url(name: str, *args: Any) -> str:
    """The address of an admin page, as in url("tenant_change", 1)."""
    return reverse(f"admin:sse_limits_{name}", args=args)


def said(response: Any) -> list[str]:
    """The messages of an answer, with the markup of links."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def form_data(page: Any, **changes: Any) -> dict[str, Any]:
    """What a browser would send back from a form page, with some fields changed."""
    forms = [page.context["adminform"].form]
    for each in page.context["inline_admin_formsets"]:
        forms += [each.formset.management_form, *each.formset.forms]
    data = {}
    for form in forms:
        for bound in form:
            value = bound.value()
            if value is not None and value is not False:
                data[bound.html_name] = value
    return data | {name: value for name, value in changes.items() if value is not None}
