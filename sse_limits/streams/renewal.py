"""The heartbeat of a node: it renews the leases of its streams, and judges those that the store has lost.

Orders are read first: a stream that was ordered to end does. Of the others, by what the store last acknowledged:
- its deadline lies ahead: the store has lost its memory (flush, failover, eviction of keys). The stream is *adopted*:
  added again without asking for a limit.
- it has passed, and this process stood still for more than a heartbeat: others may have taken the place. The stream
  goes through the gate again, or ends.
- it has passed otherwise: the store was away. The stream is adopted.
So no stream ends because of the store, and the truth is rebuilt with one heartbeat. While the store is away it is
probed; when it takes writes again the node first renews and adopts, and asks it for decisions only then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.slots import Renewed
from sse_limits.limiter import TOLD, Lease
from sse_limits.slots.base import SlotStore, StoreUnavailable
from sse_limits.slots.batches import Batch, chunked

from .running import RunningStream

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("sse_limits.streams.renewal")

READMIT_AT_ONCE = 100
BATCHES_AT_ONCE = 16  # each answer wakes this process; what else it does for them is shared by so many
ADOPTED_AT_ONCE = 100
TICK_SECONDS = 0.25
T = TypeVar("T")


class Lost(NamedTuple):
    """A stream whose lease the store no longer has, and whether the store should still have it."""

    stream: RunningStream
    lease: Lease
    is_forgotten: bool


class Renewal:
    """Renews a node's leases. One per node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._limiter = node.limiter
        self._lease_ms = round(node.limiter.conf.lease_seconds * 1000)
        self._one_at_a_time = asyncio.Lock()
        self.still = Standstill(min(TICK_SECONDS, node.limiter.conf.heartbeat_seconds / 4))

    async def run(self) -> None:
        """Look for the store, then renew with every heartbeat."""
        await self._limiter.availability.greet()
        while True:
            await asyncio.sleep(self._limiter.conf.heartbeat_seconds)
            await self.beat()

    async def look_for_the_store(self) -> None:
        """While the store is away, probe it; when it is back, let it know what is held, and ask it again."""
        availability = self._limiter.availability
        while True:
            await availability.went_away.wait()
            await asyncio.sleep(availability.circuit.pause_seconds)
            if await availability.probe() and await self.beat():
                availability.came_back()
                await self.beat()  # who was admitted here while the others were adopted

    async def beat(self) -> bool:
        """One heartbeat; whether the store has answered all of it."""
        async with self._one_at_a_time:
            try:
                await self._renew()
            except StoreUnavailable as exc:
                log.debug("leases were not renewed: %s", exc)
                self._limiter.availability.failed(exc)
                return False
            return True

    async def _renew(self) -> None:
        limiter, node = self._limiter, self._node
        lost = await self._renew_batches()
        while orders := await limiter.store.orders():
            for order in orders:
                node.carry_out(order)
        is_frozen = self.still.longest_seconds > limiter.conf.heartbeat_seconds
        lost = [each for each in lost if each.stream.reason is None and self._is_held(each)]
        gated = [each for each in lost if is_frozen and not each.is_forgotten]
        await self._adopt([each for each in lost if not is_frozen or each.is_forgotten])
        await self._send_through_the_gate(gated)
        self.still.forget()
        await limiter.availability.count_nodes()

    async def _renew_batches(self) -> list[Lost]:
        limiter = self._limiter
        lost = []
        async for batch, renewed in renew_in_parts(limiter.store, list(limiter.batches)):
            limiter.journal.renewals += len(batch.leases) - len(renewed.lost)
            lost += [
                Lost(stream, lease, renewed.now < max(lease.deadline, batch.deadline if lease.deadline else 0))
                for name in renewed.lost
                if (stream := self._node.find(name)) is not None and (lease := stream.lease) is not None
            ]
            batch.deadline = renewed.now + self._lease_ms
        limiter.journal.leases_lost += len(lost)
        return lost

    async def _adopt(self, lost: Sequence[Lost]) -> None:
        """Let the store know of streams that it has lost, whatever their limits: none ends because of the store."""
        limiter = self._limiter
        adopted = over = 0
        for part in chunked(lost, ADOPTED_AT_ONCE):
            leases = [each.lease for each in part if self._is_held(each)]
            if leases:
                for lease in leases:
                    lease.deadline = lease.deadline or TOLD
                found = await limiter.store.adopt(limiter.node, [(lease.held, lease.since) for lease in leases])
                for lease in leases:
                    lease.deadline = found.now + self._lease_ms
                adopted += len(leases)
                over += sum(limiter.is_over_limit(lease, found.in_use) for lease in leases)
        if adopted:
            limiter.journal.leases_adopted += adopted
            limiter.journal.leases_adopted_over += over
            log.info("the slot store did not know %d open streams: adopted, %d of them over a limit", adopted, over)

    async def _send_through_the_gate(self, lost: Sequence[Lost]) -> None:
        for each in lost:  # all at once, before any of them asks again: what is lost does not count as held
            self._limiter.release(each.lease)
        for part in chunked(lost, READMIT_AT_ONCE):
            await asyncio.gather(*(self._readmit(each.stream) for each in part))

    async def _readmit(self, stream: RunningStream) -> None:
        if stream.lease is None or stream.is_gone or stream.reason is not None:
            return
        node = self._node
        node.remove(stream)
        refused = await self._limiter.readmit(stream.lease)
        if isinstance(refused, Reject) and refused.reason is Reason.STORE:
            node.add(stream)  # nobody knows: the stream goes on, and the next heartbeat asks again
        elif isinstance(refused, Reject):
            log.info("a lease was lost and its limit is full: %s", refused.reason)
            stream.end(Reason.LEASE_LOST)
        elif stream.is_gone:
            self._limiter.release(stream.lease)
        else:
            node.add(stream)

    def _is_held(self, lost: Lost) -> bool:
        return self._node.find(lost.lease.held.stream) is lost.stream


class Standstill:
    """How long this process stood still since it was last asked to forget: stopped, starved, or its host asleep."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._longest = 0.0
        self._ticked_at = time.monotonic()

    @property
    def longest_seconds(self) -> float:
        """The longest time without a tick, the one that is due now included."""
        return max(self._longest, time.monotonic() - self._ticked_at)

    def forget(self) -> None:
        """Begin anew."""
        self._longest = 0.0
        self._ticked_at = time.monotonic()

    async def run(self) -> None:
        """Tick, until cancelled."""
        while True:
            await asyncio.sleep(self._every_seconds)
            now = time.monotonic()
            self._longest = max(self._longest, now - self._ticked_at)
            self._ticked_at = now


async def renew_in_parts(store: SlotStore, batches: Sequence[Batch]) -> AsyncIterator[tuple[Batch, Renewed]]:
    """Renew some batches at a time, so that neither the server nor this event loop is busy for long at a stretch."""
    for part in chunked(batches, BATCHES_AT_ONCE):
        calls = []
        for batch in part:
            if batch.prepared is None:  # packing one takes the better part of a millisecond
                await asyncio.sleep(0)
            calls.append(store.renew(batch))
        for answer in zip(part, await all_of(calls), strict=True):
            yield answer


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Begin all, wait for every answer, then raise the first fault, so that none stays unread."""
    answers: list[T] = []
    fault: Exception | None = None
    for call in calls:
        try:
            answers.append(await call)
        except StoreUnavailable as exc:
            fault = fault or exc
    if fault is not None:
        raise fault
    return answers
