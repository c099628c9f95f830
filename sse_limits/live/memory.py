"""The board of a single process, where the store is its memory: takes the same reports, and answers the same questions.

Nodes write on their event loops and pages read in threads, so everything stands under one lock. What is verified is
counted in the stores themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from sse_limits.core.slots import Scope
from sse_limits.slots import keys
from sse_limits.slots.base import Order
from sse_limits.slots.memory import MemoryStore, epoch_ms

from .board import NOTE_CHARS, SNAPSHOT_SECONDS, TOP_ROWS, Point, Snapshot
from .derived import AdmittedInSpan, latest_first, most_first, sum_addresses, top_addresses
from .holders import Found, Full, by_age, by_holder, by_tenant, wanted, with_holders
from .report import Batch, Report
from .rows import Bucket, Cause, DecisionRow, Holder, NodeRow, StreamRow, TenantCauses
from .shared import Shared
from .spans import most, starts_of
from .streams import number_of, oldest_first

LATEST = 50
SPAN_MINUTES = 15
SPANS_KEPT = {10: 400, 60: 2_900}
DECISIONS_KEPT = 20_000
DECISIONS_KEPT_MS = 24 * 3_600_000

Counts = Counter[Cause]
Kept = TypeVar("Kept")


class MemoryBoard:
    """The display's data of one process. Thread-safe."""

    def __init__(self, snapshot_seconds: float = SNAPSHOT_SECONDS, clock: Callable[[], int] = epoch_ms) -> None:
        self._clock = clock
        self._snapshot = Shared(self._read_snapshot, snapshot_seconds)
        self._lock = threading.RLock()
        self._sinks: list[MemorySink] = []
        self._nodes: dict[str, NodeRow] = {}
        self._streams: dict[str, dict[str, StreamRow]] = {}
        self._tops: dict[tuple[Scope, str], int] = {}
        self._spans: dict[int, dict[int, Counts]] = {10: {}, 60: {}}
        self._tenants: dict[int, Counter[tuple[str | None, Cause]]] = {}
        self._history: dict[int, dict[str, tuple[int, int, int]]] = {}
        self._decisions: deque[DecisionRow] = deque(maxlen=DECISIONS_KEPT)
        self._orders = itertools.count(1)

    def sink(self, store: MemoryStore) -> MemorySink:
        """Where a node with this store writes its reports; called on the node's event loop."""
        with self._lock:
            found = MemorySink(self, store)
            self._sinks.append(found)
            return found

    def snapshot(self) -> Snapshot:
        """The state of the process; shared for one second."""
        return self._snapshot.get()

    def _read_snapshot(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            nodes = self._living(now)
            return Snapshot(
                at=now,
                fleet_in_use=self._count(keys.fleet()),
                nodes=nodes,
                tops={
                    Scope.USER: self._top(Scope.USER),
                    Scope.TENANT: self._top(Scope.TENANT),
                    Scope.ADDRESS: top_addresses(nodes),
                },
                rejections=self.rejections(minutes=SPAN_MINUTES),
                tenant_causes=self.tenant_causes(minutes=SPAN_MINUTES),
                latest=self.decisions(count=LATEST)[:LATEST],
                history=[self._point(start) for start in starts_of(now, SPAN_MINUTES, 10)],
            )

    def in_use(self, holders: Sequence[tuple[Scope, str]]) -> list[int]:
        """How much each subject holds now (addresses: as nodes report them)."""
        with self._lock:
            nodes = self._living(self._clock())
            addresses = sum_addresses(nodes)
            opened = {node.id: node.open for node in nodes}
            return [
                addresses[subject] if scope is Scope.ADDRESS
                else opened.get(subject, 0) if scope is Scope.NODE
                else self._count(keys.slot(scope, subject))
                for scope, subject in holders
            ]  # fmt: skip

    def streams(self, scope: Scope, subject: str, *, offset: int = 0, count: int = 50) -> tuple[int, list[StreamRow]]:
        """How many streams a holder has, and a page of their rows, oldest first."""
        with self._lock:
            rows = self._streams_of(scope, subject)
        return len(rows), rows[offset : offset + count]

    def stream(self, stream: str) -> StreamRow | None:
        """One stream's row; None when nobody holds a slot under this id any more."""
        with self._lock:
            return self._row(stream) if stream in self._members(keys.fleet()) else None

    def is_held(self, streams: Sequence[StreamRow]) -> list[bool]:
        """Whether each stream still holds its slots."""
        with self._lock:
            living = self._members(keys.fleet())
            return [row.id in living for row in streams]

    def rejections(self, *, minutes: int) -> Sequence[Bucket]:
        """Rejections of the last minutes, oldest first."""
        seconds = 10 if minutes <= 60 else 60
        with self._lock:
            spans = self._spans[seconds]
            starts = starts_of(self._clock(), minutes, seconds)
            return [Bucket(start * 1000, seconds, dict(spans.get(start, {}))) for start in starts]

    def tenant_causes(self, *, minutes: int) -> Sequence[TenantCauses]:
        """Rejections by tenant over the last minutes, most first, at most 200."""
        total: Counter[tuple[str | None, Cause]] = Counter()
        with self._lock:
            for start in starts_of(self._clock(), minutes, 60):
                total.update(self._tenants.get(start, {}))
        return most(total)

    def decisions(self, *, before: int | None = None, count: int = 50) -> list[DecisionRow]:
        """The latest decisions with details, newest first; `before` (epoch ms) pages on."""
        with self._lock:
            found = [row for row in self._decisions if before is None or row.at < before]
        return latest_first(found, count)

    def decision(self, id: str, at: int) -> DecisionRow | None:
        """The details of a decision; None when they were not kept."""
        with self._lock:
            return next((row for row in self._decisions if row.id == id), None)

    def revoke(self, streams: Sequence[str], reason: str, note: str = "") -> int:
        """Order streams to end; returns how many orders were given."""
        with self._lock:
            for stream in streams:
                number = f"board-{next(self._orders)}"
                order = Order(number, stream.partition("-")[0], stream, reason, note[:NOTE_CHARS])
                for sink in {sink.store: sink for sink in self._sinks}.values():
                    sink.give(order)
        return len(streams)

    # -- writing, on the event loop of a node ---------------------------------------------------------------------

    def close(self) -> None:
        """Nothing to close."""

    def take(self, report: Report, sink: MemorySink) -> int:
        """Take a node's report."""
        with self._lock:
            now = self._clock()
            node = report.row.id
            self._nodes[node] = replace(report.row, seen_at=now)
            rows = self._streams.setdefault(node, {})
            rows.update((row.id, row) for row in report.rows)
            for stream in report.gone:
                rows.pop(stream, None)
            for key in report.touched:
                self._tops[keys.subject_of(key)] = self._count(key)
                if not self._tops[keys.subject_of(key)]:
                    del self._tops[keys.subject_of(key)]
            if report.batch is not None:
                self._add(report.batch, now)
            start = now // 10_000 * 10
            admitted = sink.admitted.count(start, report.admitted)
            held = (report.row.open_sse, report.row.open - report.row.open_sse, admitted)
            bounded(self._history, start, SPANS_KEPT[10], dict)[node] = held
            self._keep(report.decisions, now)
            return now

    def leave(self, node: str, sink: MemorySink) -> None:
        """Forget a node that ends."""
        with self._lock:
            self._nodes.pop(node, None)
            self._streams.pop(node, None)
            if sink in self._sinks:
                self._sinks.remove(sink)

    def _add(self, batch: Batch, now: int) -> None:
        for (cause, tenant), count in batch.counts.items():
            for seconds, spans in self._spans.items():
                bounded(spans, now // 1000 // seconds * seconds, SPANS_KEPT[seconds], Counter)[cause] += count
            bounded(self._tenants, now // 60_000 * 60, SPANS_KEPT[60], Counter)[tenant, cause] += count

    def _keep(self, decisions: Sequence[DecisionRow], now: int) -> None:
        found: dict[Full, Found] = {full: self._holders(full, now) for full in wanted(decisions)}
        self._decisions.extend(with_holders(decisions, found))
        while self._decisions and self._decisions[0].at < now - DECISIONS_KEPT_MS:
            self._decisions.popleft()

    def _holders(self, full: Full, now: int) -> Found:
        scope, subject = full
        streams = self._members(keys.slot(scope, subject))
        if scope is Scope.USER:
            tenant, _, user = subject.partition("/")
            age = keys.age(tenant or None, user)
            acquired = {stream: at for store in self._stores() for stream, at in store.ages(age).items()}
            return by_age([(stream, acquired.get(stream, 0)) for stream in streams], now, len(streams))
        if scope is Scope.FLEET:
            return by_tenant([(holder.subject, holder.in_use) for holder in self._top(Scope.TENANT)], len(streams))
        return by_holder([self._row(stream) for stream in streams], len(streams))

    # -- reading, under the lock ----------------------------------------------------------------------------------

    def _living(self, now: int) -> list[NodeRow]:
        """The nodes that have written within a lease; the others are forgotten."""
        lease_ms = max((sink.store.lease_ms for sink in self._sinks), default=0)
        for node in [node for node, row in self._nodes.items() if row.seen_at + lease_ms <= now]:
            del self._nodes[node]
            self._streams.pop(node, None)
        return sorted(self._nodes.values(), key=lambda row: (row.host, row.started_at, row.id))

    def _members(self, key: str) -> list[str]:
        now = self._clock()
        return [stream for store in self._stores() for stream in store.members(key, now)]

    def _stores(self) -> Iterable[MemoryStore]:
        return dict.fromkeys(sink.store for sink in self._sinks)

    def _count(self, key: str) -> int:
        return len(self._members(key))

    def _top(self, scope: Scope) -> list[Holder]:
        first = Counter({subject: count for (of, subject), count in self._tops.items() if of is scope})
        holders = [
            Holder(scope, subject, self._count(keys.slot(scope, subject))) for subject, _ in first.most_common(TOP_ROWS)
        ]
        return most_first(holders)

    def _streams_of(self, scope: Scope, subject: str) -> list[StreamRow]:
        if scope is Scope.NODE:
            return sorted(self._streams.get(subject, {}).values(), key=lambda row: number_of(row.id))
        if scope is Scope.ADDRESS:
            rows = (row for found in self._streams.values() for row in found.values() if row.address == subject)
            return oldest_first(list(rows))
        return oldest_first([self._row(stream) for stream in self._members(keys.slot(scope, subject))])

    def _row(self, stream: str) -> StreamRow:
        for rows in self._streams.values():
            if stream in rows:
                return rows[stream]
        return StreamRow(stream, "", "", "", "", 0)

    def _point(self, start: int) -> Point:
        held = self._history.get(start, {}).values()
        sse, websocket, admitted = (sum(values) for values in zip(*held, strict=True)) if held else (0, 0, 0)
        return Point(start * 1000, sse, websocket, admitted)


class MemorySink:
    """Hands one node's reports to the board of its process. Made and used on the node's event loop."""

    remains = None

    def __init__(self, board: MemoryBoard, store: MemoryStore) -> None:
        self.store = store
        self.admitted = AdmittedInSpan()
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._node = ""

    async def write(self, report: Report) -> int:
        """Take a report."""
        self._node = report.row.id
        return self._board.take(report, self)

    async def leave(self, node: str) -> None:
        """Forget the node."""
        self._board.leave(node, self)

    async def aclose(self) -> None:
        """Leave, if nobody has said so before."""
        self._board.leave(self._node, self)

    def give(self, order: Order) -> None:
        """Give an order to the node; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.store.give, order)


def bounded(spans: dict[int, Kept], start: int, kept: int, make: Callable[[], Kept]) -> Kept:
    """The span that begins at `start`, made where it is new; the oldest give way."""
    if start not in spans:
        spans[start] = make()
        while len(spans) > kept:
            del spans[min(spans)]
    return spans[start]
