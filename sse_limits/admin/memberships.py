"""Who belongs to which tenant."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext as _

from sse_limits.models import TenantMembership

from .base import ModelForm, PolicyAdmin


def user_autocomplete(site: admin.AdminSite) -> tuple[str, ...]:
    """The `user` field, if this site knows how to search users."""
    user_model = get_user_model()
    is_searchable = site.is_registered(user_model) and site.get_model_admin(user_model).search_fields
    return ("user",) if is_searchable else ()


class MembershipForm(ModelForm):
    """A user has one default tenant at most."""

    def clean(self) -> dict[str, Any]:
        """Name the tenant that is the default already."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if data.get("is_default") and data.get("user") is not None:
            others = TenantMembership.objects.filter(user=data["user"], is_default=True).exclude(pk=self.instance.pk)
            other = others.select_related("tenant").first()
            if other is not None:
                message = _("The default tenant of %(user)s is %(tenant)s. Clear it there first, or leave this empty.")
                values = {"user": data["user"], "tenant": other.tenant}
                self.add_error("is_default", ValidationError(message, params=values))
        return data


@admin.register(TenantMembership)
class MembershipAdmin(PolicyAdmin):
    """Memberships of all tenants."""

    form = MembershipForm
    fields = ("tenant", "user", "is_default")
    list_display = ("user", "tenant", "is_default")
    list_filter = ("is_default", "tenant__tier")
    list_select_related = ("tenant", "user")
    ordering = ("tenant__slug", "pk")
    raw_id_fields = ("user",)
    autocomplete_fields = ("tenant",)
    search_fields = ("tenant__slug",)  # that there is a search at all; by what, the method says

    def get_search_fields(self, request: HttpRequest) -> tuple[str, ...]:
        """By tenant, and by the user's name, whatever the project calls it."""
        return ("tenant__slug", "tenant__name", f"user__{get_user_model().USERNAME_FIELD}")

    def get_autocomplete_fields(self, request: HttpRequest) -> Any:
        """The user too, if the project's users can be searched."""
        return ("tenant", *user_autocomplete(self.admin_site))

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """Open streams keep the tenant they were admitted for."""
        self.message_user(
            request, _("In force on every node within 2 s. Streams that are open stay with the tenant that they have.")
        )
