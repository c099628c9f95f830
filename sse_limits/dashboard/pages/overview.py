"""Overview: are we fine? If not, who is hurt, and why?"""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits.core.rejections import ENDS
from sse_limits.core.slots import Scope
from sse_limits.dashboard import charts, formats, outage
from sse_limits.dashboard.look import Look
from sse_limits.dashboard.view import Alert, Figure, View, alerts, banner, figures
from sse_limits.live.rows import DecisionRow

from .decisions_table import DecisionTable
from .nodes import NodeTable
from .tenants import TenantRow, TenantTable, by_tenant, tenant_rows

ROWS = 6
RATE_SPANS = 6
SPARK_POINTS = 24
ALERTS_SHOWN = 5
SILENT_SECONDS = 6


def build(look: Look) -> View:
    """The page."""
    query, snapshot = look.asked.query, look.snapshot
    tenants = tenant_rows(look)
    nearest = sorted((row for row in tenants if row.limit is not None), key=lambda row: (-row.share, row.slug))[:ROWS]
    nodes = NodeTable(look, is_brief=True).description()
    is_empty = not (snapshot.fleet_in_use or look.is_away or charts_have_something(look))
    return View(
        parts={
            "banner": banner(look),
            "alerts": alerts(_alerts(look, tenants)),
            "figures": figures(_figures(look, tenants)),
            "is_empty": "1" if is_empty else "",
            "all_tenants": _all_tenants(look, len(tenants)),
        },
        tables={
            "tenants": TenantTable(look, is_brief=True).description().render(nearest, query),
            "decisions": DecisionTable(look, is_brief=True).description().render(_latest(look), query),
            "nodes": nodes.render(nodes.sorted(snapshot.nodes, query), query),
        },
        charts={
            "in_use": charts.in_use(snapshot.history, look.capacity),
            "rejections": charts.rejections(snapshot.rejections),
        },
    )


def charts_have_something(look: Look) -> bool:
    """Whether the last 15 minutes have anything to draw."""
    history = look.snapshot.history
    return any(point.sse or point.websocket for point in history) or any(b.counts for b in look.snapshot.rejections)


def _latest(look: Look) -> list[DecisionRow]:
    return [row for row in look.snapshot.latest if row.reason not in ENDS][:ROWS]


def _all_tenants(look: Look, count: int) -> SafeString:
    text = ngettext("%(count)s tenant", "All %(count)s tenants", count) % {"count": formats.number(count)}
    return formats.link(look.asked.url("tenants"), text)


# -- figures --------------------------------------------------------------------------------------------------------


def _figures(look: Look, tenants: list[TenantRow]) -> list[Figure]:
    return [_in_use(look), *_rates(look), _at_limit(look, tenants), _nodes(look), _store(look)]


def _in_use(look: Look) -> Figure:
    used, capacity = look.snapshot.fleet_in_use, look.capacity
    if capacity is None:
        return Figure(_("Streams in use"), formats.live(formats.number(used)), note=_("the fleet has no limit"))
    share = formats.percent_of(used, capacity)
    whole = {"limit": formats.number(capacity), "share": formats.unit(share, "%")}
    unit = _("of %(limit)s, %(share)s") % whole if used else _("of %(limit)s") % whole
    return Figure(_("Streams in use"), formats.live(formats.number(used)), unit, formats.big_bar(share))


def _rates(look: Look) -> list[Figure]:
    """Admitted and rejected a second, over the last minute."""
    history = look.snapshot.history[-SPARK_POINTS - 1 : -1]  # the running span is not over
    spans = look.snapshot.rejections[-RATE_SPANS - 1 : -1]
    seconds = sum(span.seconds for span in spans)
    refused = sum(charts.rejected(span) for span in spans) / seconds if seconds else 0
    rates = [point.admitted / charts.POINT_SECONDS for point in history]
    recent = rates[-RATE_SPANS:]
    admitted = sum(recent) / len(recent) if recent else 0
    attempts = admitted + refused
    share = _("%(share)s of attempts") % {"share": formats.percent(refused, attempts, 1)} if refused else ""
    return [
        Figure(_("Admitted"), formats.live(formats.number(admitted, 1)), "/s", formats.spark(rates)),
        Figure(_("Rejected"), formats.live(formats.number(refused, 1)), "/s", share or _("none in the last minute")),
    ]


def _at_limit(look: Look, tenants: list[TenantRow]) -> Figure:
    full = sum(row.is_at_limit for row in tenants)
    users = sum(_is_full(look, Scope.USER, holder.subject, holder.in_use) for holder in look.snapshot.top(Scope.USER))
    addresses = sum(
        _is_full(look, Scope.ADDRESS, holder.subject, holder.in_use) for holder in look.snapshot.top(Scope.ADDRESS)
    )
    note = _("%(users)s, %(addresses)s") % {
        "users": ngettext("%(count)d user", "%(count)d users", users) % {"count": users},
        "addresses": ngettext("%(count)d address", "%(count)d addresses", addresses) % {"count": addresses},
    }
    return Figure(_("At their limit"), formats.live(formats.number(full)), ngettext("tenant", "tenants", full), note)


def _is_full(look: Look, scope: Scope, subject: str, in_use: int) -> bool:
    limit = look.limit(scope, subject)
    return limit is not None and in_use >= limit


