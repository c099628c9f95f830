"""Nodes without a server: a real store, journal, writer and sink, and streams that the test opens and closes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from sse_limits.core.decisions import DecisionMint, node_name
from sse_limits.core.rejections import LIMIT_REASONS, Reason, Reject, answer
from sse_limits.core.slots import Admitted, Full, Held
from sse_limits.live.board import Board
from sse_limits.live.diff import Load
from sse_limits.live.journal import ENFORCE, Journal
from sse_limits.live.memory import MemoryBoard
from sse_limits.live.redis import RedisBoard
from sse_limits.live.report import Sink
from sse_limits.live.rows import DecisionRow, NodeRow, StreamRow
from sse_limits.live.sink import RedisSink
from sse_limits.live.writer import Writer
from sse_limits.slots.base import SlotStore
from sse_limits.slots.memory import MemoryStore
from tests.slots.backends import LEASE_SECONDS, ask, held, store_kind
from tests.slots.servers import ClusterServer, Server

KEY = b"k" * 32
HEARTBEAT_SECONDS = 3.0
PATIENT_SECONDS = 5.0


def row(node: str, **fields: Any) -> NodeRow:
    """A node's row as it might be."""
    values: dict[str, Any] = {
        "id": node,
        "name": node.rpartition(":")[2],
        "host": "web",
        "pid": 7,
        "server": "uvicorn 0.54.0",
        "started_at": 1_700_000_000_000,
        "seen_at": 0,
        "open": 0,
        "open_sse": 0,
        "budget": None,
        "is_draining": False,
        "policy_version": 3,
        "loop_lag_ms": 1.5,
        "memory_bytes": 90_000_000,
        "blocked": 0,
        "store": "redis",
        "store_ms": 0.25,
        "store_p99_ms": 1.125,
    }
    return NodeRow(**{**values, **fields})


class Station:
    """One node. What it opens, closes and rejects is on the board after `write`."""

    def __init__(self, number: int, store: SlotStore, sink: Sink) -> None:
        self.name = node_name(bytes([number] * 5))
        self.id = f"web:{number}:{self.name}"
        self.store = store
        self.sink = sink
        self.journal = Journal()
        self.writer = Writer(self, self.journal, sink, HEARTBEAT_SECONDS)
        self.rows: dict[str, StreamRow] = {}
        self.leases: dict[str, Held] = {}
        self.own: dict[str, Any] = {}
        self._mint = DecisionMint(KEY, self.name)
        self._numbers = itertools.count(1)

    # -- what the test does --------------------------------------------------------------------------------------

    async def open(
        self,
        user: str | None = "u1",
        tenant: str = "t1",
        *,
        address: str = "192.0.2.1",
        limits: Mapping[str, int] | None = None,
        transport: str = "sse",
    ) -> str | DecisionRow:
        """Open a stream as the limiter does; returns its id, or the decision that refused it."""
        claim = ask(
            f"{self.name}-{next(self._numbers)}", limits, user=user, tenant=tenant, address=address, node=self.name
        )
        found = await self.store.acquire(claim)
        if isinstance(found, Full):
            demand = claim.demands[found.position]
            reject = Reject(LIMIT_REASONS[demand.scope], demand.scope, demand.limit, found.in_use)
            return self.reject(reject, user=user, tenant=tenant, address=address)
        assert isinstance(found, Admitted)
        self.leases[claim.stream] = held(claim)
        self.journal.admitted["free"] += 1
        self._touch(claim.stream)
        self.rows[claim.stream] = StreamRow(
            id=claim.stream,
            node=self.id,
            path="/events/",
            transport=transport,
            stream_class="clock",
            since=found.now,
            tenant=tenant,
            user=user,
            address=address,
            tier="free",
            lane_events=64,
        )
        return claim.stream

    async def close(self, stream: str) -> None:
        """Close a stream as the guard does, and see it through."""
        self._touch(stream)
        del self.rows[stream]
        lease = self.leases.pop(stream)
        self.store.release(lease)
        await self.store.usage(lease.keys)
        await self.store.usage(lease.keys)

    def reject(
        self, reject: Reject, *, user: str | None = "u1", tenant: str | None = "t1", address: str = "192.0.2.1"
    ) -> DecisionRow:
        """Refuse a stream as the node does."""
        now = self.journal.now_ms()
        found = answer(reject, self._mint.mint(reject, now, 3), 1)
        detail = DecisionRow(
            id=found.decision,
            at=now,
            node=self.id,
            reason=reject.reason,
            mode=ENFORCE,
            tenant=tenant,
            user=user,
            address=address,
            tier="free",
            path="/events/",
            transport="sse",
            stream_class="clock",
            scope=reject.scope,
            limit=reject.limit,
            in_use=reject.in_use,
            policy_version=3,
            status=found.status,
            retry_after=found.retry_after,
            body=found.body.decode(),
        )
        if self.journal.reject(reject.reason, tenant):
            self.journal.detail(detail)
        return detail

    def end(self, reason: Reason, tenant: str | None = "t1") -> None:
        """Count the end of a stream."""
        self.journal.end(reason, tenant)

    def load(self, stream: str, queued: int, dropped: int) -> None:
        """Let a lane fill."""
        self.rows[stream] = replace(self.rows[stream], queued=queued, dropped=dropped)

    async def write(self) -> None:
        """Let a second pass."""
        await self.writer.write()

    def _touch(self, stream: str) -> None:
        self.journal.touched.update(self.leases[stream].keys)

    # -- what the writer asks ------------------------------------------------------------------------------------

    def loads(self) -> Mapping[str, Load]:
        return {stream: (found.queued, found.dropped) for stream, found in self.rows.items()}

    def describe(self, stream: str, load: Load) -> StreamRow | None:
        return self.rows.get(stream)

    def row(self) -> NodeRow:
        found = self.rows.values()
        addresses: dict[str, int] = {}
        for each in found:
            addresses[each.address or ""] = addresses.get(each.address or "", 0) + 1
        return row(
            self.id,
            open=len(found),
            open_sse=sum(each.transport == "sse" for each in found),
            addresses=addresses,
            counters=dict(self.journal.counters()),
            **self.own,
        )

    def held(self) -> Collection[str]:
        return {key for lease in self.leases.values() for key in lease.keys}


