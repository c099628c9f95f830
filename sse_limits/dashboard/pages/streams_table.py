"""The table of streams, and whose streams it shows."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import Look, split_user
from sse_limits.dashboard.table import SELECT, Column, Description
from sse_limits.live.rows import StreamRow


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose streams are shown. `subject` is None when nobody knows the address any more."""

    scope: Scope
    subject: str | None
    name: str

    @classmethod
    def of(cls, look: Look) -> Whose:
        """Read it from the query; without one all of the fleet's."""
        query = look.asked.query
        if user := query.get("user"):
            return cls(Scope.USER, user, split_user(user)[1])
        if tenant := query.get("tenant"):
            return cls(Scope.TENANT, tenant, tenant)
        if node := query.get("node"):
            return cls(Scope.NODE, node, formats.node(node))
        if ref := query.get("address"):
            return cls._of_address(look, ref)
        return cls(Scope.FLEET, "", "")

    @classmethod
    def _of_address(cls, look: Look, ref: str) -> Whose:
        for holder in look.snapshot.top(Scope.ADDRESS):
            if formats.address_ref(holder.subject) == ref:
                shown = holder.subject if look.asked.shows_addresses else formats.mask(holder.subject)
                return cls(Scope.ADDRESS, holder.subject, shown)
        return cls(Scope.ADDRESS, None, _("an address that holds few or none"))


class StreamTable:
    """The table of streams."""

    def __init__(self, look: Look, whose: Whose) -> None:
        self.look = look
        self.whose = whose

    def description(self) -> Description[StreamRow]:
        """What it shows; the columns that all rows share are left out."""
        columns = [
            Column[StreamRow](
                key="stream", label=_("Stream"), cell=lambda row: formats.mono(row.id), value=lambda row: row.id
            ),
            *self._owner(),
            Column[StreamRow](
                key="path", label=_("Path"), cell=lambda row: format_html("{}", row.path) if row.path else formats.DASH,
                value=lambda row: row.path, leaves=2,
            ),
            Column[StreamRow](
                key="transport", label=_("Transport"), cell=self._transport, value=lambda row: row.transport, leaves=3
            ),
            Column[StreamRow](
                key="node", label=_("Node"), cell=self._node, value=lambda row: formats.node(row.node), leaves=2
            ),
            Column[StreamRow](
                key="since", label=_("Open for"), cell=lambda row: formats.since(row.since, self.look.now),
                value=lambda row: formats.moment(row.since).isoformat(), is_number=True,
            ),
            Column[StreamRow](
                key="queued", label=_("Queued"), cell=_queued, value=lambda row: row.queued, is_number=True, leaves=3
            ),
            Column[StreamRow](
                key="dropped", label=_("Dropped"), cell=lambda row: formats.count(row.dropped),
                value=lambda row: row.dropped, is_number=True, leaves=2,
            ),
        ]  # fmt: skip
        if self.look.asked.may_revoke:
            columns.insert(0, Column[StreamRow](key=SELECT, label="", cell=_box))
            columns.append(Column[StreamRow](key="action", label=_("Action"), cell=self._action, is_number=True))
        return Description(
            id="streams",
            caption=_("Streams of %(name)s") % {"name": self.whose.name} if self.whose.name else _("Streams"),
            columns=columns,
            key=lambda row: row.id,
            sort="-since",
            head=1 if self.look.asked.may_revoke else 0,
            can_sort=False,
            opens_when_narrow=True,
        )

    def _owner(self) -> list[Column[StreamRow]]:
        user = Column[StreamRow](key="user", label=_("User"), cell=self._user, value=lambda row: row.user or "")
        tenant = Column[StreamRow](
            key="tenant", label=_("Tenant"), cell=self._tenant, value=lambda row: row.tenant or "", leaves=2
        )
        address = Column[StreamRow](
            key="address", label=_("Address"), cell=self._address, value=self._address_text, leaves=3
        )
        match self.whose.scope:
            case Scope.USER:
                return [address]
            case Scope.TENANT:
                return [user, address]
            case Scope.ADDRESS:
                return [user, tenant]
        return [user, tenant, address]

    def _user(self, row: StreamRow) -> SafeString:
        if row.user is None:
            return formats.quiet(_("(anonymous)")) if row.path else formats.DASH
        subject = f"{row.tenant}/{row.user}" if row.tenant else row.user
        return formats.link(self.look.asked.url("streams", user=subject), row.user, "name")

    def _tenant(self, row: StreamRow) -> SafeString:
        if row.tenant is None:
            return formats.DASH
        return formats.link(self.look.asked.url("streams", tenant=row.tenant), row.tenant, "plain")

    def _address(self, row: StreamRow) -> SafeString:
        return formats.address(row.address, is_shown=self.look.asked.shows_addresses)

    def _address_text(self, row: StreamRow) -> str:
        if row.address is None:
            return ""
        return row.address if self.look.asked.shows_addresses else formats.mask(row.address)

    def _transport(self, row: StreamRow) -> SafeString:
        return format_html("{}", formats.transport(row.transport)) if row.transport else formats.DASH

    def _node(self, row: StreamRow) -> SafeString:
        return format_html("{}", formats.node(row.node))

    def _action(self, row: StreamRow) -> SafeString:
        return formats.link(self.look.asked.url("disconnect", stream=row.id), _("Disconnect…"), "sl-btn sl-ask")


def _queued(row: StreamRow) -> SafeString:
    if not row.queued:
        return formats.count(0)
    return format_html('{} <span class="q">/ {}</span>', formats.count(row.queued), formats.number(row.lane_events))


def _box(row: StreamRow) -> SafeString:
    label = _("Select stream %(id)s") % {"id": row.id}
    return format_html('<input type="checkbox" name="stream" value="{}" aria-label="{}" data-select>', row.id, label)
