"""The board over Redis or Valkey: what the nodes have written, read in batches over blocking connections.

The overview is read once a second and process, however many people look. Every other page reads what it shows: ranges
are bounded, and nothing is scanned but the rows of single nodes for the streams of an address.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sse_limits.core.decisions import NODE_BYTES, node_name
from sse_limits.core.slots import Scope
from sse_limits.slots import keys, orders, scripts
from sse_limits.slots.base import Order
from sse_limits.slots.blocking import Command

from .board import NOTE_CHARS, SNAPSHOT_SECONDS, TOP_ROWS, Snapshot
from .codec import decision_row, node_row
from .connection import Connection
from .derived import latest_first, most_first, sum_addresses, top_addresses
from .replies import fields_of, scores_of
from .rows import Bucket, DecisionRow, Holder, NodeRow, StreamRow, TenantCauses
from .shared import Shared
from .spans import SpanReader
from .streams import StreamReader

NODES_AT_MOST = 1000
VERIFIED = 50
LATEST = 50
SPAN_MINUTES = 15
HOUR_MS = 3_600_000
HOURS_KEPT = 24
DECISIONS_PER_READ = 500
LOOKUP_READS = 20
LATE_MS = 5_000
LOOKUP_BEFORE_MS = 5_000  # a node knows the store's time to some milliseconds, its first second aside
ORDERS_PER_EXCHANGE = 500


class RedisBoard:
    """The display's data over Redis. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        lease_seconds: float,
        timeout_seconds: float,
        snapshot_seconds: float = SNAPSHOT_SECONDS,
    ) -> None:
        self._connection = Connection(url, timeout_seconds)
        self._lease_ms = round(lease_seconds * 1000)
        self._usage = scripts.load("usage")
        self._order = scripts.load("order")
        self._spans = SpanReader(self._connection)
        self._streams = StreamReader(self._connection)
        self._snapshot = Shared(self._read_snapshot, snapshot_seconds)
        self._name = node_name(os.urandom(NODE_BYTES))
        self._numbers = itertools.count(1)

    def snapshot(self) -> Snapshot:
        """The state of the fleet; shared within the process for one second."""
        return self._snapshot.get()

    def in_use(self, holders: Sequence[tuple[Scope, str]]) -> list[int]:
        """How much each subject holds now, counted in the slot sets (addresses: as nodes report them)."""
        counted = [each for each in holders if each[0] not in (Scope.ADDRESS, Scope.NODE)]
        sets = [keys.slot(*each) for each in counted]
        groups = self._connection.groups(sets)
        replies = self._connection.exchange(
            [self._connection.script(self._usage, [sets[at] for at in group]) for group in groups]
        )
        found = {
            counted[at]: count
            for group, (_, *counts) in zip(groups, replies, strict=True)
            for at, count in zip(group, counts, strict=True)
        }
        if len(counted) < len(holders):
            nodes = self.snapshot().nodes
            addresses = sum_addresses(nodes)
            found |= {(Scope.ADDRESS, address): count for address, count in addresses.items()}
            found |= {(Scope.NODE, node.id): node.open for node in nodes}
        return [found.get(each, 0) for each in holders]

    def streams(self, scope: Scope, subject: str, *, offset: int = 0, count: int = 50) -> tuple[int, list[StreamRow]]:
        """How many streams a holder has, and a page of their rows, oldest first."""
        return self._streams.page(scope, subject, offset, count)

    def stream(self, stream: str) -> StreamRow | None:
        """One stream's row; None when nobody holds a slot under this id any more."""
        return self._streams.one(stream)

    def is_held(self, streams: Sequence[StreamRow]) -> list[bool]:
        """Whether each stream still holds its slots."""
        return self._streams.are_held([row.id for row in streams])

    def rejections(self, *, minutes: int) -> Sequence[Bucket]:
        """Rejections of the last minutes, oldest first."""
        return self._spans.rejections(self._now(), minutes)

    def tenant_causes(self, *, minutes: int) -> Sequence[TenantCauses]:
        """Rejections by tenant over the last minutes, most first, at most 200."""
        return self._spans.tenant_causes(self._now(), minutes)

    def decisions(self, *, before: int | None = None, count: int = 50) -> list[DecisionRow]:
        """The latest decisions with details, newest first; `before` (epoch ms) pages on."""
        now = self._now()
        return self._latest(now, now + LATE_MS if before is None else before, count)

    def decision(self, id: str, at: int) -> DecisionRow | None:
        """The details of the decision that was taken `at`; None when they were not kept."""
        start = f"{max(0, at - LOOKUP_BEFORE_MS)}-0"
        first = (at - LOOKUP_BEFORE_MS) // HOUR_MS
        for hour in range(first, at // HOUR_MS + 2):
            found = self._look_up(id, keys.decisions(hour), start)
            if found is not None:
                return found
        return None

    def revoke(self, streams: Sequence[str], reason: str, note: str = "") -> int:
        """Order the nodes to end streams; returns how many orders were sent."""
        for start in range(0, len(streams), ORDERS_PER_EXCHANGE):
            self._connection.exchange(
                [
                    self._connection.script(self._order, *orders.call(order, self._lease_ms))
                    for order in self._orders(streams[start : start + ORDERS_PER_EXCHANGE], reason, note)
                ]
            )
        return len(streams)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    # -- details -------------------------------------------------------------------------------------------------

    def _orders(self, streams: Iterable[str], reason: str, note: str) -> Iterable[Order]:
        for stream in streams:
            order = f"{self._name}-{next(self._numbers)}"
            yield Order(order, stream.partition("-")[0], stream, reason, note[:NOTE_CHARS])

    def _now(self) -> int:
        [(seconds, micros)] = self._connection.exchange([("TIME",)])
        return int(seconds) * 1000 + int(micros) // 1000

    def _read_snapshot(self) -> Snapshot:
        (now, fleet), living, users, tenants = self._connection.exchange(
            [
                self._connection.script(self._usage, [keys.fleet()]),
                ("ZRANGE", keys.nodes(), 0, NODES_AT_MOST - 1, "WITHSCORES"),
                ("ZREVRANGE", keys.top(Scope.USER), 0, TOP_ROWS - 1, "WITHSCORES"),
                ("ZREVRANGE", keys.top(Scope.TENANT), 0, TOP_ROWS - 1, "WITHSCORES"),
            ]
        )
        nodes = self._nodes([node for node, deadline in scores_of(living) if deadline > now])
        tops = self._verified({Scope.USER: scores_of(users), Scope.TENANT: scores_of(tenants)})
        return Snapshot(
            at=now,
            fleet_in_use=fleet,
            nodes=nodes,
            tops={**tops, Scope.ADDRESS: top_addresses(nodes)},
            rejections=self._spans.rejections(now, SPAN_MINUTES),
            tenant_causes=self._spans.tenant_causes(now, SPAN_MINUTES),
            latest=self._latest(now, now + LATE_MS, LATEST)[:LATEST],
            history=self._spans.history(now, SPAN_MINUTES),
        )

    def _nodes(self, living: Sequence[str]) -> list[NodeRow]:
        replies = self._connection.exchange([("HGETALL", keys.node(node)) for node in living])
        rows = (node_row(node, fields_of(reply)) for node, reply in zip(living, replies, strict=True))
        return sorted((row for row in rows if row is not None), key=lambda row: (row.host, row.started_at, row.id))

    def _verified(self, tops: dict[Scope, list[tuple[str, int]]]) -> dict[Scope, Sequence[Holder]]:
        """The tops with their first rows counted anew: an index may be a heartbeat behind."""
        first = [(scope, subject) for scope, rows in tops.items() for subject, _ in rows[:VERIFIED]]
        counts = dict(zip(first, self.in_use(first), strict=True))
        found: dict[Scope, Sequence[Holder]] = {}
        for scope, rows in tops.items():
            holders = [Holder(scope, subject, counts.get((scope, subject), count)) for subject, count in rows]
            found[scope] = most_first(holders)
        return found

    def _latest(self, now: int, before: int, count: int) -> list[DecisionRow]:
        """The last `count` decisions before an instant; each was written after it was taken, mostly within a second."""
        read_to = min(now, before + LATE_MS)
        hour = read_to // HOUR_MS
        end = "+" if read_to == now else str(read_to)  # what a snapshot counts may have been written after its `now`
        found: dict[str, DecisionRow] = {}
        while read_to > hour * HOUR_MS and sum(row.at > read_to for row in found.values()) < count:
            [entries] = self._connection.exchange([latest_entries(hour, end, 2 * count)])
            found |= {row.id: row for row in decisions_of(entries) if row.at < before}
            is_more = entries and len(entries) == 2 * count
            read_to, end = (written_ms(entries[-1]), f"({entries[-1][0]}") if is_more else (hour * HOUR_MS, "")
        if sum(row.at > read_to for row in found.values()) < count:  # what is still unread may be later than the rest
            earlier = range(hour - 1, now // HOUR_MS - HOURS_KEPT - 1, -1)
            for entries in self._connection.exchange([latest_entries(each, "+", count) for each in earlier]):
                found |= {row.id: row for row in decisions_of(entries) if row.at < before}
        return latest_first(found.values(), count)

    def _look_up(self, id: str, key: str, start: str) -> DecisionRow | None:
        for _ in range(LOOKUP_READS):
            [entries] = self._connection.exchange([("XRANGE", key, start, "+", "COUNT", DECISIONS_PER_READ)])
            for row in decisions_of(entries):
                if row.id == id:
                    return row
            if len(entries) < DECISIONS_PER_READ:
                return None
            start = f"({entries[-1][0]}"
        return None


def latest_entries(hour: int, end: str, count: int) -> Command:
    """The command that reads the latest entries of an hour's decisions."""
    return ("XREVRANGE", keys.decisions(hour), end, "-", "COUNT", count)


def written_ms(entry: tuple[str, Any]) -> int:
    """When an entry of a stream was written."""
    return int(entry[0].partition("-")[0])


def decisions_of(entries: Sequence[tuple[str, Any]]) -> Iterator[DecisionRow]:
    """The rows of the entries of a stream, as far as this version can read them."""
    for _, fields in entries:
        row = decision_row(fields_of(fields).get("d", ""))
        if row is not None:
            yield row
