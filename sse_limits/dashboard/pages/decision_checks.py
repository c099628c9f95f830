"""What the guard checked for one decision, in order, and where it stopped."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.decisions import Decision
from sse_limits.core.limits import Limits
from sse_limits.core.rejections import CAUSES, ENDS, LIMIT_REASONS, Layer, Reason
from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import Look
from sse_limits.dashboard.table import Column, Description, Table
from sse_limits.live.rows import DecisionRow

# In the order in which the guard asks; the store looks at all slots at once and names the first that is full.
SLOT_CHECKS = (Scope.USER, Scope.CLASS, Scope.TENANT, Scope.ADDRESS, Scope.FLEET)
PASSED, REFUSED, NOT_REACHED = "ok", "no", "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One step of the guard, and how far this stream came."""

    name: str
    outcome: str
    found: SafeString | str = ""
    use: SafeString | str = ""
    limit_from: SafeString | str = ""


class CheckTable:
    """The steps that exist so far, as far as the id and the details tell how they went."""

    def __init__(self, look: Look, said: Decision, row: DecisionRow | None, limits: Limits | None) -> None:
        self.look = look
        self.said = said
        self.row = row
        self.limits = limits

    def render(self) -> Table:
        """What was checked, in order."""
        columns = [
            Column[Check](key="check", label=_("Check"), cell=_check),
            Column[Check](key="found", label=_("Found"), cell=lambda row: formats.quiet(row.found or "–"), leaves=2),
            Column[Check](
                key="use", label=_("In use / limit"), cell=lambda row: format_html("{}", row.use or formats.DASH),
                is_number=True,
            ),
            Column[Check](
                key="from", label=_("Limit from"), cell=lambda row: format_html("{}", row.limit_from), leaves=3
            ),
        ]  # fmt: skip
        table = Description[Check](
            id="checks",
            caption=_("What was checked, in order"),
            columns=columns,
            key=lambda row: row.name,
            row_classes=lambda row: "hit" if row.outcome == REFUSED else "",
            can_sort=False,
        )
        return table.render(self._checks(), self.look.asked.query)

    def _checks(self) -> list[Check]:
        reason = self.said.reason
        is_identity = CAUSES[reason].layer is Layer.IDENTITY and reason not in ENDS
        at_origin = reason is Reason.BAD_ORIGIN
        origin = REFUSED if at_origin else PASSED
        identity = NOT_REACHED if at_origin else REFUSED if is_identity else PASSED
        draining = NOT_REACHED if is_identity else REFUSED if reason is Reason.DRAINING else PASSED
        who = self.row.user if self.row is not None and self.row.user is not None else ""
        found = [
            Check(_("Origin"), origin, str(reason) if at_origin else ""),
            Check(_("Identity"), identity, who if identity == PASSED else str(reason) if identity == REFUSED else ""),
            Check(_("Node takes new streams"), draining, _("it is about to restart") if draining == REFUSED else ""),
        ]
        is_over = is_identity or reason is Reason.DRAINING
        for scope in SLOT_CHECKS:
            is_here = LIMIT_REASONS[scope] is reason
            if scope is not Scope.CLASS or is_here:
                found.append(self._slots(scope, REFUSED if is_here else NOT_REACHED if is_over else self._reached()))
            is_over = is_over or is_here
        if reason is Reason.STORE:
            found.append(Check(_("Store"), REFUSED, _("it did not answer")))
        return found

    def _reached(self) -> str:
        return NOT_REACHED if self.said.reason is Reason.STORE else PASSED

    def _slots(self, scope: Scope, outcome: str) -> Check:
        names = {
            Scope.USER: _("User slots"),
            Scope.CLASS: _("Slots of this kind of stream"),
            Scope.TENANT: _("Tenant slots"),
            Scope.ADDRESS: _("Address slots"),
            Scope.FLEET: _("Fleet slots"),
        }
        use = use_of(self.said) if outcome == REFUSED else SafeString("")
        fields = {Scope.USER: "user_limit", Scope.TENANT: "tenant_limit", Scope.ADDRESS: "address_limit"}
        source = self.limits.provenance.get(fields[scope]) if self.limits is not None and scope in fields else None
        return Check(names[scope], outcome, self._room(scope, outcome), use, formats.provenance(source))

    def _room(self, scope: Scope, outcome: str) -> str:
        """What was found in a scope; the counts of those that had room are not kept."""
        if outcome == REFUSED:
            return _("none was left")
        if scope is Scope.FLEET and self.look.policy.fleet_limit is None:
            return _("no limit")
        limits = self.limits
        if limits is not None:
            limit = {Scope.USER: limits.user, Scope.TENANT: limits.tenant_total, Scope.ADDRESS: limits.address}
            if scope in limit and limit[scope] is None:
                return _("no limit for this tier")
        return _("had room") if outcome == PASSED else ""


def use_of(said: Decision) -> SafeString:
    """200 / 200, as the id says."""
    if said.in_use is None or said.limit is None:
        return formats.DASH
    return format_html('{} <span class="q">/ {}</span>', formats.number(said.in_use), formats.number(said.limit))


def _check(row: Check) -> SafeString:
    kind = {PASSED: "ok", REFUSED: "crit", NOT_REACHED: "q"}[row.outcome]
    said = {PASSED: _("passed"), REFUSED: _("refused here"), NOT_REACHED: _("not reached")}[row.outcome]
    sign = formats.icon(row.outcome, kind)
    return format_html('{}<span class="visually-hidden">{}</span>&ensp;{}', sign, said, row.name)
