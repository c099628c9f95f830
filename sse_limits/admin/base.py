"""What all pages of the policy share: view-only where the settings hold the policy, its version, words after saving.

Permissions are Django's; a policy in the settings only takes away what would have no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from sse_limits.conf import get_conf
from sse_limits.models import PolicyVersion

from .inheritance import CHOICES

if TYPE_CHECKING:  # the stubs' classes are generic, Django's are not
    ModelAdmin = admin.ModelAdmin[Any]
    TabularInline = admin.TabularInline[Any, Any]
    ModelForm = forms.ModelForm[Any]
    Mixin = admin.options.BaseModelAdmin[Any]
else:
    ModelAdmin, TabularInline, ModelForm, Mixin = admin.ModelAdmin, admin.TabularInline, forms.ModelForm, object


def is_fixed() -> bool:
    """Whether the limits stand in the settings, so that the database's have no effect."""
    return get_conf().policy is not None


def end_seconds() -> float:
    """How long after a change the last stream that it concerns ends."""
    return get_conf().ends_within_seconds


class EditableUnlessFixed(Mixin):
    """Pages and inlines that are view-only while the settings hold the policy."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        """Django's, unless fixed."""
        return not is_fixed() and super().has_add_permission(request, *args)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Django's, unless fixed."""
        return not is_fixed() and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Django's, unless fixed. What is deleted along with a row of another page (a user) goes with it."""
        return not (is_fixed() and self._is_own_page(request)) and super().has_delete_permission(request, obj)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Say at "suspended" how long it takes."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name == "suspended" and field is not None:
            field.help_text = _("Ends the open streams within %(seconds)g s and refuses new ones with 403.") % {
                "seconds": end_seconds()
            }
        return field

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Name the empty choice of a limit."""
        if db_field.name in CHOICES:
            kwargs["choices"] = db_field.get_choices(blank_choice=[("", _("Inherit"))])
        return super().formfield_for_choice_field(db_field, request, **kwargs)

    def _is_own_page(self, request: HttpRequest) -> bool:
        name = request.resolver_match.url_name if request.resolver_match is not None else None
        return (name or "").startswith(f"{self.opts.app_label}_")


class PolicyAdmin(EditableUnlessFixed, ModelAdmin):
    """A page of the policy."""

    change_form_template = "sse_limits/admin/policy_form.html"
    change_list_template = "sse_limits/admin/policy_list.html"
    list_per_page = 50

    @property
    def media(self) -> forms.Media:
        """The look of provenance and of the limits table."""
        return super().media + forms.Media(css={"all": ["sse_limits/admin/limits.css"]})

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Add the state of the policy."""
        return super().changelist_view(request, {**policy_state(), **(extra_context or {})})

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the state of the policy."""
        return super().render_change_form(request, {**policy_state(), **context}, *args, **kwargs)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        """Save the inlines; then say what follows, if anything was changed."""
        super().save_related(request, form, formsets, change)
        if form.has_changed() or any(formset.has_changed() for formset in formsets):
            self.say_what_follows(request, form)

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """Tell when the change is in force, and what becomes of open streams."""
        self.message_user(request, _("In force on every node within 2 s. Streams that are open stay open."))


def policy_state() -> dict[str, Any]:
    """What the templates need to say which limits hold and since when."""
    fixed = is_fixed()
    return {"policy_is_fixed": fixed, "policy_version": None if fixed else PolicyVersion.objects.first()}