class Fleet(Protocol):
    """Nodes that share a store, and boards over it."""

    lease_seconds: float

    def station(self, store: SlotStore | None = None) -> Station:
        """One more node."""

    def board(self) -> Board:
        """A board that remembers nothing, as another process has it."""

    async def aclose(self) -> None:
        """Close what was made."""


class MemoryFleet:
    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        self.lease_seconds = lease_seconds
        self.store = MemoryStore(lease_seconds=lease_seconds)
        self._board = MemoryBoard(snapshot_seconds=0)
        self._numbers = itertools.count(1)

    def station(self, store: SlotStore | None = None) -> Station:
        return Station(next(self._numbers), self.store, self._board.sink(self.store))

    def board(self) -> Board:
        return self._board

    async def aclose(self) -> None:
        """Nothing to close."""


class RedisFleet:
    def __init__(self, server: Server | ClusterServer, lease_seconds: float = LEASE_SECONDS) -> None:
        self.server = server
        self.lease_seconds = lease_seconds
        self._numbers = itertools.count(1)
        self._closing: list[Callable[[], Any]] = []
        self._boards: list[RedisBoard] = []

    def station(
        self, store: SlotStore | None = None, *, url: str | None = None, timeout_seconds: float = PATIENT_SECONDS
    ) -> Station:
        made = store or store_kind(self.server)(
            self.server.url,
            lease_seconds=self.lease_seconds,
            timeout_seconds=PATIENT_SECONDS,
            slow_timeout_seconds=PATIENT_SECONDS,
        )
        sink = RedisSink(url or self.server.url, lease_seconds=self.lease_seconds, timeout_seconds=timeout_seconds)
        self._closing += [made.aclose, sink.aclose]
        return Station(next(self._numbers), made, sink)

    def board(self, *, snapshot_seconds: float = 0, timeout_seconds: float = PATIENT_SECONDS) -> RedisBoard:
        found = RedisBoard(
            self.server.url,
            lease_seconds=self.lease_seconds,
            timeout_seconds=timeout_seconds,
            snapshot_seconds=snapshot_seconds,
        )
        self._boards.append(found)
        return found

    async def aclose(self) -> None:
        for close in self._closing:
            await close()
        for board in self._boards:
            board.close()
