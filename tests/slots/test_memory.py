"""What only the memory store has: a clock that it is given, and maps that must not grow."""

from __future__ import annotations

import asyncio

from sse_limits.core.slots import Admitted, SlotModel
from sse_limits.slots.base import Order
from sse_limits.slots.batches import Batch
from sse_limits.slots.memory import MemoryStore, epoch_ms

from .backends import ask, held, in_use


class Clock:
    def __init__(self) -> None:
        self.now = epoch_ms()

    def __call__(self) -> int:
        return self.now


async def test_a_lease_ends_when_the_clock_says_so() -> None:
    clock = Clock()
    store = MemoryStore(lease_seconds=3, clock=clock)
    claim = ask("s1", {"user": 1})
    assert await store.acquire(claim) == Admitted(clock.now, in_use=(1, 1, 1))
    clock.now += 2_999
    assert await in_use(store, claim) == [1, 1, 1]
    clock.now += 1
    assert await in_use(store, claim) == [0, 0, 0]
    assert isinstance(await store.acquire(ask("s2", {"user": 1})), Admitted)


async def test_two_thousand_users_come_and_go_and_nothing_is_left() -> None:
    """B31: also what was never released is forgotten, on the first heartbeat behind its lease."""
    clock = Clock()
    store = MemoryStore(lease_seconds=3, clock=clock)
    for number in range(2000):
        claim = ask(f"s{number}", {"address": 9}, user=f"u{number}", address=f"a{number}")
        await store.acquire(claim)
        if number % 2:
            store.release(held(claim))
    clock.now += 3_000
    await store.renew(Batch())
    assert store._model == SlotModel(3_000)


async def test_an_order_that_is_no_longer_awaited_leaves_nothing() -> None:
    store = MemoryStore(lease_seconds=3)
    store.listen("n1", lambda order: None)
    order = Order("n1-1", "n1", "s1", "evicted")
    asked = store.order(order, ack_seconds=30)
    asked.cancel()
    await asyncio.sleep(0)
    store.confirm(order)
    assert store._acks == {}
