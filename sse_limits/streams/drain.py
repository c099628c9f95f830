"""From a stream's lane to its socket: one task a stream, which waits for nobody else.

The node's ticker watches: an idle outlet gets a keepalive, and a write that is blocked past its deadline ends the
stream (`GuardedStream.send` notes when a write began).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sse_limits.core.lane import Item, Lane
from sse_limits.live.journal import Journal

WRITE_BYTES = 32 * 1024  # what is joined into one write


class Outlet:
    """A lane and the task that empties it. Owned by one event loop.

    `keepalive` is what is sent when nothing else was for a while, None if the server pings by itself. The node's
    `journal` hears of what is dropped, and how long events were on their way.
    """

    __slots__ = ("_emit", "_journal", "_published_ms", "_waiter", "is_over", "keepalive", "lane", "written_at")

    def __init__(
        self,
        lane: Lane,
        emit: Callable[[Sequence[Any]], Awaitable[None]],
        keepalive: Item | None,
        journal: Journal,
    ) -> None:
        self.lane = lane
        self._journal = journal
        self._published_ms = 0
        self.keepalive = keepalive
        self.written_at = asyncio.get_running_loop().time()
        self.is_over = False
        self._emit = emit
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item, published_ms: int = 0) -> None:
        """Enqueue; the oldest gives way when the lane is full. Never waits. An event says when it was published."""
        self._published_ms = self._published_ms or published_ms
        self._journal.events_dropped += self.lane.put(item)
        self._wake()

    def keep_alive(self, idle_since: float) -> None:
        """Send the keepalive if nothing was written since then (loop time) and nothing waits."""
        if self.keepalive is not None and self.written_at <= idle_since and not self.lane:
            self.put(self.keepalive)

    def close(self) -> None:
        """Let `run` return."""
        self.is_over = True
        self._wake()

    async def run(self) -> None:
        """Send what is in the lane as it comes, until closed."""
        loop = asyncio.get_running_loop()
        while not self.is_over:
            if self.lane:
                published_ms, self._published_ms = self._published_ms, 0
                await self._emit(self.lane.take(WRITE_BYTES))
                self.written_at = loop.time()
                if published_ms:
                    self._journal.written(published_ms)
            else:
                self._waiter = loop.create_future()
                await self._waiter
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
