"""A node's reports into Redis or Valkey: a connection of their own, one batch a second, every key with a time to live.

What must not be mixed up with another node's writing (lists of the living, indexes, counts) is a script with the
store's time; the rest is plain commands. Nothing here is read for a decision.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sse_limits.core.slots import Scope
from sse_limits.slots import keys, scripts
from sse_limits.slots.batches import chunked
from sse_limits.slots.redis import gather
from sse_limits.slots.servers import connect

from .board import TOP_ROWS
from .codec import cause_text, decision_text, node_fields, stream_text
from .derived import AdmittedInSpan
from .holders import HolderReader
from .remains import RedisRemains
from .report import Batch, Report
from .rows import DecisionRow, StreamRow

SPAN_SECONDS = (10, 60)
SPANS_KEPT_MS = (3_700_000, 48 * 3_600_000 + 120_000)
HISTORY_KEPT_MS = 2 * 3_600_000
DECISIONS_KEPT_MS = 25 * 3_600_000
DECISIONS_PER_HOUR = 20_000
HOUR_MS = 3_600_000
KEYS_PER_COUNT = 250
ROWS_PER_COMMAND = 200
ROWS_IN_A_ROW = 100
SUBJECTS_PER_COMMAND = 500
SWEPT_AT_ONCE = 200
TENANTS_PER_BATCH = 500

Command = tuple[Any, ...]


class RedisSink:
    """Writes the reports of one node. Owned by one event loop."""

    def __init__(self, url: str, *, lease_seconds: float, timeout_seconds: float) -> None:
        self._servers = connect(url)
        self._pipeline = self._servers.pipeline(timeout_seconds)
        self._lease_ms = round(lease_seconds * 1000)
        self._holders = HolderReader(self._pipeline)
        self.remains = RedisRemains(self._pipeline)
        self._admitted = AdmittedInSpan()
        self._alive = scripts.load("alive")
        self._usage = scripts.load("usage")
        self._top = scripts.load("top")
        self._count = scripts.load("count")

    async def write(self, report: Report) -> int:
        """Read what the report needs, then write it. Raises `StoreUnavailable`."""
        node = report.row.id
        rows = await self._encoded(report.rows)
        touched = report.touched
        together = [[touched[at] for at in group] for group in self._pipeline.groups(touched)]
        chunks = [chunk for group in together for chunk in chunked(group, KEYS_PER_COUNT)]
        (now, _), *counted = await gather(
            [
                self._pipeline.run(self._alive, [keys.nodes()], (node, self._lease_ms)),
                *(self._pipeline.run(self._usage, chunk, ()) for chunk in chunks),
            ]
        )
        counts = {
            keys.subject_of(key): int(count)
            for chunk, (_, *found) in zip(chunks, counted, strict=True)
            for key, count in zip(chunk, found, strict=True)
        }
        decisions = await self._holders.tell(report.decisions, now)
        writes = [self._pipeline.call(command) for command in self._commands(report, rows, decisions, now)]
        writes += [self._run_top(scope, counts) for scope in (Scope.USER, Scope.TENANT)]
        if report.batch is not None:
            writes.append(self._run_count(report.row.name, report.batch, now))
        await gather(writes)
        return int(now)

    async def leave(self, node: str) -> None:
        """Forget a node that ends. Raises `StoreUnavailable`."""
        commands: list[Command] = [
            ("ZREM", keys.nodes(), node),
            ("UNLINK", keys.node(node)),
            ("UNLINK", keys.node_streams(node)),
        ]
        await gather(self._pipeline.call(command) for command in commands)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pipeline.aclose()
        await self._servers.aclose()

    async def _encoded(self, rows: Sequence[StreamRow]) -> list[str]:
        """Ids and texts in turn. The loop breathes in between: at a start there are thousands."""
        found: list[str] = []
        for at, row in enumerate(rows, start=1):
            found += (row.id, stream_text(row))
            if at % ROWS_IN_A_ROW == 0:
                await asyncio.sleep(0)
        return found

    def _commands(
        self, report: Report, rows: Sequence[str], decisions: Sequence[DecisionRow], now: int
    ) -> Iterator[Command]:
        node, row = keys.node(report.row.id), report.row
        fields = node_fields(row, now)
        yield ("HSET", node, *(part for pair in fields.items() for part in pair))
        yield ("PEXPIRE", node, self._lease_ms)
        streams = keys.node_streams(row.id)
        for part in chunked(rows, 2 * ROWS_PER_COMMAND):
            yield ("HSET", streams, *part)
        for gone in chunked(report.gone, SUBJECTS_PER_COMMAND):
            yield ("HDEL", streams, *gone)
        yield ("PEXPIRE", streams, self._lease_ms)
        start = now // 10_000 * 10
        value = f"{row.open_sse}|{row.open - row.open_sse}|{self._admitted.count(start, report.admitted)}"
        yield ("HSET", keys.history(start), row.name, value)
        yield ("PEXPIRE", keys.history(start), HISTORY_KEPT_MS)
        hour = keys.decisions(now // HOUR_MS)
        for decision in decisions:
            yield ("XADD", hour, "MAXLEN", "~", DECISIONS_PER_HOUR, "*", "d", decision_text(decision))
        if decisions:
            yield ("PEXPIRE", hour, DECISIONS_KEPT_MS)

    def _run_top(self, scope: Scope, counts: dict[tuple[Scope, str], int]) -> Any:
        mine = [(subject, count) for (of, subject), count in counts.items() if of is scope]
        args = (self._lease_ms, SWEPT_AT_ONCE, *(part for pair in mine for part in pair))
        return self._pipeline.run(self._top, [keys.top(scope), keys.top_seen(scope)], args)

    def _run_count(self, name: str, batch: Batch, now: int) -> Any:
        causes: Counter[str] = Counter()
        tenants: Counter[str] = Counter()
        for (cause, tenant), count in batch.counts.items():
            text = cause_text(cause)
            causes[text] += count
            tenants[f"{tenant or ''}|{text}"] += count
        spans = [keys.rejected(seconds, now // 1000 // seconds * seconds) for seconds in SPAN_SECONDS]
        minute = keys.rejected_tenants(now // 60_000 * 60)
        args: list[str | int] = [batch.number, 2 * self._lease_ms, *SPANS_KEPT_MS, TOP_ROWS, len(causes)]
        pairs = [*causes.items(), *tenants.most_common(TENANTS_PER_BATCH)]
        args += [part for pair in pairs for part in pair]
        return self._pipeline.run(self._count, [keys.rejected_written(name), *spans, minute], args)
