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


class Unsure:
    """The list of one store. Owned by one event loop."""

    def __init__(self, send_release: Callable[[Held], asyncio.Future[Any]]) -> None:
        self._send_release = send_release
        self._doubts: deque[Held] = deque(maxlen=UNSURE_AT_MOST)
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
        """Note what may be held: by a stalled server however late, so that no lease settles it."""
        self._doubts.append(held)
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
                if failed or failed_again:
                    self._doubts.extend(failed + failed_again)
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, longest)
        finally:
            self._settling = None

    async def _release_all(self, batch: Sequence[Held]) -> tuple[list[Held], list[Held]]:
        """Release what is listed; return what was answered and what was not."""
        replies = await asyncio.gather(*map(self._send_release, batch), return_exceptions=True)
        done = [entry for entry, reply in zip(batch, replies, strict=True) if not isinstance(reply, BaseException)]
        failed = [entry for entry, reply in zip(batch, replies, strict=True) if isinstance(reply, BaseException)]
        return done, failed
