"""From the room to the limits: the way to their forms, and keeping a tenant or a user out.

A GET shows the question, as a page or for the dialog; a POST does it, through the models, so that every node follows
within two seconds and ends what is open. Where the limits come from the settings, none of this is offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from sse_limits.conf import get_conf
from sse_limits.models import Tenant, UserLimit

from .actions import is_script, way_back
from .look import split_user

if TYPE_CHECKING:
    from .room import LiveRoomAdmin


@dataclass(frozen=True, slots=True)
class Whom:
    """A tenant, or a user of one (or of none)."""

    tenant: Tenant | None
    user: str = ""

    @classmethod
    def of(cls, query: QueryDict) -> Whom:
        """Whom a request means. Raises `Http404`."""
        subject = query.get("user")
        slug, name = split_user(subject) if subject else (query.get("tenant"), "")
        if not slug and not name:
            raise Http404
        return cls(get_object_or_404(Tenant, slug=slug) if slug else None, name)

    @property
    def name(self) -> str:
        """The name that people know."""
        return self.user or (self.tenant.slug if self.tenant is not None else "")

    @property
    def row(self) -> Tenant | UserLimit | None:
        """The row whose `suspended` counts; None for a user who has none yet."""
        return UserLimit.objects.filter(tenant=self.tenant, user=self.user).first() if self.user else self.tenant

    @property
    def permissions(self) -> tuple[str, ...]:
        """What one must be allowed to for changing it."""
        kinds = ("add_userlimit", "change_userlimit") if self.user else ("change_tenant",)
        return tuple(f"sse_limits.{kind}" for kind in kinds)


class Suspension:
    """The views of one admin site's room."""

    def __init__(self, room: LiveRoomAdmin) -> None:
        self._room = room

    def form(self, request: HttpRequest) -> HttpResponse:
        """Lead to the form where the limits of a tenant or a user are edited, new or not."""
        whom = self._whom(request)
        row = whom.row
        site = self._room.admin_site.name
        if row is not None:
            return HttpResponseRedirect(reverse(f"{site}:sse_limits_{row._meta.model_name}_change", args=[row.pk]))
        known = {"user": whom.user, **({"tenant": whom.tenant.pk} if whom.tenant is not None else {})}
        return HttpResponseRedirect(f"{reverse(f'{site}:sse_limits_userlimit_add')}?{urlencode(known)}")

    def suspend(self, request: HttpRequest) -> HttpResponse:
        """Ask, or suspend; of what is suspended, lift it."""
        whom = self._whom(request)
        row = whom.row
        is_suspended = row is not None and row.suspended
        if request.method != "POST":
            return self._ask(request, whom, is_suspended=is_suspended)
        wanted = request.POST.get("suspended") == "1"
        if wanted != is_suspended:
            switch(request, whom, suspended=wanted)
        said = _("%(name)s is suspended.") if wanted else _("The suspension of %(name)s is lifted.")
        messages.success(request, said % {"name": whom.name})
        back = way_back(self._room, request, request.POST.get("back", ""))
        return JsonResponse({"url": back}) if is_script(request) else HttpResponseRedirect(back)

    def _whom(self, request: HttpRequest) -> Whom:
        self._room.require_view(request)
        whom = Whom.of(request.POST if request.method == "POST" else request.GET)
        if get_conf().policy is not None or not request.user.has_perms(whom.permissions):
            raise PermissionDenied
        return whom

    def _ask(self, request: HttpRequest, whom: Whom, *, is_suspended: bool) -> HttpResponse:
        question = _("Lift the suspension of %(name)s?") if is_suspended else _("Suspend %(name)s?")
        subject = f"{whom.tenant.slug if whom.tenant is not None else ''}/{whom.user}" if whom.user else whom.name
        context = {
            "question": question % {"name": whom.name},
            "is_suspended": is_suspended,
            "seconds": get_conf().ends_within_seconds,
            "fields": [("user" if whom.user else "tenant", subject), ("suspended", "" if is_suspended else "1")],
            "action": reverse(f"{self._room.admin_site.name}:sse_limits_live_suspend"),
            "back": way_back(self._room, request, request.META.get("HTTP_REFERER", "")),
        }
        if is_script(request):
            return TemplateResponse(request, "sse_limits/live/ask_suspend.html", context)
        request.current_app = self._room.admin_site.name  # what `{% url %}` reads
        page = {**self._room.admin_site.each_context(request), "opts": self._room.opts, "title": question, **context}
        page["ask"] = "sse_limits/live/ask_suspend.html"
        return TemplateResponse(request, "sse_limits/live/ask_page.html", page)


def switch(request: HttpRequest, whom: Whom, *, suspended: bool) -> None:
    """Write it, and into the admin's history."""
    with transaction.atomic():
        row: Any = whom.row
        flag = CHANGE
        if row is None:
            row, flag = UserLimit(tenant=whom.tenant, user=whom.user), ADDITION
        row.suspended = suspended
        row.save()
        LogEntry.objects.create(
            user_id=str(request.user.pk),
            content_type_id=ContentType.objects.get_for_model(row).pk,
            object_id=str(row.pk),
            object_repr=str(row)[:200],
            action_flag=flag,
            change_message=_("Suspended in the live room.") if suspended else _("Suspension lifted in the live room."),
        )
