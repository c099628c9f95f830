"""Metrics of the whole fleet in Prometheus' text format, from the rows that nodes write once a second.

Any worker answers for all of them. No label grows with users: nodes, tiers, reasons; tenants only on a path of their
own, and at most 200. Histograms and counters begin anew with their node, as `node` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .rows import Holder, NodeRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

METRICS: dict[str, tuple[str, str]] = {
    "sse_conns": ("gauge", "Open streams, by transport."),
    "sse_nodes": ("gauge", "Living nodes."),
    "sse_node_draining": ("gauge", "1 while the node drains."),
    "sse_node_blocked": ("gauge", "Streams whose client has taken nothing for a second."),
    "sse_node_policy_version": ("gauge", "The version of the policy that the node decides by."),
    "sse_node_loop_lag_seconds": ("gauge", "The longest delay of the event loop in the last seconds."),
    "sse_node_memory_bytes": ("gauge", "Resident memory of the node's process."),
    "sse_node_start_time_seconds": ("gauge", "When the node started, in seconds since the epoch."),
    "sse_store_away": ("gauge", "1 while the node decides without the slot store."),
    "sse_queue_depth": ("gauge", "Events that wait in lanes."),
    "sse_admitted_total": ("counter", "Admitted streams, by tier."),
    "sse_rejected_total": ("counter", "Rejected streams."),
    "sse_ended_total": ("counter", "Streams that were ended from this side, by reason."),
    "sse_events_dropped_total": ("counter", "Events that a slow reader did not get, by drop policy."),
    "sse_conns_per_user": ("histogram", "Streams that a user held, observed at each admission."),
    "sse_publish_to_write_seconds": ("histogram", "From publishing an event to handing it to the server."),
    "sse_store_seconds": ("histogram", "How long exchanges with the slot store took."),
    "sse_leases_renewed_total": ("counter", "Leases that were renewed."),
    "sse_leases_lost_total": ("counter", "Leases that a renewal found lost."),
    "sse_leases_adopted_total": ("counter", "Leases that the store had lost or never known, and took over."),
    "sse_leases_adopted_over_limit_total": ("counter", "Those of them that were over a limit."),
    "sse_outage_decisions_total": ("counter", "Decisions that were taken without the slot store, by outcome."),
    "sse_reaped_total": ("counter", "Streams of provably dead nodes whose slots this node has taken back."),
    "ws_messages_total": ("counter", "Messages from WebSocket clients, by outcome."),
}
TENANT_METRICS = {"sse_tenant_conns": ("gauge", "Open streams of the tenants that hold most.")}

Sample = tuple[str, str, float]  # the name of its metric, the sample with its labels, the value


def fleet(nodes: Sequence[NodeRow]) -> str:
    """What `/metrics` answers."""
    return _text(METRICS, [("sse_nodes", "sse_nodes", len(nodes)), *_of_nodes(nodes)])


def part(nodes: Sequence[NodeRow]) -> str:
    """What it answers while the store is away: the nodes of one process. How many there are in all it cannot know."""
    away = [replace(node, store_away_since=node.store_away_since or node.seen_at) for node in nodes]
    return _text(METRICS, list(_of_nodes(away)))


def tenants(holders: Iterable[Holder]) -> str:
    """What the path for tenants answers."""
    samples = [
        ("sse_tenant_conns", _labelled("sse_tenant_conns", tenant=each.subject), each.in_use) for each in holders
    ]
    return _text(TENANT_METRICS, samples)


def _of_nodes(nodes: Sequence[NodeRow]) -> Iterator[Sample]:
    for node in nodes:
        yield from _of_node(node)


def _of_node(node: NodeRow) -> Iterator[Sample]:
    for transport, count in (("sse", node.open_sse), ("websocket", node.open - node.open_sse)):
        yield "sse_conns", _labelled("sse_conns", node=node.id, transport=transport), count
    gauges = {
        "sse_node_draining": float(node.is_draining),
        "sse_node_blocked": node.blocked,
        "sse_store_away": float(node.store_away_since is not None),
        "sse_node_policy_version": node.policy_version,
        "sse_node_loop_lag_seconds": node.loop_lag_ms / 1000,
        "sse_node_memory_bytes": node.memory_bytes,
        "sse_node_start_time_seconds": node.started_at / 1000,
    }
    for name, value in gauges.items():
        yield name, _labelled(name, node=node.id), value
    for sample, value in node.counters.items():
        name, brace, labels = sample.partition("{")
        family = _family(name)
        if family is not None:  # a node of a later version may tell more
            own = f'node="{_escaped(node.id)}"'
            yield family, f"{name}{{{own}," + (labels if brace else "}"), value


def _family(name: str) -> str | None:
    if name in METRICS:
        return name
    base = name.rpartition("_")[0]
    return base if METRICS.get(base, ("", ""))[0] == "histogram" else None


def _text(metrics: dict[str, tuple[str, str]], samples: Sequence[Sample]) -> str:
    lines = []
    for name, (kind, about) in metrics.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        lines += [f"{sample} {value:.17g}" for family, sample, value in samples if family == name]
    return "\n".join([*lines, ""])


def _labelled(name: str, **labels: str) -> str:
    pairs = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
