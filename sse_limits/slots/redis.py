"""Slots in Redis or Valkey: the scripts of `lua/`, sent over two connections (decisions; renewals and orders).

Decisions use the store's time and the limits that travel with the call. An acquire or a release whose answer was never
seen is settled by `unsure.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from sse_limits.core.slots import (
    DAMPER_EVICTIONS,
    DAMPER_HOLD_MS,
    DAMPER_WINDOW_MS,
    Admitted,
    Adopted,
    Claim,
    Full,
    Held,
    Renewed,
    Victim,
)

from . import scripts
from .base import OnOrder, Order, StoreUnavailable
from .batches import Batch
from .keys import probe
from .orders import OrderDesk
from .pipeline import Command, Packed, pack
from .servers import connect
from .unsure import Unsure

PROBE_BYTES = 8
NO_DEADLINE = b"0000000000000"  # where the one part of a renewal that changes has its place

Args = tuple[str | int | bytes, ...]
T = TypeVar("T")


class Renewal(NamedTuple):
    """A call of renew.lua, packed once but for the deadline."""

    command: Command
    before: bytes
    after: bytes
    streams: list[str]

    @classmethod
    def of(cls, leases: Iterable[Held], script: scripts.Script, lease_ms: int) -> Renewal:
        """Pack the renewal of leases whose keys one script may touch."""
        streams, keys, groups = renewal(leases)
        args: Args = (lease_ms, NO_DEADLINE, len(streams), *streams, *groups)
        command, wire = pack(script.evalsha(keys, args))
        before, after = wire.split(NO_DEADLINE, 1)
        return cls(command, before, after, streams)

    def packed(self, deadline: int) -> Packed:
        """The call, with the deadline that was acknowledged last."""
        return Packed(self.command, b"%b%013d%b" % (self.before, deadline, self.after))


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
        self._unsure = Unsure(self._send_release, lease_seconds)
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


def keys_of(claim: Claim) -> list[str]:
    """What the scripts of a decision touch: the slot sets, then the age hash of a user."""
    found = [demand.key for demand in claim.demands]
    return found if claim.age is None else [*found, claim.age]


def held_by(claim: Claim) -> Held:
    """What a claim holds once it is admitted."""
    return Held(claim.stream, tuple([demand.key for demand in claim.demands]), claim.age)


def acquire_args(claim: Claim, lease_ms: int) -> Args:
    """The arguments of acquire.lua, before the limits."""
    return (claim.stream, lease_ms, claim.node, int(claim.evict))


def swap_args(claim: Claim, lease_ms: int, victim: str) -> Args:
    """The arguments of swap.lua, before the limits."""
    return (claim.stream, lease_ms, claim.node, victim, DAMPER_EVICTIONS, DAMPER_WINDOW_MS, DAMPER_HOLD_MS)


def peek_args(claim: Claim) -> Args:
    """The arguments of peek.lua, before the limits."""
    return (int(claim.evict),)


def limits(claim: Claim) -> list[int]:
    """The limit and the own count of each demand, in the order of the keys."""
    found: list[int] = []
    for demand in claim.demands:
        found += (demand.limit, demand.own)
    return found


def verdict(reply: Sequence[Any]) -> Admitted | Full:
    """Read the flat array that acquire, swap and peek return."""
    if reply[0]:
        return Admitted(reply[1], len(reply) > 2 and reply[2] == 1, tuple(reply[3:]))
    _, now, position, held, *victim = reply
    return Full(now, position - 1, held, Victim(victim[0].decode(), victim[1].decode()) if victim else None)


async def answered(answer: T) -> T:
    """An answer that needs no question."""
    return answer


async def renewed(reply: asyncio.Future[Any], streams: Sequence[str]) -> Renewed:
    """Read the answer to a renewal of these streams."""
    now, *lost = await reply
    return Renewed(now, frozenset(streams[position - 1] for position in lost) if lost else frozenset())


def renewal(leases: Iterable[Held]) -> tuple[list[str], list[str], list[int]]:
    """The streams, the keys and the groups of a renewal, by slot set.

    Sorted, so that the streams of a user stand together, and those of a tenant.
    """
    ordered = sorted(leases, key=by_owner)
    groups: dict[str, tuple[str | None, list[int]]] = {}
    for position, held in enumerate(ordered, start=1):
        age = held.age
        for key in held.keys:
            group = groups.get(key)
            if group is None:
                groups[key] = (age, [position, position])
            elif group[1][-1] == position - 1:
                group[1][-1] = position
            else:
                group[1].extend((position, position))
            age = None
    keys: list[str] = []
    args: list[int] = []
    for key, (age, positions) in groups.items():
        for at in range(0, len(positions), 2):
            first, last = positions[at : at + 2]
            keys += [key] if age is None else [key, age]
            args += [first if age is None else -first, last]
    return [held.stream for held in ordered], keys, args


def by_owner(held: Held) -> tuple[str, tuple[str, ...]]:
    """Tenants stand in the tags of the age hashes."""
    return held.age or "", held.keys


def adoption(leases: Sequence[tuple[Held, int]]) -> tuple[list[str], list[str], list[str | int]]:
    """The keys, the slot sets among them, and the members of an adoption."""
    since = {held.stream: at for held, at in leases}
    keys: list[str] = []
    args: list[str | int] = []
    groups = by_key(held for held, _ in leases)
    for key, (age, found) in groups.items():
        if age is None:
            keys.append(key)
            args += [len(found), *found]
        else:
            keys += [key, age]
            args.append(-len(found))
            args += (part for stream in found for part in (stream, since[stream]))
    return keys, list(groups), args


def by_key(leases: Iterable[Held]) -> dict[str, tuple[str | None, list[str]]]:
    """The streams in each slot set, with the age hash of a user's set."""
    found: dict[str, tuple[str | None, list[str]]] = {}
    for held in leases:
        age = held.age
        for key in held.keys:
            group = found.get(key)
            if group is None:
                found[key] = (age, [held.stream])
            else:
                group[1].append(held.stream)
            age = None
    return found
