"""The table of limits in a form: what is set here, what is in force, where that comes from.

It is an ordinary fieldset of an ordinary form; only its template differs. Without JavaScript "In force" shows what is
saved; with it, what will be in force after saving.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import AdminForm
from django.contrib.admin.utils import help_text_for_field
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from . import inheritance
from .base import ModelForm, PolicyAdmin
from .inheritance import Step, Steps

NAMES = ("tenant_limit", "user_limit", "address_limit", "at_user_limit", "lane_events", "max_message_bytes", "outage")
CLASS = "sl-limits"
SCRIPT: Any = forms.Script("sse_limits/admin/limits.js", type="module")  # the stubs know paths only


class Row(NamedTuple):
    """One line of the table. `field` is Django's AdminField, or AdminReadonlyField for those who may only view."""

    name: str
    label: str
    help: str
    note: str
    field: Any
    in_force: SafeString
    is_set: bool


class LimitsForm(ModelForm):
    """Limits as inputs whose mistakes are answered with what to write."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in NAMES:
            field = self.fields.get(name)
            if isinstance(field, forms.IntegerField):
                message = _("Write a whole number from %(least)d on, or leave this empty to inherit.") % {
                    "least": 1 if name in ("lane_events", "max_message_bytes") else 0
                }
                field.error_messages |= {"invalid": message, "min_value": message, "max_value": _("Write less.")}


class LimitsAdmin(PolicyAdmin):
    """A page with the table. `parent` names the foreign key it inherits by."""

    form = LimitsForm
    change_form_template = "sse_limits/admin/limits_form.html"
    parent: str | None = None
    limit_names: tuple[str, ...] = NAMES
    limit_labels: Mapping[str, Any] = MappingProxyType({})
    limits_help: Any = gettext_lazy(
        "An empty field inherits, 0 admits nobody. “In force” says the value after saving and where it comes from."
    )

    @property
    def media(self) -> forms.Media:
        """With the module that follows what one types."""
        return super().media + forms.Media(js=[SCRIPT])

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """The fields that are no limits, then the table."""
        others = [name for name in self.get_fields(request, obj) if name not in NAMES]
        limits = {"fields": self.limit_names, "classes": (CLASS,), "description": self.limits_help}
        return ((None, {"fields": others}), (_("Limits"), limits))

    # -- what a page knows of its row ------------------------------------------------------------------------------

    def inherited(self, parent: Any) -> Steps:
        """The steps before a row with this parent."""
        raise NotImplementedError

    def own_label(self, obj: Any) -> str:
        """How provenance names a row; `obj` may be new and empty."""
        raise NotImplementedError

    def note(self, name: str, obj: Any) -> str:
        """What to know of a limit of this row; "" if nothing."""
        return ""

    def say_what_follows(self, request: HttpRequest, form: Any) -> None:
        """Warn too of a user limit that the tenant limit makes unreachable."""
        super().say_what_follows(request, form)
        obj = form.instance
        parent = getattr(obj, self.parent) if self.parent is not None else None
        steps = [*self.inherited(parent), Step(self.own_label(obj), obj.overrides())]
        user, _source = inheritance.find("user_limit", steps)
        tenant, source = inheritance.find("tenant_limit", steps)
        if tenant is not None and user is not None and user > tenant and not self.note("tenant_limit", obj):
            message = _(
                "One user may hold %(user)d streams, but the tenant %(tenant)d in all (%(source)s): it is full first."
            )
            values = {"user": user, "tenant": tenant, "source": source}
            self.message_user(request, message % values, messages.WARNING)

    # -- the table ---------------------------------------------------------------------------------------------------

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the rows, and what the browser needs to know to keep them true."""
        form = context["adminform"].form
        obj = form.instance
        inherited = self.inherited(self._parent_of(form))
        own = Step(self.own_label(obj), obj.overrides())
        self._show_inherited(form, inherited)
        table = {
            "limit_rows": list(self._rows(context["adminform"], inherited, own)),
            "limits_data": {
                "own": own.label,
                "parent": self.parent,
                "url": reverse(f"{self.admin_site.name}:{self._url_name()}"),
                "steps": _as_json(inherited),
                "texts": _texts(),
                "choices": {
                    name: {each.value: str(each.label) for each in choices}
                    for name, choices in inheritance.CHOICES.items()
                },
            },
        }
        return super().render_change_form(request, {**context, **table}, *args, **kwargs)

    def _rows(self, adminform: AdminForm, inherited: Steps, own: Step) -> Iterator[Row]:
        for fieldset in adminform:
            for line in fieldset if CLASS in fieldset.classes else ():
                for field in line:
                    bound: Any = field.field  # a BoundField; of a read-only one a dict
                    name = bound["name"] if field.is_readonly else bound.name
                    yield Row(
                        name=name,
                        label=capfirst(self.limit_labels.get(name) or inheritance.label(name)),
                        help=str(help_text_for_field(name, self.model)),
                        note=self.note(name, adminform.form.instance),
                        field=field,
                        in_force=inheritance.in_force(name, inherited, own),
                        is_set=own.values.get(name) is not None,
                    )

    def _show_inherited(self, form: Any, inherited: Steps) -> None:
        for name in NAMES:
            if name in form.fields and name not in inheritance.CHOICES:
                value, _source = inheritance.find(name, inherited)
                attrs = form.fields[name].widget.attrs
                attrs["placeholder"] = _("none") if value is None else value

    def _parent_of(self, form: Any) -> Any:
        """The parent that is chosen in the form, or stored where the form does not ask."""
        if self.parent is None:
            return None
        if self.parent not in form.fields:
            return getattr(form.instance, self.parent, None)
        return self._find_parent(form[self.parent].value())

    def _find_parent(self, pk: Any) -> Any:
        """The parent with this key; None if there is none, or no key."""
        try:
            return self._parents().filter(pk=pk).first() if pk else None
        except (TypeError, ValueError):  # no key at all
            return None

    def _parents(self) -> Any:
        raise NotImplementedError

    # -- another parent, while one types ---------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        """The page's own, and the steps of another parent."""
        view = self.admin_site.admin_view(self.inherited_view)
        found: list[URLPattern] = [path("inherited/", view, name=self._url_name()), *super().get_urls()]
        return found

    def inherited_view(self, request: HttpRequest) -> JsonResponse:
        """The steps that a row with the parent `?parent=` inherits by."""
        if not (self.has_add_permission(request) or self.has_view_permission(request)):
            raise PermissionDenied
        pk = request.GET.get("parent")
        parent = self._find_parent(pk) if self.parent is not None else None
        if pk and parent is None:
            raise Http404
        return JsonResponse({"steps": _as_json(self.inherited(parent))})

    def _url_name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_inherited"


def _as_json(steps: Steps) -> list[dict[str, Any]]:
    return [{"label": step.label, "values": dict(step.values)} for step in steps]


def _texts() -> dict[str, Any]:
    """The words of the table that the browser needs; numbers it writes itself."""
    return {
        "default": _("default"),
        "none": _("none"),
        "from": _("from"),
        "replaces": _("%(source)s (%(other)s: %(value)s)"),
        "unknown": _("known after saving"),
        "max_message_bytes": _("%(number)s bytes"),
    }
