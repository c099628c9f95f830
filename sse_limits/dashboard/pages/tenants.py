"""Tenants: who needs more, who takes more?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits.core.limits import Limits
from sse_limits.core.rejections import ENDS, Reason
from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import NO_TENANT, Look, split_user
from sse_limits.dashboard.table import Column, Description
from sse_limits.dashboard.view import Choice, Records, Search, View, banner, nothing_matches, paged
from sse_limits.live.board import TOP_ROWS
from sse_limits.live.rows import Holder, TenantCauses

HOLDERS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TenantRow:
    """A tenant, what it holds and what it was refused in the last 15 minutes."""

    slug: str
    tier: str
    is_suspended: bool
    in_use: int
    limit: int | None
    rejected: int
    top_reason: Reason | None

    @property
    def share(self) -> float:
        """How full it is, in percent; without a limit never."""
        return formats.percent_of(self.in_use, self.limit) if self.limit is not None else 0

    @property
    def is_at_limit(self) -> bool:
        """Whether nothing more goes in."""
        return self.limit is not None and self.in_use >= self.limit and not self.is_suspended


def tenant_rows(look: Look) -> list[TenantRow]:
    """Every tenant of the policy and every other that holds streams."""
    held = {holder.subject: holder.in_use for holder in look.snapshot.top(Scope.TENANT)}
    refused = by_tenant(look.snapshot.tenant_causes)
    rows = []
    for slug in {**look.policy.tenants, **held}:
        tenant = look.policy.tenants.get(slug)
        limits = look.policy.of_tenant(slug)
        counts = refused.get(slug, Counter())
        rows.append(
            TenantRow(
                slug=slug,
                tier=limits.tier if limits is not None else "",
                is_suspended=tenant is not None and tenant.suspended,
                in_use=held.get(slug, 0),
                limit=limits.tenant_total if limits is not None else None,
                rejected=counts.total(),
                top_reason=counts.most_common(1)[0][0] if counts else None,
            )
        )
    return rows


def by_tenant(causes: Sequence[TenantCauses]) -> dict[str, Counter[Reason]]:
    """What each tenant was refused; under "" what nobody's streams were."""
    found: dict[str, Counter[Reason]] = {}
    for row in causes:
        if row.cause.reason not in ENDS:
            found.setdefault(row.tenant or NO_TENANT, Counter())[row.cause.reason] += row.count
    return found


class TenantTable:
    """The table of tenants."""

    def __init__(self, look: Look, *, is_brief: bool = False) -> None:
        self.look = look
        self.is_brief = is_brief

    def description(self) -> Description[TenantRow]:
        """What it shows."""
        columns = [
            Column[TenantRow](key="tenant", label=_("Tenant"), cell=self._name, value=lambda row: row.slug),
            Column[TenantRow](
                key="tier", label=_("Tier"), cell=lambda row: format_html("{}", row.tier) or formats.DASH,
                value=lambda row: row.tier, leaves=2,
            ),
            Column[TenantRow](
                key="in_use", label=_("In use / limit"), cell=lambda row: formats.usage(row.in_use, row.limit),
                value=lambda row: row.share if self.is_brief else row.in_use, is_number=True,
            ),
            Column[TenantRow](
                key="fleet", label=_("Fleet"), is_number=True, leaves=2,
                cell=lambda row: formats.percent(row.in_use, self.look.snapshot.fleet_in_use, 1),
            ),
            Column[TenantRow](
                key="rejected", label=_("Rejected"), cell=lambda row: formats.count(row.rejected),
                value=lambda row: row.rejected, is_number=True,
            ),
            Column[TenantRow](
                key="top_reason", label=_("Top reason"), cell=self._top_reason, value=lambda row: row.top_reason or "",
                leaves=3 if self.is_brief else 2,
            ),
        ]  # fmt: skip
        if self.is_brief:
            columns = [column for column in columns if column.key not in ("tier", "fleet")]
        return Description(
            id="tenants",
            caption=_("Tenants nearest their limit") if self.is_brief else _("Tenants"),
            columns=columns,
            key=lambda row: row.slug,
            sort="-in_use",
            detail=None if self.is_brief else self._detail,
            can_sort=not self.is_brief,
        )

    def _name(self, row: TenantRow) -> SafeString:
        suspended = formats.tag(_("suspended"), "crit") if row.is_suspended else ""
        return format_html("{}{}", formats.link(self.look.asked.url("streams", tenant=row.slug), row.slug), suspended)

    def _top_reason(self, row: TenantRow) -> SafeString:
        if row.top_reason is None:
            return formats.DASH
        return formats.link(self.look.asked.url("rejections", tenant=row.slug), formats.reason(row.top_reason), "plain")

    # -- an open row ---------------------------------------------------------------------------------------------

    def _detail(self, row: TenantRow) -> SafeString:
        return format_html(
            '<div class="sl-cols"><div><h3>{}</h3>{}</div><div><h3>{}</h3>{}{}</div></div>',
            _("Limits in force"),
            self._limits(row),
            _("Who holds the %(count)s") % {"count": formats.number(row.in_use)} if row.in_use else _("Who holds"),
            self._holders(row),
            self._actions(row),
        )

    def _limits(self, row: TenantRow) -> SafeString:
        limits = self.look.policy.of_tenant(row.slug)
        if limits is None:
            return format_html("<p>{}</p>", _("The policy no longer names this tenant: its users are refused."))
        return formats.facts(limit_facts(limits))

    @cached_property
    def _users(self) -> dict[str, list[Holder]]:
        found: dict[str, list[Holder]] = {}
        for holder in self.look.snapshot.top(Scope.USER):
            found.setdefault(split_user(holder.subject)[0], []).append(holder)
        return found

    def _holders(self, row: TenantRow) -> SafeString:
        users = self._users.get(row.slug, [])[:HOLDERS_SHOWN]
        if not users:
            nobody = (
                _("Nobody at the moment.") if not row.in_use else _("None of its users is among the top %(count)d.")
            )
            return format_html('<p class="q">{}</p>', nobody % {"count": TOP_ROWS})
        rest = max(0, row.in_use - sum(user.in_use for user in users))
        facts: list[tuple[object, object]] = [
            (
                formats.link(self.look.asked.url("streams", user=user.subject), split_user(user.subject)[1]),
                formats.live(formats.number(user.in_use)),
            )
            for user in users
        ]
        if rest:
            facts.append((_("others"), formats.number(rest)))
        return formats.facts(facts)

    def _actions(self, row: TenantRow) -> SafeString:
        asked = self.look.asked
        links = [formats.link(asked.url("streams", tenant=row.slug), _("Streams"), "sl-btn")]
        if asked.may_revoke and row.in_use:
            links.append(formats.link(asked.url("disconnect", tenant=row.slug), _("Disconnect…"), "sl-btn sl-ask"))
        if asked.may_change_tenants and row.slug in self.look.policy.tenants:
            links.append(formats.link(asked.url("limits", tenant=row.slug), _("Change limits"), "sl-btn"))
            word = _("Lift the suspension…") if row.is_suspended else _("Suspend…")
            links.append(formats.link(asked.url("suspend", tenant=row.slug), word, "sl-btn sl-ask"))
        return format_html('<p class="sl-actions">{}</p>', format_html_join(" ", "{}", [(found,) for found in links]))


