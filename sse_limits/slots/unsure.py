"""Slots that may be held although nobody knows: given back until the store has surely done so.

An acquire or a release whose answer was never seen goes on a bounded list, and is released in later batches until two
releases, the second sent after the first one's answer, have been answered: after a stall a buffered acquire can run
behind the first of them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sse_limits.core.slots import Held

UNSURE_AT_MOST = 10_000
UNSURE_BATCH = 500
RETRY_SECONDS = (0.05, 1.0)

Doubt = tuple[float, Held]  # until when it matters (loop time), and what may be held


class Unsure:
    """The list of one store. Owned by one event loop."""

    def __init__(self, send_release: Callable[[Held], asyncio.Future[Any]], lease_seconds: float) -> None:
        self._send_release = send_release
        self._lease_seconds = lease_seconds
        self._doubts: deque[Doubt] = deque(maxlen=UNSURE_AT_MOST)
        self._settling: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be given back."""
        return self._settling is None

    def release(self, held: Held) -> None:
        """Give slots back; without an answer they are on the list."""
        self._send_release(held).add_done_callback(lambda reply: self._check(reply, held))

    def doubt(self, held: Held) -> None:
        """Note what may be held; after the lease it has ended by itself."""
        self._doubts.append((asyncio.get_running_loop().time() + self._lease_seconds, held))
        if self._settling is None and not self._is_closed:
            self._settling = asyncio.get_running_loop().create_task(self._settle(), context=contextvars.Context())

    async def idle(self) -> None:
        """Wait until the list is empty."""
        if self._settling is not None:
            await asyncio.wait([self._settling])

    async def aclose(self) -> None:
        """Give up what is left to its lease."""
        self._is_closed = True
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.wait([self._settling])

    def _check(self, reply: asyncio.Future[Any], held: Held) -> None:
        if reply.cancelled() or reply.exception() is not None:
            self.doubt(held)

    async def _settle(self) -> None:
        delay, longest = RETRY_SECONDS
        try:
            while self._doubts:
                batch = [self._doubts.popleft() for _ in range(min(UNSURE_BATCH, len(self._doubts)))]
                done, failed = await self._release_all(batch)
                _, failed_again = await self._release_all(done)
                now = asyncio.get_running_loop().time()
                failed = [entry for entry in failed + failed_again if entry[0] > now]
                if failed:
                    self._doubts.extend(failed)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, longest)
        finally:
            self._settling = None

    async def _release_all(self, batch: Sequence[Doubt]) -> tuple[list[Doubt], list[Doubt]]:
        """Release what is listed; return what was answered and what was not."""
        replies = await asyncio.gather(*(self._send_release(held) for _, held in batch), return_exceptions=True)
        done = [entry for entry, reply in zip(batch, replies, strict=True) if not isinstance(reply, BaseException)]
        failed = [entry for entry, reply in zip(batch, replies, strict=True) if isinstance(reply, BaseException)]
        return done, failed
