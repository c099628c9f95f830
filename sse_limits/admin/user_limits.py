"""Exceptions for single users: more, less, or suspended."""

from __future__ import annotations

import functools
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sse_limits.models import Tenant, UserLimit

from . import inheritance
from .filters import AT_USER_LIMIT, OUTAGE, OwnLimitsFilter
from .inheritance import Step, Steps
from .limits import NAMES, LimitsAdmin
from .suspension import SuspendableAdmin

USER_LABELS = {"user_limit": gettext_lazy("streams of this user")}
IN_FORCE = Coalesce("user_limit", "tenant__user_limit", "tenant__tier__user_limit")


@admin.register(UserLimit)
class UserLimitAdmin(SuspendableAdmin, LimitsAdmin):
    """User limits of all tenants."""

    parent = "tenant"
    limit_labels = USER_LABELS
    limit_names = ("user_limit", *(name for name in NAMES if name != "user_limit"))
    fields = ("tenant", "user", "suspended", *limit_names)
    list_display = ("user", "tenant", "others", "suspension")
    list_filter = ("suspended", OwnLimitsFilter, AT_USER_LIMIT, OUTAGE, "tenant__tier")
    list_select_related = ("tenant__tier",)
    search_fields = ("user", "tenant__slug", "tenant__name")
    autocomplete_fields = ("tenant",)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """With the limit in force. Users without a tenant share one look-up of what they inherit."""
        without_tenant = functools.cache(lambda: self.inherited(None))

        @admin.display(description=_("streams of the user"), ordering=IN_FORCE)
        def in_force(obj: UserLimit) -> SafeString:
            inherited = self.inherited(obj.tenant) if obj.tenant is not None else without_tenant()
            return inheritance.in_force("user_limit", inherited, Step(obj.user, obj.overrides()))

        user, tenant, *others = self.list_display
        return [user, tenant, in_force, *others]

    @admin.display(description=gettext_lazy("other limits"))
    def others(self, obj: UserLimit) -> str:
        """What else the row sets."""
        names = [name for name in obj.overrides() if name != "user_limit"]
        return ", ".join(inheritance.label(name) for name in names) or "–"

    def inherited(self, parent: Tenant | None) -> Steps:
        """Defaults, tier and tenant."""
        return inheritance.inherited_by_user(parent)

    def own_label(self, obj: UserLimit) -> str:
        """As in "← ci-runner"."""
        return obj.user or _("this user")

    def note(self, name: str, obj: UserLimit) -> str:
        """What a tenant limit means for one user."""
        if name != "tenant_limit":
            return ""
        if obj.pk and obj.tenant is None:
            return _("No effect: this user has no tenant.")
        return _("At so many streams of the tenant this user is refused; others are not concerned.")

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """A name that nobody has is likely a slip, and may still be right."""
        super().say_what_follows(request, form)
        users = get_user_model()
        name = form.instance.user
        if "user" in form.changed_data and not users._default_manager.filter(**{users.USERNAME_FIELD: name}).exists():
            text = _("No user here has the name “%(user)s”: the limit counts for tokens that carry this name.")
            self.message_user(request, text % {"user": name}, messages.WARNING)

    def _parents(self) -> QuerySet[Tenant]:
        return Tenant.objects.select_related("tier")
