"""Top holders: who holds the capacity, by user, tenant, address or node?"""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import NO_TENANT, Look, split_user
from sse_limits.dashboard.table import Column, Description
from sse_limits.dashboard.view import Choice, Records, Search, View, banner, nothing_matches, paged
from sse_limits.live.board import TOP_ROWS
from sse_limits.live.rows import Holder

BY = {"user": Scope.USER, "tenant": Scope.TENANT, "address": Scope.ADDRESS, "node": Scope.NODE}


class HolderTable:
    """The table of holders of one kind."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.by = look.asked.query.get("by", "user") if look.asked.query.get("by") in BY else "user"
        self.scope = BY[self.by]

    @property
    def label(self) -> str:
        """What a holder of this kind is called."""
        return {"user": _("User"), "tenant": _("Tenant"), "address": _("Address"), "node": _("Node")}[self.by]

    def description(self) -> Description[Holder]:
        """What it shows."""
        columns = [
            Column[Holder](key="holder", label=self.label, cell=self._name, value=lambda row: self.name(row)),
            Column[Holder](
                key="in_use", label=_("In use / limit"), cell=self._use, value=lambda row: row.in_use, is_number=True
            ),
            Column[Holder](key="limit", label="", cell=lambda row: "", value=self._limit),
            Column[Holder](
                key="fleet", label=_("Fleet"), is_number=True, leaves=2,
                cell=lambda row: formats.percent(row.in_use, self.look.snapshot.fleet_in_use, 2),
            ),
        ]  # fmt: skip
        if self.scope is Scope.USER:
            columns.insert(
                1, Column[Holder](key="tenant", label=_("Tenant"), cell=self._tenant, value=self._tenant_of, leaves=2)
            )
        if self.look.asked.may_revoke and self.scope in (Scope.USER, Scope.TENANT):
            columns.append(Column[Holder](key="action", label=_("Action"), cell=self._action, is_number=True, leaves=2))
        is_download = self.look.asked.query.get("format") in ("csv", "json")
        return Description(
            id="holders",
            caption=_("Top holders by %(kind)s") % {"kind": self.label.lower()},
            columns=[column for column in columns if is_download or column.key != "limit"],
            key=lambda row: formats.address_ref(row.subject) if self.scope is Scope.ADDRESS else row.subject,
            sort="-in_use",
            opens_when_narrow=True,
        )

    def name(self, row: Holder) -> str:
        """How a holder is called, as far as it may be told."""
        match self.scope:
            case Scope.USER:
                return split_user(row.subject)[1]
            case Scope.ADDRESS:
                return row.subject if self.look.asked.shows_addresses else formats.mask(row.subject)
            case Scope.NODE:
                return formats.node(row.subject)
        return row.subject

    def _name(self, row: Holder) -> SafeString:
        subject = formats.address_ref(row.subject) if self.scope is Scope.ADDRESS else row.subject
        shown = {"addresses": "show"} if self.scope is Scope.ADDRESS and self.look.asked.shows_addresses else {}
        return formats.link(self.look.asked.url("streams", **{self.by: subject, **shown}), self.name(row))

    def _tenant_of(self, row: Holder) -> str:
        return split_user(row.subject)[0]

    def _tenant(self, row: Holder) -> SafeString:
        tenant = self._tenant_of(row)
        if tenant == NO_TENANT:
            return formats.DASH
        return formats.link(self.look.asked.url("streams", tenant=tenant), tenant, "plain")

    def _limit(self, row: Holder) -> int | None:
        if self.scope is Scope.NODE:
            return next((node.budget for node in self.look.snapshot.nodes if node.id == row.subject), None)
        return self.look.limit(self.scope, row.subject)

    def _use(self, row: Holder) -> SafeString:
        is_shared = self.scope in (Scope.TENANT, Scope.NODE)
        return formats.usage(row.in_use, self._limit(row), is_shared=is_shared)

    def _action(self, row: Holder) -> SafeString:
        url = self.look.asked.url("disconnect", **{self.by: row.subject})
        return formats.link(url, _("Disconnect…"), "sl-btn sl-ask")


def build(look: Look) -> View:
    """The page."""
    query = look.asked.query
    table = HolderTable(look)
    description = table.description()
    found = description.sorted(_matching(look, table), query)
    shown, below = paged(look, found)
    parts = {"foot": below}
    if not shown:
        parts["empty"] = _empty(look, table)
    return View(
        parts={"banner": banner(look), "count": _count(look, table), "note": _note(table)},
        tables={"holders": description.render(shown, query, parts)},
        filters=_filters(look, table),
    )


def records(look: Look) -> Records:
    """What the page downloads."""
    table = HolderTable(look)
    description = table.description()
    return description, description.sorted(_matching(look, table), look.asked.query)


def _matching(look: Look, table: HolderTable) -> list[Holder]:
    needle, tenant = look.asked.query.get("q", "").casefold(), look.asked.query.get("tenant", "")
    rows = [row for row in look.snapshot.top(table.scope) if needle in table.name(row).casefold()]
    if table.scope is Scope.USER and tenant:
        rows = [row for row in rows if split_user(row.subject)[0] == tenant]
    return rows


def _filters(look: Look, table: HolderTable) -> Sequence[Search | Choice]:
    query = look.asked.query
    kinds = [("user", _("User")), ("tenant", _("Tenant")), ("address", _("Address")), ("node", _("Node"))]
    found: list[Search | Choice] = [
        Choice("by", _("Group by"), kinds, table.by, is_segmented=True),
        Search("q", table.label, query.get("q", "")),
    ]
    if table.scope is Scope.USER:
        tenants = [("", _("All tenants")), *((slug, slug) for slug in sorted(look.policy.tenants))]
        found.append(Choice("tenant", _("Tenant"), tenants, query.get("tenant", "")))
    return found


def _count(look: Look, table: HolderTable) -> SafeString:
    known = look.snapshot.top(table.scope)
    held = formats.number(sum(row.in_use for row in known))
    words = {"count": formats.number(len(known)), "held": held, "kind": table.label.lower()}
    if len(known) >= TOP_ROWS:
        text = _("the top %(count)s hold %(held)s streams") % words
    else:
        text = _("%(count)s hold %(held)s streams") % words
    if table.scope is not Scope.ADDRESS or not look.asked.may_revoke:
        return format_html("{}", text)
    shown = look.asked.shows_addresses
    url = look.asked.here(addresses=None if shown else "show")
    return format_html("{} {}", text, formats.link(url, _("mask") if shown else _("show addresses")))


def _note(table: HolderTable) -> str:
    if table.scope is Scope.USER:
        return _("A user at their own limit is the limiter at work, so these bars never turn red.")
    if table.scope is Scope.ADDRESS:
        return _("Addresses are counted as the nodes report them: each tells the 200 that hold most on it.")
    return ""


def _empty(look: Look, table: HolderTable) -> SafeString:
    query = look.asked.query
    if query.get("q") or query.get("tenant"):
        return nothing_matches(look, table.label.lower(), query.get("q", ""), "q", "tenant")
    return SafeString(_("Nobody holds a stream."))