def _nodes(look: Look) -> Figure:
    nodes = look.snapshot.nodes
    if look.is_away and nodes:
        return _seen_nodes(look)
    newest = max((node.policy_version for node in nodes), default=0)
    draining = sum(node.is_draining for node in nodes)
    old = sum(node.policy_version != newest for node in nodes)
    said = [
        ngettext("%(count)d drains", "%(count)d drain", draining) % {"count": draining} if draining else "",
        ngettext("%(count)d old policy", "%(count)d old policies", old) % {"count": old} if old else "",
    ]
    fine = _("all on policy %(version)d") % {"version": newest} if nodes else _("none has reported")
    return Figure(_("Nodes"), formats.number(len(nodes)), _("alive"), ", ".join(filter(None, said)) or fine)


def _seen_nodes(look: Look) -> Figure:
    """While the store is away, a process sees its own nodes only."""
    known, own = len(look.snapshot.nodes), len(look.own)
    unseen = _("%(count)d unseen since %(time)s") if own else _("unseen since %(time)s")
    note = unseen % {"count": known - own, "time": formats.clock(look.counted_at)} if known > own else _("all seen")
    return Figure(_("Nodes"), formats.number(own), _("of %(count)d") % {"count": known}, note)


def _store(look: Look) -> Figure:
    if look.is_away:
        return Figure(_("Store"), _("away"), "", outage.decisions(look.policy), is_bad=True)
    nodes = look.snapshot.nodes
    if not nodes:
        return Figure(_("Store"), _("answers"))
    times = sorted(node.store_ms for node in nodes)
    number, _space, unit = formats.milliseconds(times[len(times) // 2]).partition(formats.NBSP)
    return Figure(_("Store"), formats.live(number), unit, nodes[0].store)


# -- what hurts -----------------------------------------------------------------------------------------------------


def _alerts(look: Look, tenants: list[TenantRow]) -> list[Alert]:
    """Tenants at their limit that are being refused, most refused first; then nodes."""
    refused = by_tenant(look.ask(lambda: look.board.tenant_causes(minutes=1), ()))
    full = [(refused[row.slug].total(), row) for row in tenants if row.is_at_limit and refused.get(row.slug)]
    full.sort(key=lambda pair: (-pair[0], pair[1].slug))
    return [
        *_store_alerts(look),
        *(_full_tenant(look, row, count) for count, row in full[:ALERTS_SHOWN]),
        *_node_alerts(look),
    ]


def _full_tenant(look: Look, row: TenantRow, count: int) -> Alert:
    text = ngettext(
        "{tenant} is at its limit of {limit}: {count} attempt refused in the last minute.",
        "{tenant} is at its limit of {limit}: {count} attempts refused in the last minute.",
        count,
    )
    limit = formats.number(row.limit or 0)
    sentence = format_html(text, tenant=formats.strong(row.slug), limit=limit, count=formats.number(count))
    latest = next((found.id for found in look.snapshot.latest if found.tenant == row.slug), None)
    url = look.asked.url("decision", id=latest) if latest else look.asked.url("rejections", tenant=row.slug)
    return Alert(sentence, url, _("Explain"), is_critical=True)


def _store_alerts(look: Look) -> list[Alert]:
    """Nodes that the store is away for, though not for this page; one alert, however many they are."""
    if look.is_away:
        return []
    away = [(node.store_away_since, node) for node in look.snapshot.nodes if node.store_away_since is not None]
    if not away:
        return []
    if len(away) == 1:
        text = _("{node} cannot use Redis since {since}; it decides from its own table.")
    else:
        text = _("{count} of {nodes} nodes cannot use Redis since {since}; they decide from their own tables.")
    sentence = format_html(
        text,
        node=formats.strong(formats.node(away[0][1].id)),
        count=formats.strong(len(away)),
        nodes=len(look.snapshot.nodes),
        since=formats.clock(min(since for since, _node in away)),
    )
    return [Alert(sentence, look.asked.url("nodes"), _("Nodes"), is_critical=True)]


def _silent(look: Look) -> list[Alert]:
    """Nodes that have not written for a while: they are cut off from the store, frozen, or dead without a goodbye."""
    limit = look.now - SILENT_SECONDS * 1000
    silent = [node for node in look.snapshot.nodes if node.seen_at < limit and node.store_away_since is None]
    if look.is_away or not silent:
        return []
    text = ngettext(
        "{nodes} has not reported since {since}: it cannot reach Redis, stands still, or has died.",
        "{nodes} have not reported since {since}: they cannot reach Redis, stand still, or have died.",
        len(silent),
    )
    names = ", ".join(formats.node(node.id) for node in silent[:ALERTS_SHOWN])
    more = f" +{len(silent) - ALERTS_SHOWN}" if len(silent) > ALERTS_SHOWN else ""
    since = formats.clock(min(node.seen_at for node in silent))
    sentence = format_html(text, nodes=formats.strong(f"{names}{more}"), since=since)
    return [Alert(sentence, look.asked.url("nodes"), _("Nodes"))]


def _node_alerts(look: Look) -> list[Alert]:
    found = _silent(look)
    newest = max((node.policy_version for node in look.snapshot.nodes), default=0)
    for node in look.snapshot.nodes:
        if node.policy_version != newest:
            text = _("{node} decides by policy {version}, and {newest} is in force.")
            name = formats.strong(formats.node(node.id))
            sentence = format_html(text, node=name, version=node.policy_version, newest=newest)
            found.append(Alert(sentence, look.asked.url("nodes", open=node.id), _("Nodes")))
    return found[:ALERTS_SHOWN]
