"""What every slot store promises, and the one fault that it may raise.

A rejection is a value (`Full`); `StoreUnavailable` means that nobody knows: no answer came in time, or it was an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sse_limits.core.slots import Admitted, Claim, Full, Held, Renewed


class SseLimitsError(Exception):
    """The root of every fault that this package raises."""


class StoreUnavailable(SseLimitsError):
    """The slot store did not answer in time, could not be reached, or refused to write."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one node asks of another: to end `stream` for `reason`. `id` begins with the asking node's name."""

    id: str
    node: str
    stream: str
    reason: str


OnOrder = Callable[[Order], None]


class SlotStore(Protocol):
    """Where slots live. One instance serves one event loop; every call has a deadline and raises `StoreUnavailable`."""

    name: str

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none. Cancelled or unanswered, it is released by the store itself."""

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user. Cancelled or unanswered, it is released by the store itself."""

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make is room."""

    def release(self, held: Held) -> None:
        """Give the slots back as soon as the store can be told; never waits, never raises, may be called twice."""

    async def renew(self, leases: Sequence[Held]) -> Renewed:
        """Extend leases; those that had expired or are missing are reported lost and not revived."""

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
