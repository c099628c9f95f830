"""Nodes: who refuses, drains, lags?"""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits.dashboard import formats
from sse_limits.dashboard.look import Look
from sse_limits.dashboard.table import Column, Description, foot
from sse_limits.dashboard.view import Records, View, banner, downloads
from sse_limits.live.rows import NodeRow


class NodeTable:
    """The table of nodes, on the overview without what opens."""

    def __init__(self, look: Look, *, is_brief: bool = False) -> None:
        self.look = look
        self.is_brief = is_brief

    @cached_property
    def newest_policy(self) -> int:
        """The version that the others have yet to read."""
        return max((node.policy_version for node in self.look.snapshot.nodes), default=0)

    def description(self) -> Description[NodeRow]:
        """What it shows."""
        columns = [
            Column[NodeRow](key="node", label=_("Node"), cell=self._name, value=lambda node: formats.node(node.id)),
            Column[NodeRow](
                key="open", label=self._use_label(), cell=self._use, value=lambda node: node.open, is_number=True
            ),
            Column[NodeRow](
                key="server", label=_("Server"), cell=lambda node: format_html("{}", node.server),
                value=lambda node: node.server, leaves=3, classes="nw",
            ),
            Column[NodeRow](
                key="policy", label=_("Policy"), cell=self._policy, value=lambda node: node.policy_version,
                is_number=True, leaves=2,
            ),
            Column[NodeRow](
                key="loop_lag_ms", label=_("Loop lag"), cell=lambda node: formats.milliseconds(node.loop_lag_ms),
                value=lambda node: node.loop_lag_ms, is_number=True, leaves=2,
            ),
            Column[NodeRow](
                key="memory_bytes", label=_("Memory"), cell=lambda node: formats.size(node.memory_bytes),
                value=lambda node: node.memory_bytes, is_number=True, leaves=2,
            ),
            Column[NodeRow](
                key="blocked", label=_("Blocked"), cell=lambda node: formats.count(node.blocked),
                value=lambda node: node.blocked, is_number=True, leaves=3,
            ),
            Column[NodeRow](
                key="store_ms", label=_("Store"), cell=self._store,
                value=lambda node: node.store_ms, is_number=True, leaves=3,
            ),
            Column[NodeRow](
                key="seen", label=_("Seen"), cell=self._seen, value=lambda node: node.seen_at, is_number=True, leaves=2
            ),
            Column[NodeRow](
                key="up", label=_("Up"), cell=lambda node: formats.since(node.started_at, self.look.now),
                value=lambda node: -node.started_at, is_number=True, leaves=3,
            ),
        ]  # fmt: skip
        return Description(
            id="nodes",
            caption=_("Nodes"),
            columns=columns,
            key=lambda node: node.id,
            sort="node",
            detail=None if self.is_brief else self._detail,
            can_sort=not self.is_brief,
        )

    def _use_label(self) -> str:
        has_budget = any(node.budget is not None for node in self.look.snapshot.nodes)
        return _("In use / budget") if has_budget else _("In use")

    def _name(self, node: NodeRow) -> SafeString:
        draining = formats.tag(_("draining"), "warn") if node.is_draining else ""
        away = formats.tag(_("store away"), "crit") if node.store_away_since is not None else ""
        url = self.look.asked.url("streams", node=node.id)
        return format_html("{}{}{}", formats.link(url, formats.node(node.id)), draining, away)

    def _use(self, node: NodeRow) -> SafeString:
        if node.budget is None:
            return formats.live(formats.number(node.open))
        return formats.usage(node.open, node.budget, size="node")

    def _policy(self, node: NodeRow) -> SafeString:
        if node.policy_version == self.newest_policy:
            return format_html("{}", node.policy_version)
        text = _("%(version)d of %(newest)d") % {"version": node.policy_version, "newest": self.newest_policy}
        return format_html('<span class="warn nw">{} {}</span>', formats.icon("warn"), text)

    def _store(self, node: NodeRow) -> SafeString | str:
        since = node.store_away_since
        if since is None:
            return formats.milliseconds(node.store_ms)
        return format_html('<span class="crit nw">{} {}</span>', formats.icon("crit"), _("away"))

    def _seen(self, node: NodeRow) -> SafeString | str:
        seconds = max(0, self.look.now - node.seen_at) / 1000
        return formats.unit(seconds, "s", 1) if seconds < 60 else formats.since(node.seen_at, self.look.now)

    def _detail(self, node: NodeRow) -> SafeString:
        open_now = ngettext("%(count)s stream", "%(count)s streams", node.open) % {"count": formats.number(node.open)}
        by_transport = _("%(sse)s SSE, %(websocket)s WebSocket") % {
            "sse": formats.number(node.open_sse),
            "websocket": formats.number(node.open - node.open_sse),
        }
        facts = formats.facts(
            [
                (_("Open"), format_html("{}: {}", open_now, by_transport)),
                (_("Process"), format_html("{}, pid {}", node.host, node.pid)),
                (_("Begins ids with"), formats.mono(node.name)),
                (_("Store"), format_html("{}, {}", node.store, formats.milliseconds(node.store_ms))),
            ]
        )
        return format_html(
            '<div class="sl-cols"><div><h3>{}</h3>{}</div><div>{}{}</div></div>',
            _("This node"),
            facts,
            self._why_alone(node),
            self._why_old(node),
        )

    def _why_alone(self, node: NodeRow) -> SafeString:
        if node.store_away_since is None:
            return SafeString("")
        text = _(
            "Redis has not answered %(node)s since %(since)s, or does not take what it writes. The node admits by what "
            "each tier says under “while the store is away”, tries again twice a second, and says in its log why."
        ) % {"node": formats.node(node.id), "since": formats.clock(node.store_away_since)}
        return format_html("<h3>{}</h3><p>{}</p>", _("Why it decides from its own table"), text)

    def _why_old(self, node: NodeRow) -> SafeString:
        if node.policy_version == self.newest_policy:
            return SafeString("")
        text = _(
            "%(node)s decides by policy %(version)d and has not read %(newest)d. It looks every second; if this lasts, "
            "check its connection to the database."
        ) % {"node": formats.node(node.id), "version": node.policy_version, "newest": self.newest_policy}
        return format_html("<h3>{}</h3><p>{}</p>", _("Why it is on an old policy"), text)