def limit_facts(limits: Limits) -> list[tuple[object, object]]:
    """A tenant's limits and where each comes from."""
    at_limit = _("evict oldest") if limits.evicts else _("reject")
    each = format_html(
        "{}, {} {}",
        formats.limit_of(limits, "user_limit", limits.user),
        _("at the limit: %(choice)s") % {"choice": at_limit},
        formats.provenance(limits.provenance.get("at_user_limit")),
    )
    found: list[tuple[object, object]] = [
        (_("Tenant"), formats.limit_of(limits, "tenant_limit", limits.tenant_total)),
        (_("Each user"), each),
    ]
    if limits.address is not None:
        found.append((_("Each address"), formats.limit_of(limits, "address_limit", limits.address)))
    return found


# -- the page -------------------------------------------------------------------------------------------------------


def build(look: Look) -> View:
    """The page."""
    query = look.asked.query
    everybody = tenant_rows(look)
    description, found = _found(look, everybody)
    shown, below = paged(look, found)
    parts = {"foot": below}
    if not shown:
        parts["empty"] = _empty(look, everybody)
    return View(
        parts={"banner": banner(look), "count": _count(everybody)},
        tables={"tenants": description.render(shown, query, parts)},
        filters=_filters(look),
    )


def records(look: Look) -> Records:
    """What the page downloads."""
    return _found(look, tenant_rows(look))


def _found(look: Look, everybody: list[TenantRow]) -> tuple[Description[TenantRow], list[TenantRow]]:
    query = look.asked.query
    description = TenantTable(look).description()
    needle, tier, state = query.get("q", "").casefold(), query.get("tier", ""), query.get("state", "")
    states: dict[str, Callable[[TenantRow], bool]] = {
        "": lambda _row: True,
        "at_limit": lambda row: row.is_at_limit,
        "refused": lambda row: row.rejected > 0,
        "suspended": lambda row: row.is_suspended,
    }
    is_wanted = states.get(state, states[""])
    rows = [row for row in everybody if needle in row.slug.casefold() and tier in ("", row.tier) and is_wanted(row)]
    return description, description.sorted(rows, query)


def _filters(look: Look) -> list[Search | Choice]:
    query = look.asked.query
    states = [
        ("", _("Any state")),
        ("at_limit", _("At limit")),
        ("refused", _("Being refused")),
        ("suspended", _("Suspended")),
    ]
    tiers = [("", _("All tiers")), *((slug, slug) for slug in look.policy.tiers)]
    return [
        Search("q", _("Tenant"), query.get("q", "")),
        Choice("tier", _("Tier"), tiers, query.get("tier", "")),
        Choice("state", _("State"), states, query.get("state", "")),
    ]


def _count(rows: Sequence[TenantRow]) -> str:
    tenants = ngettext("%(count)s tenant", "%(count)s tenants", len(rows)) % {"count": formats.number(len(rows))}
    full = sum(row.is_at_limit for row in rows)
    return _("%(tenants)s, %(full)d at their limit; rejected in 15 min") % {"tenants": tenants, "full": full}


def _empty(look: Look, everybody: Sequence[TenantRow]) -> SafeString:
    if not everybody:
        return SafeString(_("No tenant yet. Users without one are held to the limits of their tier."))
    return nothing_matches(look, _("tenant"), look.asked.query.get("q", ""), "q", "tier", "state")
