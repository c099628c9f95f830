"""What this node tells the board: its own row, its streams, and the details of a decision. Read once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sse_limits.core.identity import Identity
from sse_limits.core.rejections import Answer, Reject
from sse_limits.limiter import Limiter
from sse_limits.live import process
from sse_limits.live.board import TOP_ROWS
from sse_limits.live.diff import IDLE, Load
from sse_limits.live.journal import ENFORCE
from sse_limits.live.rows import DecisionRow, NodeRow, StreamRow
from sse_limits.live.writer import LagMeter

from .identification import Request, Scope

if TYPE_CHECKING:
    from .running import RunningStream

BLOCKED_SECONDS = 1.0


class About(NamedTuple):
    """Whom and what a decision was about, as far as it is known."""

    scope: Scope
    request: Request | None
    identity: Identity | None
    stream_class: str
    note: str = ""


class NodeSource:
    """A node as its writer sees it. Owned by the node's event loop."""

    def __init__(self, limiter: Limiter, streams: Mapping[str, RunningStream], lag: LagMeter) -> None:
        self._limiter = limiter
        self._streams = streams
        self._lag = lag
        self._facts: dict[str, Any] = {
            "host": process.host(),
            **process.incarnation()._asdict(),
            "started_at": limiter.journal.now_ms(),
        }
        self._open_sse = self._blocked = self._queued = 0
        self.is_draining = False

    def loads(self) -> Mapping[str, Load]:
        """The lanes of the open streams by stream id. The one pass over all streams: `row` tells what it has seen."""
        late = asyncio.get_running_loop().time() - BLOCKED_SECONDS
        found = dict.fromkeys(self._streams, IDLE)
        websockets = blocked = queued = 0
        for stream, guarded in self._streams.items():
            websockets += guarded.is_websocket
            since = guarded.writing_since
            if since is not None and since <= late:
                blocked += 1
            load = load_of(guarded)
            if load != IDLE:
                queued += load[0]
                found[stream] = load
        self._open_sse, self._blocked, self._queued = len(found) - websockets, blocked, queued
        return found

    def describe(self, stream: str, load: Load) -> StreamRow | None:
        """An open stream's row; None when it has gone meanwhile."""
        guarded = self._streams.get(stream)
        if guarded is None or guarded.lease is None:
            return None
        lease, limits = guarded.lease, guarded.limits
        return StreamRow(
            id=stream,
            node=self._limiter.node_id,
            path=guarded.scope["path"],
            transport=transport_of(guarded.scope),
            stream_class=lease.stream_class.name,
            since=lease.since,
            tenant=limits.tenant if limits is not None else None,
            user=lease.identity.user,
            address=lease.identity.address,
            tier=limits.tier if limits is not None else "",
            queued=load[0],
            lane_events=guarded.outlet.lane.max_events if guarded.outlet is not None else 0,
            dropped=load[1],
        )

    def row(self) -> NodeRow:
        """The node's own row, as of the last `loads`."""
        limiter = self._limiter
        median, p99 = limiter.store.latency.quantiles_ms()
        return NodeRow(
            id=limiter.node_id,
            name=limiter.node,
            server=process.server(),
            seen_at=limiter.journal.now_ms(),
            open=len(self._streams),
            open_sse=self._open_sse,
            budget=None,
            is_draining=self.is_draining,
            policy_version=limiter.policy.version,
            loop_lag_ms=self._lag.worst_ms,
            memory_bytes=process.memory_bytes(),
            blocked=self._blocked,
            store=limiter.store.name,
            store_ms=median,
            store_p99_ms=p99,
            counters=self._counters(),
            addresses=dict(limiter.addresses.most_common(TOP_ROWS)),
            store_away_since=limiter.circuit.since_ms,
            **self._facts,
        )

    def held(self) -> Collection[str]:
        """The keys of the slot sets in which this node holds something."""
        return self._limiter.held_keys()

    def _counters(self) -> dict[str, float]:
        found = dict(self._limiter.journal.counters())
        found |= dict(self._limiter.store.latency.seconds.samples("sse_store_seconds"))
        found["sse_queue_depth"] = self._queued
        return found

    def detail(self, reject: Reject, found: Answer, about: About, address: str | None) -> DecisionRow | None:
        """The row of a decision, as it was taken and told."""
        decision = self._limiter.decision(found.decision)
        if decision is None:
            return None
        identity = about.identity
        limits = self._limiter.limits_of(identity) if identity is not None else None
        return DecisionRow(
            id=found.decision,
            at=decision.at,
            node=self._limiter.node_id,
            reason=reject.reason,
            mode=ENFORCE,
            tenant=self._limiter.tenant_of(identity),
            user=identity.user if identity is not None else None,
            address=address,
            tier=limits.tier if limits is not None else "",
            path=about.scope["path"],
            transport=transport_of(about.scope),
            stream_class=about.stream_class,
            scope=reject.scope,
            limit=reject.limit,
            in_use=reject.in_use,
            policy_version=decision.policy_version,
            status=found.status,
            retry_after=found.retry_after,
            body="",
            note=about.note,
        )


def load_of(stream: RunningStream) -> Load:
    """What waits in a stream's lane, and what it has dropped."""
    if stream.outlet is None:
        return IDLE
    lane = stream.outlet.lane
    return len(lane), lane.dropped


def transport_of(scope: Scope) -> str:
    """The name of a transport, as rows tell it."""
    return "websocket" if scope["type"] == "websocket" else "sse"
