"""Slots in Redis or Valkey: the scripts of `lua/`, sent over two connections (decisions; renewals and orders).

Decisions use the store's time and the limits that travel with the call. An acquire or a release whose answer was never
seen is settled by `unsure.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from sse_limits.core.slots import (
    DAMPER_EVICTIONS,
    DAMPER_HOLD_MS,
    DAMPER_WINDOW_MS,
    Admitted,
    Claim,
    Full,
    Held,
    Renewed,
    Victim,
)

from . import scripts
from .base import OnOrder, Order, StoreUnavailable
from .orders import OrderDesk
from .servers import connect
from .unsure import Unsure

MEMBERS_PER_CALL = 500


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
        self._acquire = scripts.load("acquire")
        self._swap = scripts.load("swap")
        self._peek = scripts.load("peek")
        self._renew = scripts.load("renew")
        self._release = scripts.load("release")
        self._usage = scripts.load("usage")

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none. Cancelled or unanswered, it is released by the store itself."""
        return verdict(await self._sure(self._acquire, claim, acquire_args(claim, self._lease_ms)))

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user. Cancelled or unanswered, it is released by the store itself."""
        return verdict(await self._sure(self._swap, claim, swap_args(claim, self._lease_ms, victim)))

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make is room."""
        return verdict(await self._decisions.run(self._peek, keys_of(claim), peek_args(claim)))

    def release(self, held: Held) -> None:
        """Give the slots back as soon as the store can be told; never waits, never raises, may be called twice."""
        self._unsure.release(held)

    async def renew(self, leases: Sequence[Held]) -> Renewed:
        """Extend leases; those that had expired or are missing are reported lost and not revived."""
        calls = list(renewals(leases))
        replies = await gather(self._upkeep.run(self._renew, keys, (self._lease_ms, *args)) for keys, args, _ in calls)
        lost = {
            positions[at - 1] for (_, _, positions), (_, *lost_at) in zip(calls, replies, strict=True) for at in lost_at
        }
        return Renewed(max((reply[0] for reply in replies), default=0), frozenset(lost))

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

    async def _sure(self, script: scripts.Script, claim: Claim, args: Sequence[str | int]) -> list[Any]:
        """Run an acquire or a swap; without an answer the slots may be held all the same."""
        try:
            return list(await self._decisions.run(script, keys_of(claim), args))
        except (StoreUnavailable, asyncio.CancelledError):
            self._unsure.doubt(held_by(claim))
            raise

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


def acquire_args(claim: Claim, lease_ms: int) -> list[str | int]:
    """The arguments of acquire.lua."""
    return [claim.stream, lease_ms, claim.node, int(claim.evict), *limits(claim)]


def swap_args(claim: Claim, lease_ms: int, victim: str) -> list[str | int]:
    """The arguments of swap.lua."""
    damper = (DAMPER_EVICTIONS, DAMPER_WINDOW_MS, DAMPER_HOLD_MS)
    return [claim.stream, lease_ms, claim.node, victim, *damper, *limits(claim)]


def peek_args(claim: Claim) -> list[str | int]:
    """The arguments of peek.lua."""
    return [int(claim.evict), *limits(claim)]


def limits(claim: Claim) -> list[int]:
    """The limit and the own count of each demand, in the order of the keys."""
    return [number for demand in claim.demands for number in (demand.limit, demand.own)]


def verdict(reply: Sequence[Any]) -> Admitted | Full:
    """Read the flat array that acquire, swap and peek return."""
    admitted, now, *rest = reply
    if admitted:
        return Admitted(now, bool(rest and rest[0]), tuple(rest[1:]))
    position, held, *victim = rest
    return Full(now, position - 1, held, Victim(victim[0].decode(), victim[1].decode()) if victim else None)


def renewals(leases: Sequence[Held]) -> Iterator[tuple[list[str], list[str | int], list[int]]]:
    """Group members by slot set into calls of bounded size: keys, arguments, and the lease of each member."""
    keys: list[str] = []
    args: list[str | int] = []
    positions: list[int] = []
    for key, (age, found) in by_key(leases).items():
        for start in range(0, len(found), MEMBERS_PER_CALL):
            part = found[start : start + MEMBERS_PER_CALL]
            if positions and len(positions) + len(part) > MEMBERS_PER_CALL:
                yield keys, args, positions
                keys, args, positions = [], [], []
            keys += [key] if age is None else [key, age]
            args += [len(part) if age is None else -len(part), *(leases[at].stream for at in part)]
            positions += part
    if positions:
        yield keys, args, positions


def by_key(leases: Sequence[Held]) -> dict[str, tuple[str | None, list[int]]]:
    """The positions of the leases in each slot set, with the age hash of a user's set."""
    found: dict[str, tuple[str | None, list[int]]] = {}
    for position, held in enumerate(leases):
        for index, key in enumerate(held.keys):
            found.setdefault(key, (held.age if index == 0 else None, []))[1].append(position)
    return found
