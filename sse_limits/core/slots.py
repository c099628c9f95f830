"""The slot rules as a pure model: the reference that the Lua scripts are tested against.

A *slot* is a unit of capacity in one scope; a *lease* is a held slot with a deadline in the store's time. The truth of
a scope is the set of its members (stream id -> deadline); the count is the number of members whose deadline lies ahead,
so there is no counter to drift. The memory store runs this model; the Redis store runs the scripts in `slots/lua`,
and a hypothesis state machine holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

NO_LIMIT = -1
DAMPER_EVICTIONS = 3
DAMPER_WINDOW_MS = 10_000
DAMPER_HOLD_MS = 30_000
DAMPER_FIELD = "*"


class Scope(StrEnum):
    """Whose capacity a slot is taken from; values are the wire and metric strings."""

    USER = "user"
    CLASS = "class"
    TENANT = "tenant"
    ADDRESS = "address"
    FLEET = "fleet"
    NODE = "node"


class Demand(NamedTuple):
    """One scope in which a stream needs a slot.

    `limit` is the number of streams allowed (`NO_LIMIT`: held for display only). `own` is how many streams the asking
    node itself holds there: after the store lost its memory, newcomers must not displace them.
    """

    scope: Scope
    key: str
    limit: int
    own: int


class Claim(NamedTuple):
    """What one acquire asks for: all of `demands` or none.

    `demands` stand in the order in which a rejection names them: user, class, tenant, address, fleet; a user demand,
    where there is one, comes first and goes with `age`, the key of the hash that eviction reads.
    """

    stream: str
    node: str
    demands: tuple[Demand, ...]
    age: str | None
    evict: bool = False


class Held(NamedTuple):
    """A lease as its node remembers it: the keys in which `stream` is a member."""

    stream: str
    keys: tuple[str, ...]
    age: str | None


class Victim(NamedTuple):
    """The stream that gives way at its user's limit, and the node that owns it."""

    stream: str
    node: str


class Admitted(NamedTuple):
    """Every slot is held. `now` is the store's time in epoch ms; `swapped`: a victim's place was taken.

    `in_use` is the count of each demand's scope, the newcomer included; a `peek` adds nothing and counts nothing.
    """

    now: int
    swapped: bool = False
    in_use: tuple[int, ...] = ()


class Full(NamedTuple):
    """Nothing was added: `demands[position]` is at its limit. With a `victim` the caller may evict and `swap`."""

    now: int
    position: int
    in_use: int
    victim: Victim | None = None


class Renewed(NamedTuple):
    """The result of a renewal: the streams of which at least one member was missing or had expired."""

    now: int
    lost: frozenset[str]


class Adopted(NamedTuple):
    """The result of an adoption: how many living members each slot set holds now."""

    now: int
    in_use: Mapping[str, int]


@dataclass(slots=True)
class Damper:
    """Evictions of one user lately; while `until` lies ahead the user is treated as `reject`."""

    until: int = 0
    times: tuple[int, ...] = ()

    def record(self, now: int) -> None:
        """Note an eviction; the third within the window closes eviction for a while."""
        self.times = (*(at for at in self.times if at > now - DAMPER_WINDOW_MS), now)[-DAMPER_EVICTIONS:]
        if len(self.times) == DAMPER_EVICTIONS:
            self.until = now + DAMPER_HOLD_MS

    def is_over(self, now: int) -> bool:
        """Say whether nothing that was noted can matter any more."""
        return self.until <= now and all(at <= now - DAMPER_WINDOW_MS for at in self.times)


@dataclass(slots=True)
class _Age:
    """When, where and how each stream of a user was acquired: what eviction reads."""

    acquired: dict[str, tuple[int, str]] = field(default_factory=dict)
    damper: Damper | None = None


