"""Which value is in force and where it comes from, for what an admin page has loaded: "240 ← acme (tier pro: 200)".

The same rule as `core.limits.Policy`, which knows only what is saved; a test compares the two. The browser applies it
once more while one types (`limits.js`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.conf import get_conf
from sse_limits.models import Overridable, Tenant, Tier
from sse_limits.policy import BUILT_IN


class Step(NamedTuple):
    """A place where limits are set, as one names it to people, and what it sets."""

    label: str
    values: Mapping[str, Any]


Steps = Sequence[Step]
CHOICES: Mapping[str, Any] = {"at_user_limit": Overridable.AtUserLimit, "outage": Overridable.Outage}


def defaults() -> list[Step]:
    """What holds where nobody has set anything."""
    return [
        Step(
            _("default"),
            {"at_user_limit": Overridable.AtUserLimit.REJECT.value, "outage": Overridable.Outage.LOCAL.value},
        ),
        Step(_("LANE_EVENTS in the settings"), {"lane_events": get_conf().lane_events}),
    ]


def inherited_by_tenant(tier: Tier | None) -> list[Step]:
    """What a tenant of this tier inherits; None: no tier is chosen yet."""
    return defaults() if tier is None else [*defaults(), Step(tier_label(tier.slug), tier.overrides())]


def inherited_by_user(tenant: Tenant | None) -> list[Step]:
    """What a user of this tenant inherits; None: a user without a tenant."""
    if tenant is None:
        return inherited_by_tenant(default_tier())
    return [*inherited_by_tenant(tenant.tier), Step(tenant.slug, tenant.overrides())]


def default_tier() -> Tier:
    """The tier of users without a tenant; where nobody has made it, the built-in one counts."""
    slug = get_conf().default_tier
    built_in = {name: value for name, value in BUILT_IN["tiers"]["free"].items() if name != "name"}
    return Tier.objects.filter(slug=slug).first() or Tier(slug=slug, **built_in)


def tier_label(slug: str) -> str:
    """A tier as provenance names it."""
    return _("tier %(tier)s") % {"tier": slug}


def find(name: str, steps: Steps) -> tuple[Any, str]:
    """The value of a limit (None is no limit) and the label of the step that sets it."""
    for step in reversed(steps):
        if step.values.get(name) is not None:
            return step.values[name], step.label
    return None, _("default")


def in_force(name: str, inherited: Steps, own: Step) -> SafeString:
    """The value in force with its provenance, as HTML; what a value set here replaces stands in parentheses."""
    value, source = find(name, [*inherited, own])
    arrow = format_html('<span class="sl-arrow" role="img" aria-label="{}">←</span>', _("from"))
    if own.values.get(name) is not None:
        below, below_source = find(name, inherited)
        source = _("%(source)s (%(other)s: %(value)s)") % {
            "source": source,
            "other": below_source,
            "value": display(name, below),
        }
    return format_html('<b>{}</b> <span class="sl-provenance">{} {}</span>', display(name, value), arrow, source)


def label(name: str) -> str:
    """The name of a limit, for people."""
    field: Any = Tier._meta.get_field(name)
    return str(field.verbose_name)


def display(name: str, value: Any) -> str:
    """A value for people."""
    if value is None:
        return _("none")
    if name in CHOICES:
        return str(CHOICES[name](value).label)
    number = number_format(value, force_grouping=True)
    return _("%(number)s bytes") % {"number": number} if name == "max_message_bytes" else number
