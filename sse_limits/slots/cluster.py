"""Slots in a Redis Cluster: the scripts of `lua/`, one call per group of keys that share a hash tag.

The groups of a claim are its tenant's (user, class, tenant, age), its address and the fleet, asked in this order. A
group that is full ends the attempt: what was taken before is released, and there, and only there, an attempt may hold
slots that it does not get. Nobody is ever admitted beyond a limit. Whether a victim's going makes room is judged in its
tenant's group only; in the others it is seen when its place is taken. `now` is the time of the first group's master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sse_limits.core.slots import Admitted, Adopted, Claim, Full, Held, Renewed, Scope

from . import keys, scripts
from .base import StoreUnavailable
from .batches import Batch
from .pipeline import Packed, deadline_at, pack
from .redis import (
    RedisStore,
    acquire_args,
    adoption,
    gather,
    held_by,
    keys_of,
    peek_args,
    renewal,
    streams_at,
    swap_args,
    verdict,
)


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

    async def renew(self, batch: Batch) -> Renewed:
        """Extend leases; those that had expired or are missing are reported lost and not revived."""
        if batch.prepared is None:
            batch.prepared = [
                pack(self._renew.evalsha(sets, (self._lease_ms, *members)))
                for sets, members in map(renewal, together(batch.leases.values()))
            ]
        calls: list[Packed] = batch.prepared
        replies = await gather([self._upkeep.send(packed, self._renew) for packed in calls])
        lost: frozenset[str] = frozenset()
        for packed, (_, *positions) in zip(calls, replies, strict=True):
            if positions:
                lost |= streams_at(packed.command, positions)
        return Renewed(max([reply[0] for reply in replies], default=0), lost)

    async def probe(self) -> None:
        """Write a key that nobody reads on each master."""
        await self.usage([])  # now they are known
        await super().probe()

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

    async def _add(self, node: str, leases: Sequence[tuple[Held, int]]) -> Adopted:
        since = {held.stream: at for held, at in leases}
        groups = [adoption([(part, since[part.stream]) for part in parts]) for parts in together(h for h, _ in leases)]
        run = self._upkeep.run
        replies = await gather(run(self._adopt, found, (self._lease_ms, node, *args)) for found, _, args in groups)
        in_use: dict[str, int] = {}
        for (_, slot_sets, _), (_, *counts) in zip(groups, replies, strict=True):
            in_use |= zip(slot_sets, counts, strict=True)
        return Adopted(max([reply[0] for reply in replies], default=0), in_use)

    def _parts(self, held: Held) -> Iterable[Held]:
        return parts_of(held)

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
            self._doubt_all(calls)
            raise
        except TimeoutError as exc:
            self._doubt_all(calls)
            raise StoreUnavailable(f"no answer within {self._timeout_seconds:g} s") from exc
        taken = [admitted for _, admitted in sorted(verdicts)]
        return Admitted(taken[0].now, taken[0].swapped, tuple([count for each in taken for count in each.in_use]))

    def _doubt_all(self, calls: Sequence[Take]) -> None:
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


def together(leases: Iterable[Held]) -> Iterator[list[Held]]:
    """The parts of leases that one script may touch, by hash slot."""
    found: dict[str, list[Held]] = {}
    for held in leases:
        for part in parts_of(held):
            found.setdefault(tag(part.keys[0]), []).append(part)
    yield from found.values()


def tag(key: str) -> str:
    """A slot set's key as far as its hash tag goes."""
    return key.partition("}")[0]


def placed(found: Admitted | Full, group: Group) -> Admitted | Full:
    """An answer with the position in the whole claim."""
    return found._replace(position=found.position + group.first) if isinstance(found, Full) else found
