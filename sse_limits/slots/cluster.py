"""Slots in a Redis Cluster: the scripts of `lua/`, one call per group of keys that share a hash tag.

The groups of a claim are its tenant's (user, class, tenant, age), its address and the fleet, asked in this order. A
group that is full ends the attempt: what was taken before is released, and there, and only there, an attempt may hold
slots that it does not get. Nobody is ever admitted beyond a limit. Whether a victim's going makes room is judged in its
tenant's group only; in the others it is seen when its place is taken. `now` is the time of the first group's master.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sse_limits.core.slots import Admitted, Adopted, Claim, Full, Held, Renewed, Scope

from . import keys, scripts
from .base import StoreUnavailable
from .batches import Batch
from .calls import Args, Renewal, acquire_args, adoption, peek_args, renewed, swap_args, verdict
from .cluster_pipeline import unavailable
from .pipeline import GRACE_SECONDS
from .redis import RedisStore, gather

ADDRESS, FLEET = Scope.ADDRESS, Scope.FLEET  # an enum looks its members up anew each time


class Group(NamedTuple):
    """The demands of a claim whose keys share a hash tag; `first` is the position of the first of them."""

    first: int
    slot_sets: list[str]
    keys: list[str]
    limits: list[int]

    def held_by(self, stream: str) -> Held:
        """What the group holds once it is taken."""
        age = self.keys[-1] if len(self.keys) > len(self.slot_sets) else None
        return Held(stream, tuple(self.slot_sets), age)


class Attempt:
    """A claim that is being taken, group by group: the answer that it waits for, and whether its time is over."""

    __slots__ = ("deadline", "is_late", "reply")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.is_late = False
        self.reply: asyncio.Future[Any] | None = None


class Deadlines:
    """Ends attempts in time. All have as long, so they end in order, and one timer does for all (one each: 4.5 µs)."""

    def __init__(self, seconds: float) -> None:
        self.cause = f"no answer within {seconds:g} s"
        self._seconds = seconds
        self._attempts: deque[Attempt] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Attempt:
        """Note an attempt that begins."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(loop.time() + self._seconds)
        self._attempts.append(attempt)
        if self._timer is None:
            self._timer = loop.call_at(attempt.deadline, self._look)
        return attempt

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, late = loop.time(), []
        while self._attempts and self._attempts[0].deadline <= now:
            attempt = self._attempts.popleft()
            attempt.is_late = True
            if attempt.reply is not None and not attempt.reply.done():
                late.append(attempt.reply)
        if late:  # after this process stood still, answers are here and only have to be read
            loop.call_later(GRACE_SECONDS, self._end, late)
        self._timer = loop.call_at(self._attempts[0].deadline, self._look) if self._attempts else None

    def _end(self, late: list[asyncio.Future[Any]]) -> None:
        for reply in late:
            unavailable(reply, self.cause)


class ClusterStore(RedisStore):
    """A slot store on a Redis Cluster. Used on one event loop."""

    name = "redis-cluster"

    def __init__(self, url: str, *, lease_seconds: float, timeout_seconds: float, slow_timeout_seconds: float) -> None:
        super().__init__(
            url, lease_seconds=lease_seconds, timeout_seconds=timeout_seconds, slow_timeout_seconds=slow_timeout_seconds
        )
        self._deadlines = Deadlines(timeout_seconds)

    async def acquire(self, claim: Claim) -> Admitted | Full:
        """Take a slot in all scopes or none. Cancelled or unanswered, it is released by the store itself."""
        return await self._take(claim.stream, self._acquire, acquire_args(claim, self._lease_ms), groups(claim))

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        """Take the place of a victim of the same user. Cancelled or unanswered, it is released by the store itself.

        The user's own group comes last: until there is room everywhere else, the victim keeps its place there.
        """
        first, *others = groups(claim)
        return await self._take(claim.stream, self._swap, swap_args(claim, self._lease_ms, victim), [*others, first])

    async def peek(self, claim: Claim) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make for the tenant is room."""
        found = groups(claim)
        run = self._decisions.run
        replies = await gather([run(self._peek, group.keys, [*peek_args(claim), *group.limits]) for group in found])
        verdicts = [placed(verdict(reply), group) for group, reply in zip(found, replies, strict=True)]
        return next((each for each in verdicts if isinstance(each, Full)), verdicts[0])

    def renew(self, batch: Batch) -> Awaitable[Renewed]:
        """Extend leases; those that had expired or are missing are reported lost and not revived."""
        if batch.prepared is None:
            parts = together(batch.leases.values())
            batch.prepared = [Renewal.of(part, self._renew, self._lease_ms) for part in parts]
        prepared: list[Renewal] = batch.prepared
        send, script, deadline = self._upkeep.send, self._renew, batch.deadline
        replies = [renewed(send(each.packed(deadline), script), each.streams) for each in prepared]
        return merged(replies)

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
        return Adopted(min([reply[0] for reply in replies], default=0), in_use)

    def _parts(self, held: Held) -> Iterable[Held]:
        return parts_of(held)

    async def _take(self, stream: str, script: scripts.Script, args: Args, found: Sequence[Group]) -> Admitted | Full:
        """Take one group after the other, all within the one deadline; at the first full one give the others back."""
        attempt = self._deadlines.begin()
        taken: list[tuple[int, Admitted]] = []
        try:
            for group in found:
                if attempt.is_late:
                    raise StoreUnavailable(self._deadlines.cause)
                attempt.reply = self._decisions.run(script, group.keys, [*args, *group.limits])
                answer = verdict(await attempt.reply)
                if isinstance(answer, Full):
                    self._give_back(stream, found[: len(taken)])
                    return placed(answer, group)
                taken.append((group.first, answer))
        except (StoreUnavailable, asyncio.CancelledError):
            self._give_back(stream, found[: len(taken)])
            for group in found[len(taken) : len(taken) + 1]:  # those behind it were not asked
                self._unsure.doubt(group.held_by(stream))
            raise
        taken.sort()
        first = taken[0][1]
        return Admitted(first.now, first.swapped, tuple([count for _, each in taken for count in each.in_use]))

    def _give_back(self, stream: str, taken: Sequence[Group]) -> None:
        for group in taken:
            self._unsure.release(group.held_by(stream))


async def merged(replies: Sequence[Awaitable[Renewed]]) -> Renewed:
    """The answers of several masters as one."""
    found = await gather(replies)
    lost: frozenset[str] = frozenset().union(*[each.lost for each in found])
    return Renewed(min([each.now for each in found], default=0), lost)  # their clocks may differ


def groups(claim: Claim) -> list[Group]:
    """The groups of a claim, in its order: the tenant's, the address, the fleet."""
    found: list[Group] = []
    group: Group | None = None
    for position, (scope, key, limit, own) in enumerate(claim.demands):
        if group is None or scope is ADDRESS or scope is FLEET:
            group = Group(position, [key], [key], [limit, own])
            found.append(group)
        else:
            group.slot_sets.append(key)
            group.keys.append(key)
            group.limits.extend((limit, own))
    if claim.age is not None:
        found[0].keys.append(claim.age)
    return found


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