@dataclass(slots=True)
class SlotModel:
    """Every slot of a deployment, without a clock: each operation takes `now` in epoch ms.

    Not thread-safe; one owner calls it. A lease is alive while its deadline is greater than `now`.
    """

    lease_ms: int
    members: dict[str, dict[str, int]] = field(default_factory=dict)
    ages: dict[str, _Age] = field(default_factory=dict)

    def count(self, key: str, now: int) -> int:
        """Count the living leases of `key`; reading changes nothing."""
        return sum(deadline > now for deadline in self.members.get(key, {}).values())

    def peek(self, claim: Claim, now: int) -> Admitted | Full:
        """Answer what `acquire` would, and take nothing; room that eviction would make is room."""
        full = self._first_full(claim, now, victim=None)
        return Admitted(now) if full is None or full.victim is not None else full

    def acquire(self, claim: Claim, now: int) -> Admitted | Full:
        """Take a slot in all scopes, or none and say which is full (and who could give way)."""
        full = self._first_full(claim, now, victim=None)
        if full is not None:
            return full
        is_first = self._add(claim, now)
        self._purge(claim, now)
        if is_first:
            self._drop_age_of_strangers(claim)
        return Admitted(now, in_use=self._counts(claim))

    def swap(self, claim: Claim, victim: str, now: int) -> Admitted | Full:
        """Take the victim's place in every scope where it still lives; where it does not, the limit decides."""
        full = self._first_full(claim, now, victim=victim)
        if full is not None:
            return full
        user = claim.demands[0].key
        swapped = self._is_alive(user, victim, now)
        is_first = self._add(claim, now)
        for demand in claim.demands:
            self.members[demand.key].pop(victim, None)
        if claim.age is not None:
            age = self.ages[claim.age]
            age.acquired.pop(victim, None)
            if swapped:
                age.damper = age.damper or Damper()
                age.damper.record(now)
        self._purge(claim, now)
        if is_first and not swapped:
            self._drop_age_of_strangers(claim)
        return Admitted(now, swapped, self._counts(claim))

    def renew(self, leases: Iterable[Held], now: int) -> Renewed:
        """Extend the living members of `leases`; an expired or missing member is lost, never revived."""
        lost = set()
        for held in leases:
            for key in held.keys:
                self._purge_key(key, held.age if key == held.keys[0] else None, now)
                alive = self.members.get(key, {})
                if held.stream in alive:
                    alive[held.stream] = now + self.lease_ms
                else:
                    lost.add(held.stream)
            if held.age is not None and not self._has_age(held.age, held.stream):
                lost.add(held.stream)
        return Renewed(now, frozenset(lost))

    def adopt(self, node: str, leases: Iterable[tuple[Held, int]], now: int) -> Adopted:
        """Add what `node` holds without asking for a limit: the store had lost its memory, or was away.

        Beside each lease stands since when its stream is open (epoch ms), which eviction reads.
        """
        touched = {}
        for held, since in leases:
            for key in held.keys:
                self.members.setdefault(key, {})[held.stream] = now + self.lease_ms
                touched[key] = held.age if key == held.keys[0] else None
            if held.age is not None:
                self.ages.setdefault(held.age, _Age()).acquired[held.stream] = (since, node)
        for key, age in touched.items():
            self._purge_key(key, age, now)
        return Adopted(now, {key: self.count(key, now) for key in touched})

    def release(self, held: Held) -> None:
        """Give every slot of `held` back; doing it again changes nothing."""
        for key in held.keys:
            members = self.members.get(key)
            if members is not None:
                members.pop(held.stream, None)
                self._forget_if_empty(key)
        age = self.ages.get(held.age) if held.age is not None else None
        if age is not None:
            age.acquired.pop(held.stream, None)

    def expire(self, now: int) -> None:
        """Drop what has expired everywhere, as key expiry does in Redis: memory stays bounded."""
        for key in list(self.members):
            self._purge_key(key, None, now)
        living = {stream for members in self.members.values() for stream in members}
        for name, age in list(self.ages.items()):
            age.acquired = {stream: at for stream, at in age.acquired.items() if stream in living}
            if not age.acquired and (age.damper is None or age.damper.is_over(now)):
                del self.ages[name]

    def _has_age(self, key: str, stream: str) -> bool:
        age = self.ages.get(key)
        return age is not None and stream in age.acquired

    def _is_alive(self, key: str, stream: str, now: int) -> bool:
        return self.members.get(key, {}).get(stream, 0) > now

    def _in_use(self, demand: Demand, now: int, victim: str | None) -> int:
        held = max(self.count(demand.key, now), demand.own)
        return held - 1 if victim is not None and self._is_alive(demand.key, victim, now) else held

    def _first_full(self, claim: Claim, now: int, victim: str | None) -> Full | None:
        in_use = [self._in_use(demand, now, victim) for demand in claim.demands]
        index = first_full(claim.demands, in_use)
        if index is None:
            return None
        offered = None
        if victim is None and index == 0 and claim.evict and claim.age is not None:
            offered = self._victim(claim, now)
        return Full(now, index, in_use[index], offered)

    def _victim(self, claim: Claim, now: int) -> Victim | None:
        """The user's oldest living stream, if evicting it makes room in every other scope too."""
        age = self.ages.get(claim.age or "")
        if age is None or (age.damper is not None and age.damper.until > now):
            return None
        user = claim.demands[0].key
        living = [
            (at, stream, node) for stream, (at, node) in age.acquired.items() if self._is_alive(user, stream, now)
        ]
        if not living:
            return None
        _, stream, node = min(living)
        after = [self._in_use(demand, now, stream) for demand in claim.demands]
        return Victim(stream, node) if first_full(claim.demands, after) is None else None

    def _add(self, claim: Claim, now: int) -> bool:
        """Write the newcomer; whether its user had no ages before."""
        for demand in claim.demands:
            self.members.setdefault(demand.key, {})[claim.stream] = now + self.lease_ms
        if claim.age is None:
            return False
        age = self.ages.setdefault(claim.age, _Age())
        is_first = not age.acquired and age.damper is None
        age.acquired[claim.stream] = (now, claim.node)
        return is_first

    def _drop_age_of_strangers(self, claim: Claim) -> None:
        """No age was known: if others hold slots, the store has evicted theirs, and the next renewals restore all."""
        if claim.age is not None and len(self.members[claim.demands[0].key]) > 1:
            del self.ages[claim.age]

    def _counts(self, claim: Claim) -> tuple[int, ...]:
        """What each scope of a claim that was just added and purged holds."""
        return tuple(len(self.members[demand.key]) for demand in claim.demands)

    def _purge(self, claim: Claim, now: int) -> None:
        for position, demand in enumerate(claim.demands):
            self._purge_key(demand.key, claim.age if position == 0 else None, now)

    def _purge_key(self, key: str, age: str | None, now: int) -> None:
        members = self.members.get(key, {})
        for stream in [stream for stream, deadline in members.items() if deadline <= now]:
            del members[stream]
            if age is not None and age in self.ages:
                self.ages[age].acquired.pop(stream, None)
        self._forget_if_empty(key)

    def _forget_if_empty(self, key: str) -> None:
        if key in self.members and not self.members[key]:
            del self.members[key]


def first_full(demands: Iterable[Demand], in_use: Sequence[int]) -> int | None:
    """The position of the first demand that is at its limit, or None when there is room everywhere."""
    for index, demand in enumerate(demands):
        if demand.limit != NO_LIMIT and in_use[index] >= demand.limit:
            return index
    return None
