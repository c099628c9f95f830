"""Tiers: what their tenants inherit. One that tenants or the settings need is neither deleted nor renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.actions import delete_selected
from django.core.exceptions import ValidationError
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import get_text_list
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sse_limits.conf import get_conf
from sse_limits.models import Tier

from . import inheritance
from .inheritance import Steps
from .limits import NAMES, LimitsAdmin, LimitsForm


def settings_that_name(slug: str | None) -> list[str]:
    """The settings that give this tier to streams without a tenant."""
    conf = get_conf()
    named = {"DEFAULT_TIER": conf.default_tier, "ANONYMOUS_TIER": conf.anonymous_tier}
    return [setting for setting, tier in named.items() if tier == slug]


class TierForm(LimitsForm):
    """A slug that the settings name stays."""

    def clean_slug(self) -> str:
        """Refuse to rename what a setting would then look for in vain."""
        slug: str = self.cleaned_data["slug"]
        old = self.initial.get("slug") if self.instance.pk else None
        names = settings_that_name(old)
        if names and slug != old:
            message = _(
                "%(settings)s in the settings names this tier “%(slug)s”."
                " Change the setting first, or keep the slug and change the name."
            )
            raise ValidationError(message % {"settings": get_text_list(names, _("and")), "slug": old})
        return slug


@admin.register(Tier)
class TierAdmin(LimitsAdmin):
    """Tiers with all their limits, and how many tenants have them."""

    form = TierForm
    fields = ("name", "slug", *NAMES)
    limits_help = gettext_lazy(
        "What tenants and users of this tier get where they set nothing themselves. An empty field takes the default,"
        " 0 admits nobody. “In force” says the value after saving."
    )
    list_display = (
        "slug",
        "name",
        "tenants",
        "tenant_limit",
        "user_limit",
        "address_limit",
        "at_user_limit",
        "used_for",
    )
    search_fields = ("slug", "name")
    actions = ("delete_selected",)
    empty_value_display = "–"
    ordering = ("slug",)  # the model's own is lost where rows are counted

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tier]:
        """With the number of tenants."""
        found: QuerySet[Tier] = super().get_queryset(request).annotate(tenant_count=Count("tenants"))
        return found

    def get_prepopulated_fields(self, request: HttpRequest, obj: Any = None) -> dict[str, Sequence[str]]:
        """A new tier's slug follows its name."""
        return {} if obj is not None else {"slug": ("name",)}

    @admin.display(description=gettext_lazy("tenants"), ordering="tenant_count")
    def tenants(self, obj: Any) -> SafeString | str:
        """How many, as the way to them."""
        return tenants_link(obj, str(obj.tenant_count)) if obj.tenant_count else "–"

    @admin.display(description=gettext_lazy("also for"))
    def used_for(self, obj: Tier) -> str:
        """Whom the settings give it to."""
        texts = {"DEFAULT_TIER": _("users without a tenant"), "ANONYMOUS_TIER": _("anonymous streams")}
        return get_text_list([texts[name] for name in settings_that_name(obj.slug)], _("and")) or "–"

    def inherited(self, parent: Any) -> Steps:
        """The defaults."""
        return inheritance.defaults()

    def own_label(self, obj: Tier) -> str:
        """As in "← tier pro"."""
        return inheritance.tier_label(obj.slug) if obj.slug else _("this tier")

    def note(self, name: str, obj: Tier) -> str:
        """Where streams of this tier have no such limit."""
        names = settings_that_name(obj.slug)
        if "ANONYMOUS_TIER" in names and name in ("tenant_limit", "user_limit", "at_user_limit"):
            return _("Not for anonymous streams: they have neither a user nor a tenant.")
        if "DEFAULT_TIER" in names and name == "tenant_limit":
            return _("Not for users without a tenant.")
        return ""

    # -- what may not go ---------------------------------------------------------------------------------------------

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Refuse with the reason, before a page that asks."""
        tier = self.get_object(request, object_id)
        reason = why_it_must_stay(tier) if tier is not None and self.has_delete_permission(request, tier) else ""
        if not reason:
            return super().delete_view(request, object_id, extra_context)
        self.message_user(request, reason, messages.ERROR)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:sse_limits_tier_change", args=[object_id]))

    @admin.action(description=gettext_lazy("Delete…"), permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Tier]) -> HttpResponse | None:
        """Delete all that were chosen, or none."""
        reasons = [reason for tier in queryset if (reason := why_it_must_stay(tier))]
        if not reasons:
            return delete_selected(self, request, queryset)
        for reason in reasons:
            self.message_user(request, reason, messages.ERROR)
        return None

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """A new slug is a new name to tokens."""
        super().say_what_follows(request, form)
        if form.initial.get("slug") and "slug" in form.changed_data:
            text = _("Tokens that name the tier “%(slug)s” get the tier of their tenant from now on.")
            self.message_user(request, text % {"slug": form.initial["slug"]}, messages.WARNING)


def why_it_must_stay(tier: Tier) -> SafeString | str:
    """Why a tier cannot be deleted and what to do about it; "" if it can."""
    names = settings_that_name(tier.slug)
    if names:
        text = _("The tier %(tier)s stays: %(settings)s in the settings names it. Name another tier there first.")
        return text % {"tier": tier.slug, "settings": get_text_list(names, _("and"))}
    count = tier.tenants.count()
    if count:
        link = tenants_link(
            tier, ngettext("%(count)d tenant has it", "%(count)d tenants have it", count) % {"count": count}
        )
        return format_html(_("The tier {} stays: {}. Give them another tier first."), tier.slug, link)
    return ""


def tenants_link(tier: Tier, text: str) -> SafeString:
    """A link to the tenants of a tier."""
    return format_html(
        '<a href="{}?tier__id__exact={}">{}</a>', reverse("admin:sse_limits_tenant_changelist"), tier.pk, text
    )
