"""Slots in Redis or Valkey: the scripts of `lua/`, sent over two connections (decisions; renewals and orders).

Decisions use the store's time and the limits that travel with the call. An acquire or a release whose answer was never
seen is settled by `unsure.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from sse_limits.core.slots import (
    Admitted,
    Adopted,
    Claim,
    Full,
    Held,
    Renewed,
)

from . import scripts
from .base import OnOrder, Order, StoreUnavailable
from .batches import Batch
from .calls import (
    Args,
    Renewal,
    acquire_args,
    adoption,
    held_by,
    keys_of,
    limits,
    peek_args,
    renewed,
    swap_args,
    verdict,
)
from .keys import probe
from .orders import OrderDesk
from .servers import connect
from .unsure import Unsure

PROBE_BYTES = 8
KEEPS_ALL = "noeviction"

T = TypeVar("T")


class RedisStore:
    """A slot store on one Redis or Valkey server (6.2 or later), perhaps behind Sentinel. Used on one event loop."""

    name = "redis"

    def __init__(self, url: str, *, lease_seconds: float, timeout_seconds: float, slow_timeout_seconds: float) -> None:
        self._servers = connect(url)
        self._lease_ms = round(lease_seconds * 1000)
        self._timeout_seconds = timeout_seconds
        self._decisions = self._servers.pipeline(timeout_seconds)
        self.latency = self._decisions.latency
        self._upkeep = self._servers.pipeline(slow_timeout_seconds)
        self._desk = OrderDesk(self._servers, self._decisions, self._upkeep, self._lease_ms)
        self._unsure = Unsure(self._send_release)
        self._adopting: set[str] = set()
        self._name = os.urandom(PROBE_BYTES).hex()
        self._acquire = scripts.load("acquire")
        self._swap = scripts.load("swap")
        self._peek = scripts.load("peek")
        self._renew = scripts.load("renew")
        self._adopt = scripts.load("adopt")
        self._release = scripts.load("release")
        self._usage = scripts.load("usage")

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none. Cancelled or unanswered, it is released by the store itself."""
        args: Args = (*acquire_args(claim, self._lease_ms), *limits(claim))
        return await self._decided(self._acquire, claim, args)

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user. Cancelled or unanswered, it is released by the store itself."""
        args: Args = (*swap_args(claim, self._lease_ms, victim), *limits(claim))
        return await self._decided(self._swap, claim, args)

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make is room."""
        return verdict(await self._decisions.run(self._peek, keys_of(claim), [*peek_args(claim), *limits(claim)]))

    def release(self, held: Held) -> None:
        """Give the slots back as soon as the store can be told; never waits, never raises, may be called twice."""
        if held.stream in self._adopting:  # what was not answered may still arrive, and behind this
            self._adopting.discard(held.stream)
            self._doubt(held)
        for part in self._parts(held):
            self._unsure.release(part)

    def renew(self, batch: Batch) -> Awaitable[Renewed]:
        """Extend leases; those that had expired or are missing are reported lost and not revived."""
        if not batch.leases:
            return answered(Renewed(0, frozenset()))
        if batch.prepared is None:
            batch.prepared = Renewal.of(batch.leases.values(), self._renew, self._lease_ms)
        prepared: Renewal = batch.prepared
        return renewed(self._upkeep.send(prepared.packed(batch.deadline), self._renew), prepared.streams)

    async def adopt(self, node: str, leases: Sequence[tuple[Held, int]]) -> Adopted:
        """Add what `node` holds, and since when (epoch ms), without asking for a limit."""
        self._adopting.update(held.stream for held, _ in leases)
        is_answered = False
        try:
            adopted = await self._add(node, leases)
            is_answered = True
        finally:
            for held, _ in leases:
                if held.stream not in self._adopting:  # released meanwhile, and perhaps before it was added
                    self._doubt(held)
                elif is_answered:
                    self._adopting.discard(held.stream)
        return adopted

    async def probe(self) -> None:
        """Write a key that nobody reads: a demoted server and one out of memory answer to everything else."""
        found = self._decisions.one_each(lambda number: probe(f"{self._name}:{number}"))
        await gather(self._decisions.call(("SET", key, "", "PX", self._lease_ms)) for key in found)

    async def eviction_policy(self) -> str | None:
        """By which policy the server drops keys that have not expired when its memory is full; None: it never does."""
        said = await gather(self._decisions.each(("INFO", "memory")))
        return next(filter(None, map(eviction_policy, said)), None)

    def order(self, order: Order, ack_seconds: float) -> asyncio.Future[bool]:
        """Send an order; the result says whether somebody listened and confirmed in time."""
        return self._desk.order(order, ack_seconds)

    async def orders(self) -> list[Order]:
        """Read the orders to the listening node that came since the last call: the slow path, on each heartbeat."""
        return await self._desk.unread()

    def listen(self, node: str, on_order: OnOrder) -> None:
        """Deliver orders to `node` as they come: the fast path. Called once, from the event loop."""
        self._desk.listen(node, on_order)

    def confirm(self, order: Order) -> None:
        """Tell the asking node that the stream has ended; never waits."""
        self._desk.confirm(order)

    async def usage(self, keys: Sequence[str]) -> list[int]:
        """Count the living leases of each key."""
        _, *counts = await self._decisions.run(self._usage, keys, ())
        return [int(count) for count in counts]

    async def aclose(self) -> None:
        """Send what is still to be released, then close connections and tasks."""
        await self._desk.aclose()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_seconds):
                await self._decisions.idle()
                await self._unsure.idle()
        await self._unsure.aclose()
        await self._decisions.aclose()
        await self._upkeep.aclose()
        await self._servers.aclose()

    async def _decided(self, script: scripts.Script, claim: Claim, args: Args) -> Admitted | Full:
        """Run an acquire or a swap; without an answer the slots may be held all the same."""
        try:
            return verdict(await self._decisions.run(script, keys_of(claim), args))
        except (StoreUnavailable, asyncio.CancelledError):
            self._doubt(held_by(claim))
            raise

    async def _add(self, node: str, leases: Sequence[tuple[Held, int]]) -> Adopted:
        keys, slot_sets, args = adoption(leases)
        now, *counts = await self._upkeep.run(self._adopt, keys, (self._lease_ms, node, *args))
        return Adopted(now, dict(zip(slot_sets, counts, strict=True)))

    def _doubt(self, held: Held) -> None:
        for part in self._parts(held):
            self._unsure.doubt(part)

    def _parts(self, held: Held) -> Iterable[Held]:
        """What one script may release together."""
        return (held,)

    def _send_release(self, held: Held) -> asyncio.Future[Any]:
        keys = held.keys if held.age is None else (*held.keys, held.age)
        return self._decisions.run(self._release, keys, (held.stream, len(held.keys)))


async def gather(replies: Iterator[asyncio.Future[Any]] | Any) -> list[Any]:
    """Wait for every reply, then raise the first fault, so that no exception stays unread."""
    answers = await asyncio.gather(*replies, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def eviction_policy(said: bytes) -> str | None:
    """Read INFO memory: the policy, where the server may drop keys at all."""
    facts = dict(line.split(":", 1) for line in said.decode().split("\r\n") if ":" in line)
    policy = facts.get("maxmemory_policy", KEEPS_ALL)
    return None if policy == KEEPS_ALL or facts.get("maxmemory") == "0" else policy


async def answered(answer: T) -> T:
    """An answer that needs no question."""
    return answer
