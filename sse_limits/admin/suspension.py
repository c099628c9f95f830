"""Suspend and admit again, from a list: asked first, then done in one transaction and written to the log."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .base import PolicyAdmin, end_seconds

SHOWN = 20


class SuspendableAdmin(PolicyAdmin):
    """A list whose rows may be suspended."""

    actions = ("suspend", "unsuspend")

    @admin.action(description=gettext_lazy("Suspend…"), permissions=["change"])
    def suspend(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """End the streams of the chosen rows and refuse new ones."""
        return self._switch(request, queryset.filter(suspended=False), suspended=True)

    @admin.action(description=gettext_lazy("Lift the suspension…"), permissions=["change"])
    def unsuspend(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Admit the chosen rows again."""
        return self._switch(request, queryset.filter(suspended=True), suspended=False)

    @admin.display(description=gettext_lazy("suspended"), ordering="suspended")
    def suspension(self, obj: Any) -> SafeString | str:
        """A word where it is so: Django's green tick would say that all is well."""
        return format_html('<span class="sl-warn">{}</span>', _("suspended")) if obj.suspended else "–"

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """A suspension ends streams, other changes do not."""
        if "suspended" in form.changed_data and form.instance.suspended:
            self._say_suspended(request, str(form.instance))
        else:
            super().say_what_follows(request, form)

    def _switch(self, request: HttpRequest, rows: QuerySet[Any], *, suspended: bool) -> HttpResponse | None:
        found = list(rows)
        if not found:
            text = _("All of them are suspended already.") if suspended else _("None of them is suspended.")
            self.message_user(request, text, messages.WARNING)
            return None
        if "post" not in request.POST:
            return self._ask(request, found, suspended=suspended)
        with transaction.atomic():
            rows.model.objects.filter(pk__in=[row.pk for row in found]).update(suspended=suspended)
            user: Any = request.user  # somebody: the admin has let them in
            LogEntry.objects.log_actions(user.pk, found, CHANGE, [{"changed": {"fields": ["Suspended"]}}])
        if suspended:
            self._say_suspended(request, self._who(found))
        else:
            text = _("Suspension lifted, in force on every node within 2 s: %(who)s.")
            self.message_user(request, text % {"who": self._who(found)}, messages.SUCCESS)
        return None

    def _say_suspended(self, request: HttpRequest, who: str) -> None:
        text = _("Suspended: %(who)s. New streams are refused with 403, open ones end within %(seconds)g s.")
        self.message_user(request, text % {"who": who, "seconds": end_seconds()}, messages.SUCCESS)

    def _who(self, found: list[Any]) -> str:
        return str(found[0]) if len(found) == 1 else f"{len(found)} {self.opts.verbose_name_plural}"

    def _ask(self, request: HttpRequest, found: list[Any], *, suspended: bool) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": _("Suspend") if suspended else _("Lift the suspension"),
            "opts": self.opts,
            "media": self.media,
            "suspended": suspended,
            "who": self._who(found),
            "rows": found[:SHOWN],
            "more": max(0, len(found) - SHOWN),
            "seconds": end_seconds(),
            "chosen": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "checkbox": ACTION_CHECKBOX_NAME,
            "select_across": request.POST.get("select_across") == "1",
            "action": "suspend" if suspended else "unsuspend",
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "sse_limits/admin/suspend_confirmation.html", context)
