"""What every slot store promises, and the one fault that it may raise.

A rejection is a value (`Full`); `StoreUnavailable` means that nobody knows: no answer came in time, or it was an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sse_limits.core.histogram import Histogram
from sse_limits.core.slots import Admitted, Adopted, Claim, Full, Held, Renewed

from .batches import Batch


class SseLimitsError(Exception):
    """The root of every fault that this package raises."""


class StoreUnavailable(SseLimitsError):
    """The slot store did not answer in time, could not be reached, or refused to write."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one process asks of a node: to end `stream` for `reason`. `id` begins with the asker's name.

    `note` is an operator's word to the client.
    """

    id: str
    node: str
    stream: str
    reason: str
    note: str = ""


OnOrder = Callable[[Order], None]

LATENCY_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
LATEST_EXCHANGES = 256


class Latency:
    """How long the exchanges of a store's decisions took: all of them by bounds, the latest one by one."""

    def __init__(self) -> None:
        self.seconds = Histogram(LATENCY_BOUNDS)
        self._latest: deque[float] = deque(maxlen=LATEST_EXCHANGES)

    def note(self, seconds: float) -> None:
        """Note one exchange."""
        self.seconds.observe(seconds)
        self._latest.append(seconds)

    def quantiles_ms(self) -> tuple[float, float]:
        """The median and the 99th percentile of the latest exchanges."""
        found = sorted(self._latest)
        if not found:
            return 0.0, 0.0
        return found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000


class SlotStore(Protocol):
    """Where slots live. One instance serves one event loop; every call has a deadline and raises `StoreUnavailable`."""

    name: str
    latency: Latency

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none. Cancelled or unanswered, it is released by the store itself."""

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user. Cancelled or unanswered, it is released by the store itself."""

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make is room."""

    def release(self, held: Held) -> None:
        """Give the slots back as soon as the store can be told; never waits, never raises, may be called twice."""

    def renew(self, batch: Batch) -> Awaitable[Renewed]:
        """Begin to extend leases; those that had expired or are missing are reported lost and not revived."""

    async def adopt(self, node: str, leases: Sequence[tuple[Held, int]]) -> Adopted:
        """Add what `node` holds, and since when (epoch ms), without asking for a limit. At most 100 leases a call."""

    async def probe(self) -> None:
        """Try whether the store answers and takes writes."""

    async def eviction_policy(self) -> str | None:
        """By which policy the server drops keys that have not expired when its memory is full; None: it never does."""

    def order(self, order: Order, ack_seconds: float) -> asyncio.Future[bool]:
        """Send an order, ahead of later calls; the result says whether somebody listened and confirmed in time."""

    async def orders(self) -> list[Order]:
        """Read the orders to the listening node that came since the last call: the slow path, on each heartbeat."""

    def listen(self, node: str, on_order: OnOrder) -> None:
        """Deliver orders to `node` as they come: the fast path. Called once, from the event loop."""

    def confirm(self, order: Order) -> None:
        """Tell the asking node that the stream has ended; never waits."""

    async def usage(self, keys: Sequence[str]) -> list[int]:
        """Count the living leases of each key."""

    async def aclose(self) -> None:
        """Send what is still to be released, then close connections and tasks."""
