"""Slots in the memory of one process: the pure model with this process's clock. For one worker, and for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from sse_limits.core.slots import Admitted, Adopted, Claim, Full, Held, Renewed, SlotModel

from .base import Latency, OnOrder, Order
from .batches import Batch

FORGETS_PER_LEASE = 6


def epoch_ms() -> int:
    """The time of this process in epoch ms."""
    return time.time_ns() // 1_000_000


class MemoryStore:
    """A slot store that no other process sees."""

    name = "memory"

    def __init__(self, *, lease_seconds: float, clock: Callable[[], int] = epoch_ms) -> None:
        self.lease_ms = round(lease_seconds * 1000)
        self.latency = Latency()  # of an exchange that never takes place
        self._model = SlotModel(self.lease_ms)
        self._clock = clock
        self._forget_at = 0
        self._on_order: OnOrder | None = None
        self._acks: dict[str, asyncio.Future[bool]] = {}

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none."""
        return self._model.acquire(claim, self._clock())

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user."""
        return self._model.swap(claim, victim, self._clock())

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing."""
        return self._model.peek(claim, self._clock())

    def release(self, held: Held) -> None:
        """Give the slots back."""
        self._model.release(held)

    async def renew(self, batch: Batch) -> Renewed:
        """Extend leases, and now and then forget what has expired."""
        now = self._clock()
        renewed = self._model.renew(batch.leases.values(), now)
        if now >= self._forget_at:
            self._model.expire(now)
            self._forget_at = now + self.lease_ms // FORGETS_PER_LEASE
        return renewed

    async def adopt(self, node: str, leases: Sequence[tuple[Held, int]]) -> Adopted:
        """Add leases without asking for a limit."""
        return self._model.adopt(node, leases, self._clock())

    async def probe(self) -> None:
        """Nothing: this process answers."""

    async def eviction_policy(self) -> str | None:
        """Nothing is dropped."""
        return None

    def order(self, order: Order, ack_seconds: float) -> asyncio.Future[bool]:
        """Hand the order to this process, and wait for its confirmation."""
        ack: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._acks[order.id] = ack
        ack.add_done_callback(lambda _: self._acks.pop(order.id))
        if self._on_order is None:
            ack.set_result(False)
        else:
            timer = asyncio.get_running_loop().call_later(ack_seconds, partial(self._answer, order, confirmed=False))
            ack.add_done_callback(lambda _: timer.cancel())
            self.give(order)
        return ack

    def give(self, order: Order) -> None:
        """Hand an order to this process; nobody waits for its confirmation."""
        if self._on_order is not None:
            self._on_order(order)

    async def orders(self) -> list[Order]:
        """Nothing: an order is delivered when it is given."""
        return []

    def listen(self, node: str, on_order: OnOrder) -> None:
        """Deliver orders to this process."""
        self._on_order = on_order

    def confirm(self, order: Order) -> None:
        """Tell the asker that the stream has ended."""
        self._answer(order, confirmed=True)

    def _answer(self, order: Order, *, confirmed: bool) -> None:
        ack = self._acks.get(order.id)
        if ack is not None and not ack.done():
            ack.set_result(confirmed)

    async def usage(self, keys: Sequence[str]) -> list[int]:
        """Count the living leases of each key."""
        return [self._model.count(key, self._clock()) for key in keys]

    def members(self, key: str, now: int) -> list[str]:
        """The streams that hold a slot; from any thread, since copying a dict is one step."""
        return [stream for stream, deadline in self._model.members.get(key, {}).copy().items() if deadline > now]

    def ages(self, key: str) -> dict[str, int]:
        """When each stream of a user was acquired; from any thread."""
        age = self._model.ages.get(key)
        return {} if age is None else {stream: at for stream, (at, _) in age.acquired.copy().items()}

    async def aclose(self) -> None:
        """Nothing to close."""