def build(look: Look) -> View:
    """The page."""
    nodes = look.snapshot.nodes
    table = NodeTable(look).description()
    rows = table.sorted(nodes, look.asked.query)
    parts = {"foot": foot(_draining(nodes), downloads(look.asked), None, None)}
    if not nodes:
        parts["empty"] = SafeString(_("No node has reported yet. A node reports with its first request."))
    return View(
        parts={"banner": banner(look), "count": _alive(look), "store": _store(look)},
        tables={"nodes": table.render(rows, look.asked.query, parts)},
    )


def records(look: Look) -> Records:
    """What the page downloads."""
    table = NodeTable(look).description()
    return table, table.sorted(look.snapshot.nodes, look.asked.query)


def _alive(look: Look) -> str:
    nodes = look.snapshot.nodes
    if look.is_away:
        known = ngettext("%(count)d node known", "%(count)d nodes known", len(nodes)) % {"count": len(nodes)}
        return _("%(known)s, %(own)d seen now") % {"known": known, "own": len(look.own)}
    text = ngettext("%(count)d node alive", "%(count)d nodes alive", len(nodes)) % {"count": len(nodes)}
    return _("%(alive)s; loop lag is the longest of the last second") % {"alive": text}


def _draining(nodes: Sequence[NodeRow]) -> str:
    draining = [node for node in nodes if node.is_draining]
    if not draining:
        return ""
    texts = [
        _("%(node)s drains: %(open)s left.") % {"node": formats.node(node.id), "open": formats.number(node.open)}
        for node in draining
    ]
    return " ".join(texts)


def _store(look: Look) -> SafeString:
    """How each kind of store answers the nodes that use it."""
    found: dict[str, list[float]] = {}
    for node in look.snapshot.nodes:
        found.setdefault(node.store, []).append(node.store_ms)
    before = _("away; when it last answered: ") if look.is_away else ""
    rows = [
        (
            name,
            before
            + _("%(usual)s at the fastest node, %(longest)s at the slowest")
            % {"usual": formats.milliseconds(min(times)), "longest": formats.milliseconds(max(times))},
        )
        for name, times in found.items()
    ]
    return format_html('<dl class="sl-dl">{}</dl>', format_html_join("", "<dt>{}</dt><dd>{}</dd>", rows))
