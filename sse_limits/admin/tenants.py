"""Tenants: the page on which a customer is given more, or is suspended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sse_limits.models import Tenant, TenantMembership, Tier, UserLimit

from . import inheritance
from .base import EditableUnlessFixed, TabularInline
from .filters import AT_USER_LIMIT, OUTAGE, OwnLimitsFilter
from .inheritance import Step, Steps
from .limits import NAMES, LimitsAdmin, LimitsForm
from .memberships import MembershipForm, user_autocomplete
from .suspension import SuspendableAdmin
from .user_limits import USER_LABELS

INLINE_ROWS = 50  # above that, a link: each row of an inline costs the page a query


class MembershipInline(EditableUnlessFixed, TabularInline):
    """Who belongs to the tenant."""

    model = TenantMembership
    form = MembershipForm
    extra = 0
    fields = ("user", "is_default")
    show_change_link = True
    raw_id_fields = ("user",)

    def get_autocomplete_fields(self, request: HttpRequest) -> Any:
        """The user, if the project's users can be searched."""
        return user_autocomplete(self.admin_site)


class UserLimitInline(EditableUnlessFixed, TabularInline):
    """Exceptions for single users; the limits that are seldom set are behind the link of the row."""

    model = UserLimit
    form = LimitsForm
    extra = 0
    fields = ("user", "user_limit", "at_user_limit", "suspended")
    show_change_link = True

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Name the limit as the page of the row does."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name in USER_LABELS and field is not None:
            field.label = capfirst(USER_LABELS[db_field.name])
        return field


@admin.register(Tenant)
class TenantAdmin(SuspendableAdmin, LimitsAdmin):
    """Tenants with the limits in force."""

    parent = "tier"
    fields = ("name", "slug", "tier", "suspended", *NAMES)
    inlines = (UserLimitInline, MembershipInline)
    list_display = ("slug", "name", "tier", "tenant_streams", "user_streams", "suspension")
    list_filter = ("tier", "suspended", OwnLimitsFilter, AT_USER_LIMIT, OUTAGE)
    list_select_related = ("tier",)
    search_fields = ("slug", "name")
    autocomplete_fields = ("tier",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """The slug of a tenant that exists stays."""
        return ("slug",) if obj is not None else ()

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Sequence[str]]:
        """A new tenant's slug follows its name."""
        return {} if obj is not None else {"slug": ("name",)}

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Django's
        """Say of the slug whether it can be changed."""
        text = (
            _("Its name in tokens, topics and slot keys: letters, digits, - and _. It cannot be changed later.")
            if obj is None
            else _("It cannot be changed: tokens, topics and the slots of open streams carry it. The name can.")
        )
        return super().get_form(request, obj, change, **{"help_texts": {"slug": text}, **kwargs})

    @admin.display(description=gettext_lazy("tenant streams"), ordering=Coalesce("tenant_limit", "tier__tenant_limit"))
    def tenant_streams(self, obj: Tenant) -> SafeString:
        """The tenant limit in force."""
        return self._in_force("tenant_limit", obj)

    @admin.display(
        description=gettext_lazy("streams of each user"), ordering=Coalesce("user_limit", "tier__user_limit")
    )
    def user_streams(self, obj: Tenant) -> SafeString:
        """The user limit in force."""
        return self._in_force("user_limit", obj)

    def _in_force(self, name: str, obj: Tenant) -> SafeString:
        return inheritance.in_force(name, self.inherited(obj.tier), Step(obj.slug, obj.overrides()))

    def inherited(self, parent: Tier | None) -> Steps:
        """Defaults and tier."""
        return inheritance.inherited_by_tenant(parent)

    def own_label(self, obj: Tenant) -> str:
        """As in "← acme"."""
        return obj.slug or _("this tenant")

    def _parents(self) -> QuerySet[Tier]:
        return Tier.objects.all()

    # -- inlines, while they are few ---------------------------------------------------------------------------------

    def get_inlines(self, request: HttpRequest, obj: Any) -> list[Any]:
        """Those that a page can hold; for a form that comes back: those that it was shown with."""
        if obj is None:
            return []
        return [inline for inline in self.inlines if self._fits(request, inline.model, obj)]

    def _fits(self, request: HttpRequest, model: type[Model], obj: Tenant) -> bool:
        if request.method == "POST":
            prefix = forms.models.inlineformset_factory(Tenant, model, fields=()).get_default_prefix()
            return f"{prefix}-TOTAL_FORMS" in request.POST
        return _count_to(model.objects.filter(tenant=obj), INLINE_ROWS + 1) <= INLINE_ROWS  # type: ignore[attr-defined]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the ways to what is too long for this page."""
        obj = context["adminform"].form.instance
        shown = [formset.opts.model for formset in context["inline_admin_formsets"]]
        context["long_lists"] = list(self._long_lists(request, obj, shown)) if obj.pk else []
        return super().render_change_form(request, context, *args, **kwargs)

    def _long_lists(self, request: HttpRequest, obj: Tenant, shown: list[Any]) -> Iterator[SafeString]:
        for inline in self.inlines:
            opts = inline.model._meta
            if inline.model not in shown and request.user.has_perm(f"{opts.app_label}.view_{opts.model_name}"):
                url = reverse(f"{self.admin_site.name}:{opts.app_label}_{opts.model_name}_changelist")
                count = inline.model.objects.filter(tenant=obj).count()
                text = _("%(count)d %(things)s") % {"count": count, "things": opts.verbose_name_plural}
                yield format_html('<a href="{}?tenant__id__exact={}">{}</a>', url, obj.pk, text)


def _count_to(rows: QuerySet[Any], most: int) -> int:
    """Count, no further than necessary."""
    return rows.order_by()[:most].count()
