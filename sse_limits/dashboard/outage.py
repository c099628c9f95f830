"""What the tiers say of the time without the store, in words: for the banner and the figure of the overview."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits.core.limits import Outage, Policy

TIERS_NAMED = 8


def by_choice(policy: Policy) -> Mapping[Outage, list[str]]:
    """The tiers by what they choose; choices that no tier makes are left out."""
    found: dict[Outage, list[str]] = {}
    for choice in Outage:
        tiers = [slug for slug, tier in policy.tiers.items() if (tier.overrides.outage or Outage.LOCAL) is choice]
        if tiers:
            found[choice] = tiers
    return found


def meanwhile(policy: Policy) -> str:
    """What happens to newcomers, in one sentence."""
    match list(by_choice(policy)):
        case [Outage.OPEN]:
            return _("Everybody is admitted; no open stream is affected.")
        case [Outage.CLOSED]:
            return _("New streams are refused with 503; no open stream is affected.")
        case [Outage.OPEN, Outage.CLOSED]:
            return _("The tier says who is admitted; no open stream is affected.")
    return _("Nodes decide from their own tables; no open stream is affected.")


def choices(policy: Policy) -> SafeString:
    """Which tiers do what, and how many tenants and users have a choice of their own."""
    texts = {
        Outage.LOCAL: _("{tiers}: each node enforces its share of the limit ({choice})."),
        Outage.OPEN: _("{tiers}: everybody is admitted ({choice})."),
        Outage.CLOSED: _("{tiers}: refused with 503 ({choice})."),
    }
    said = [
        format_html(texts[choice], tiers=_named(tiers), choice=format_html("<i>{}</i>", choice))
        for choice, tiers in by_choice(policy).items()
    ]
    overrides = [row.overrides for rows in (policy.tenants, policy.users) for row in rows.values()]
    own = sum(each.outage is not None for each in overrides)
    if own:
        text = ngettext(
            "%(count)d tenant or user has a choice of its own.",
            "%(count)d tenants and users have a choice of their own.",
            own,
        )
        said.append(format_html("{}", text % {"count": own}))
    return format_html_join(" ", "{}", [(sentence,) for sentence in said])


def decisions(policy: Policy) -> str:
    """The same in two or three words."""
    match list(by_choice(policy)):
        case [Outage.OPEN]:
            return _("everybody is admitted")
        case [Outage.CLOSED]:
            return _("refused with 503")
        case [Outage.OPEN, Outage.CLOSED]:
            return _("the tier decides")
    return _("local decisions")


def _named(tiers: list[str]) -> str:
    rest = len(tiers) - TIERS_NAMED
    if rest <= 0:
        return ", ".join(tiers)
    return _("%(tiers)s and %(rest)d more") % {"tiers": ", ".join(tiers[:TIERS_NAMED]), "rest": rest}
