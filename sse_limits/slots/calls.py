"""What goes to the slot scripts, and what comes back: arguments and answers as plain functions, for every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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
from .pipeline import Command, Packed, pack

NO_DEADLINE = b"0000000000000"  # where the one part of a renewal that changes has its place

Args = tuple[str | int | bytes, ...]


class Renewal(NamedTuple):
    """A call of renew.lua, packed once; the deadline is written into it `at` each renewal."""

    command: Command
    wire: bytearray
    at: int
    streams: list[str]

    @classmethod
    def of(cls, leases: Iterable[Held], script: scripts.Script, lease_ms: int) -> Renewal:
        """Pack the renewal of leases whose keys one script may touch."""
        streams, keys, groups = renewal(leases)
        args: Args = (lease_ms, NO_DEADLINE, len(streams), *streams, *groups)
        command, wire = pack(script.evalsha(keys, args))
        return cls(command, bytearray(wire), wire.index(NO_DEADLINE), streams)

    def packed(self, deadline: int) -> Packed:
        """The call, with the deadline that was acknowledged last."""
        self.wire[self.at : self.at + len(NO_DEADLINE)] = b"%013d" % deadline
        return Packed(self.command, self.wire)


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
