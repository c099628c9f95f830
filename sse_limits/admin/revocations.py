"""Revocations: added, never changed. What they name ends on every node, whoever holds it.

They are not part of the policy, so they work also where the settings hold the policy.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sse_limits.conf import get_conf
from sse_limits.models import Revocation, Tenant
from sse_limits.policy import wake
from sse_limits.revocations import LASTS_SECONDS
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.identification import SIGNATURE_CHARS

from .base import ModelAdmin, ModelForm, end_seconds

SID = re.compile("[A-Za-z0-9_-]{11}")


class RevocationForm(ModelForm):
    """What to revoke. A whole token may be pasted; only its end is kept."""

    subject = forms.CharField(
        label=gettext_lazy("Subject"),
        max_length=8192,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField", "spellcheck": "false"}),
        help_text=gettext_lazy(
            "User: the user name. Session: the sid that its tokens carry. Tenant: the slug."
            " Token: paste the whole token; only its last 22 characters are stored."
        ),
    )

    class Meta:
        model = Revocation
        fields = ("kind", "subject")

    def clean(self) -> dict[str, Any]:
        """Bring the subject into the form in which streams know it."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        kind, subject = data.get("kind"), data.get("subject")
        if kind and subject:
            try:
                data["subject"] = _subject(kind, subject)
            except ValidationError as exc:
                self.add_error("subject", exc)
        return data


def _subject(kind: str, text: str) -> str:
    if kind == Revocation.Kind.TOKEN:
        if len(text) < SIGNATURE_CHARS or re.search(r"\s", text):
            raise ValidationError(_("Paste the whole token, or at least its last 22 characters, without spaces."))
        return text[-SIGNATURE_CHARS:]
    if kind == Revocation.Kind.SESSION and not SID.fullmatch(text):
        raise ValidationError(
            _("A sid has 11 characters: letters, digits, - and _. To end all of a user, choose “user”.")
        )
    if kind == Revocation.Kind.TENANT and not _is_tenant(text):
        raise ValidationError(_("No tenant has this slug. Write the slug as the list of tenants shows it."))
    if len(text) > 255:
        raise ValidationError(_("This is longer than a user name can be. To revoke a token, choose “token”."))
    return text


def _is_tenant(slug: str) -> bool:
    policy = get_conf().policy
    if policy is not None:
        return slug in policy.get("tenants", {})
    return Tenant.objects.filter(slug=slug).exists()


class CountsStillFilter(admin.SimpleListFilter):
    """Whether a revocation can still concern anything."""

    title = gettext_lazy("time")
    parameter_name = "counts"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Two answers."""
        return [("yes", _("Counts still")), ("no", _("Is over"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows before or after their end."""
        match self.value():
            case "yes":
                return queryset.filter(until__gt=epoch_ms())
            case "no":
                return queryset.filter(until__lte=epoch_ms())
        return queryset


@admin.register(Revocation)
class RevocationAdmin(ModelAdmin):
    """Append-only."""

    form = RevocationForm
    list_display = ("subject", "kind", "issued_before", "counts_until")
    list_filter = ("kind", CountsStillFilter)
    search_fields = ("subject",)
    list_per_page = 50
    fields = ("kind", "subject")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """A row that exists shows its times too."""
        return self.fields if obj is None else (*self.fields, "issued_before", "counts_until")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """A row that exists is only shown."""
        return () if obj is None else self.get_fields(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: what is over is swept when new ones are written."""
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Also for those who may add."""
        return super().has_view_permission(request, obj) or self.has_add_permission(request)

    def save_model(self, request: HttpRequest, obj: Revocation, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        """Revoke all that was issued until now."""
        obj.not_before = obj.created = epoch_ms()
        obj.until = obj.created + LASTS_SECONDS * 1000
        super().save_model(request, obj, form, change)
        transaction.on_commit(wake)
        text = _(
            "What was issued to it until now ends on every node within %(seconds)g s."
            " A new log-in or a new token is let in again."
        )
        self.message_user(request, text % {"seconds": end_seconds()})

    @admin.display(description=gettext_lazy("issued before"), ordering="not_before")
    def issued_before(self, obj: Revocation) -> datetime:
        """What is later does not count as revoked."""
        return _time(obj.not_before)

    @admin.display(description=gettext_lazy("counts until"), ordering="until")
    def counts_until(self, obj: Revocation) -> datetime:
        """When the revocation itself ends."""
        return _time(obj.until)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
