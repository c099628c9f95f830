"""Slots in a Redis Cluster: the scripts of `lua/`, one call per group of keys that share a hash tag.

The groups of a claim are its tenant's (user, class, tenant, age), its address and the fleet, asked in this order. A
group that is full ends the attempt: what was taken before is released, and there, and only there, an attempt may hold
slots that it does not get. Nobody is ever admitted beyond a limit. Whether a victim's going makes room is judged in its
tenant's group only; in the others it is seen when its place is taken. `now` is the time of the first group's master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sse_limits.core.slots import Admitted, Claim, Full, Held, Renewed, Scope

from . import keys, scripts
from .base import StoreUnavailable
from .hash_slots import by_hash_slot
from .pipeline import deadline_at
from .redis import RedisStore, acquire_args, gather, held_by, keys_of, peek_args, renewals, swap_args, verdict


class Group(NamedTuple):
    """The demands of a claim whose keys share a hash slot, as a claim of their own; where they stand in the whole."""

    claim: Claim
    first: int


TAGS = {Scope.USER: 0, Scope.CLASS: 0, Scope.TENANT: 0, Scope.ADDRESS: 1, Scope.FLEET: 2, Scope.NODE: 3}
Take = tuple[Group, scripts.Script, list[str | int]]  # a group, and what takes it


class ClusterStore(RedisStore):
    """A slot store on a Redis Cluster. Used on one event loop."""

    name = "redis-cluster"

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none. Cancelled or unanswered, it is released by the store itself."""
        calls = [(group, self._acquire, acquire_args(group.claim, self._lease_ms)) for group in groups(claim)]
        return await self._take(calls)

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user. Cancelled or unanswered, it is released by the store itself.

        The user's own group comes last: until there is room everywhere else, the victim keeps its place there.
        """
        calls = [(group, self._swap, swap_args(group.claim, self._lease_ms, victim)) for group in groups(claim)]
        return await self._take([*calls[1:], calls[0]])

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make for the tenant is room."""
        found = list(groups(claim))
        replies = await gather(
            self._decisions.run(self._peek, keys_of(group.claim), peek_args(group.claim)) for group in found
        )
        verdicts = [placed(verdict(reply), group) for group, reply in zip(found, replies, strict=True)]
        return next((each for each in verdicts if isinstance(each, Full)), verdicts[0])

    def release(self, held: Held) -> None:
        """Give the slots back as soon as the store can be told; never waits, never raises, may be called twice."""
        for part in parts_of(held):
            self._unsure.release(part)

    async def renew(self, leases: Sequence[Held]) -> Renewed:
        """Extend leases; those that had expired or are missing are reported lost and not revived."""
        parts = [part for held in leases for part in parts_of(held)]
        owners = [at for at, held in enumerate(leases) for _ in parts_of(held)]
        calls = []
        for positions in by_hash_slot(part.keys[0] for part in parts).values():
            for found, args, leased in renewals([parts[at] for at in positions]):
                calls.append((found, args, [owners[positions[at]] for at in leased]))
        replies = await gather(
            self._upkeep.run(self._renew, found, (self._lease_ms, *args)) for found, args, _ in calls
        )
        lost = {held[at - 1] for (_, _, held), (_, *lost_at) in zip(calls, replies, strict=True) for at in lost_at}
        return Renewed(max((reply[0] for reply in replies), default=0), frozenset(lost))

    async def usage(self, keys_: Sequence[str]) -> list[int]:
        """Count the living leases of each key."""
        asked = keys_ or [keys.fleet()]  # the answer to nothing says that the store is there
        found = self._decisions.groups(asked)
        replies = await gather(self._decisions.run(self._usage, [asked[at] for at in group], ()) for group in found)
        counts = {
            at: int(count)
            for group, (_, *counted) in zip(found, replies, strict=True)
            for at, count in zip(group, counted, strict=True)
        }
        return [counts[at] for at in range(len(keys_))]

    async def _take(self, calls: Sequence[Take]) -> Admitted | Full:
        """Take one group after the other; at the first full one, give the earlier ones back."""
        verdicts: list[tuple[int, Admitted]] = []
        try:
            async with deadline_at(asyncio.get_running_loop().time() + self._timeout_seconds):
                for at, (group, script, args) in enumerate(calls):
                    found = verdict(await self._decisions.run(script, keys_of(group.claim), args))
                    if isinstance(found, Full):
                        for earlier, _, _ in calls[:at]:
                            self._unsure.release(held_by(earlier.claim))
                        return placed(found, group)
                    verdicts.append((group.first, found))
        except (StoreUnavailable, asyncio.CancelledError):
            self._doubt(calls)
            raise
        except TimeoutError as exc:
            self._doubt(calls)
            raise StoreUnavailable(f"no answer within {self._timeout_seconds:g} s") from exc
        taken = [admitted for _, admitted in sorted(verdicts)]
        return Admitted(taken[0].now, taken[0].swapped, tuple([count for each in taken for count in each.in_use]))

    def _doubt(self, calls: Sequence[Take]) -> None:
        for group, _, _ in calls:
            self._unsure.doubt(held_by(group.claim))


def groups(claim: Claim) -> Iterator[Group]:
    """The groups of a claim, in its order."""
    demands = claim.demands
    first = 0
    for at in range(1, len(demands) + 1):
        if at == len(demands) or TAGS[demands[at].scope] != TAGS[demands[first].scope]:
            part = demands if at - first == len(demands) else demands[first:at]
            yield Group(Claim(claim.stream, claim.node, part, None if first else claim.age, claim.evict), first)
            first = at


def parts_of(held: Held) -> Iterator[Held]:
    """A lease by groups; the age hash goes with the first key, as it does in every store."""
    first = 0
    found = held.keys
    for at in range(1, len(found) + 1):
        if at == len(found) or tag(found[at]) != tag(found[first]):
            yield Held(held.stream, found[first:at], None if first else held.age)
            first = at


def tag(key: str) -> str:
    """A slot set's key as far as its hash tag goes."""
    return key.partition("}")[0]


def placed(found: Admitted | Full, group: Group) -> Admitted | Full:
    """An answer with the position in the whole claim."""
    return found._replace(position=found.position + group.first) if isinstance(found, Full) else found
