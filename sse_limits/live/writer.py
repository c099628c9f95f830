"""Once a second, what a node has to tell: made from what is there, handed to the board, never in anybody's way.

A write that fails loses nothing that matters: what had changed is worked out again, counts keep their batch number, and
details wait as far as there is room. No decision ever waits for a write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Protocol

from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.memory import epoch_ms

from .diff import Change, Load, Rotation, StreamDiff
from .journal import Journal
from .report import Batch, Report, Sink
from .rows import NodeRow, StreamRow

log = logging.getLogger("sse_limits.live.writer")

EVERY_SECONDS = 1.0
STREAMS_PER_WRITE = 2000
SUBJECTS_PER_WRITE = 1000
SUBJECTS_WAITING = 20_000
ROWS_IN_A_ROW = 100
LEAVE_SECONDS = 1.0


class Source(Protocol):
    """The node as the writer sees it."""

    def loads(self) -> Mapping[str, Load]:
        """The lanes of the open streams by stream id."""

    def describe(self, stream: str, load: Load) -> StreamRow | None:
        """An open stream's row; None when it has gone meanwhile."""

    def row(self) -> NodeRow:
        """The node's own row, as it is now."""

    def held(self) -> Collection[str]:
        """The keys of the slot sets in which this node holds something."""


class Writer:
    """Writes one node's reports. Owned by one event loop; `run` is a task of the node."""

    def __init__(self, source: Source, journal: Journal, sink: Sink, heartbeat_seconds: float) -> None:
        self._source = source
        self._journal = journal
        self._sink = sink
        self._diff = StreamDiff(STREAMS_PER_WRITE)
        steps = round(heartbeat_seconds / EVERY_SECONDS)
        self._streams_again = Rotation(steps)
        self._subjects_again = Rotation(steps)
        self._touched: dict[str, None] = {}
        self._batch: Batch | None = None
        self._batches = 0
        self._is_failing = False

    async def run(self) -> None:
        """Write once a second, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.write()
            except StoreUnavailable as exc:
                if not self._is_failing:  # no warning: who waits for the store says that it is away, and once
                    log.info("the display's data cannot be written (%s); streams and limits go on", exc)
                self._is_failing = True
            else:
                if self._is_failing:
                    log.info("the display's data is written again")
                self._is_failing = False

    async def write(self) -> None:
        """Make one report and hand it over. Raises `StoreUnavailable`."""
        loads = self._source.loads()
        change = self._diff.change(loads, self._streams_again.take(loads))
        rows = await self._rows(change, loads)
        subjects = self._subjects()
        details = self._journal.take_details()
        batch = self._next_batch()  # before the row, whose counters have it then
        report = Report(
            row=self._source.row(),
            rows=rows,
            gone=change.gone,
            touched=subjects,
            batch=batch,
            decisions=details,
            admitted=self._journal.admitted.total(),
        )
        try:
            now = await self._sink.write(report)
        except BaseException:
            self._journal.give_back(details)
            raise
        self._journal.clock_offset_ms = now - epoch_ms()
        self._diff.commit(change, loads)
        self._batch = None
        for key in subjects:
            self._touched.pop(key, None)

    async def aclose(self) -> None:
        """Say what is left, take the node from the board, and close; waits for a second at most."""
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.write()
                await self._sink.leave(self._source.row().id)
        await self._sink.aclose()

    async def _rows(self, change: Change, loads: Mapping[str, Load]) -> list[StreamRow]:
        rows = []
        for at, stream in enumerate(change.changed, start=1):
            row = self._source.describe(stream, loads[stream])
            if row is not None:
                rows.append(row)
            if at % ROWS_IN_A_ROW == 0:
                await asyncio.sleep(0)
        return rows

    def _subjects(self) -> list[str]:
        """The slot sets to count now: those that have changed here first, then some of those that are held."""
        fresh = self._journal.touched
        self._touched.update(dict.fromkeys(filter(keys.is_of_user_or_tenant, fresh)))
        fresh.clear()
        for key in list(self._touched)[: max(0, len(self._touched) - SUBJECTS_WAITING)]:
            del self._touched[key]  # who still holds something is counted within a heartbeat; the others are swept
        again = self._subjects_again.take(self._source.held())
        wanted = dict.fromkeys(list(self._touched)[:SUBJECTS_PER_WRITE])
        wanted.update(dict.fromkeys(filter(keys.is_of_user_or_tenant, again)))
        return list(wanted)

    def _next_batch(self) -> Batch | None:
        """The batch whose writing is not known yet, else what has been counted since."""
        if self._batch is None:
            counts = self._journal.take_counts()
            if counts:
                self._batches += 1
                self._batch = Batch(self._batches, counts)
        return self._batch


class LagMeter:
    """How late the event loop is: a timer that should fire ten times a second, and does not always."""

    def __init__(self, every_seconds: float = 0.1, remembered_seconds: float = 5.0) -> None:
        self._every_seconds = every_seconds
        self._latest: deque[float] = deque(maxlen=max(1, round(remembered_seconds / every_seconds)))

    @property
    def worst_ms(self) -> float:
        """The longest delay of the last seconds."""
        return max(self._latest, default=0.0) * 1000

    async def run(self) -> None:
        """Measure, until cancelled."""
        while True:
            due = time.perf_counter() + self._every_seconds
            await asyncio.sleep(self._every_seconds)
            self._latest.append(max(0.0, time.perf_counter() - due))
