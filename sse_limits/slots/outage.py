"""What a node itself holds: always kept, so that it can decide alone the moment the store is away.

Alone, a node enforces its share of each limit: the limit divided by the nodes that lived at the last heartbeats,
rounded up, and never less than what it holds. So all nodes together exceed a limit by less than their number. A smaller
number of nodes is believed when it has been counted for a whole lease: nodes that cannot write are not dead, and behind
an outage or a flush a store knows only those that have written again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from sse_limits.core.slots import NO_LIMIT, Claim, Damper, Demand, Full, Held, Victim, first_full

DAMPERS_AT_MOST = 1000


class Open(Protocol):
    """An open stream, as far as it matters here: its slots, and since when it has them (epoch ms)."""

    held: Held
    since: int


class LocalTable:
    """How many streams this node holds in each slot set. Owned by one event loop."""

    def __init__(self, lease_ms: int) -> None:
        self.own: Counter[str] = Counter()
        self.nodes = 1
        """How many nodes share a limit, this one included."""
        self._lease_ms = lease_ms
        self._counted_at = 0
        self._fewer: tuple[int, int] | None = None  # since when fewer are counted, and the most of them
        self._dampers: dict[str, Damper] = {}

    def count_nodes(self, living: int, now: int) -> None:
        """Note how many nodes lived at `now` (epoch ms)."""
        if now - self._counted_at > self._lease_ms / 2:  # nobody knows what was in between
            self._fewer = None
        self._counted_at = now
        if living >= self.nodes:
            self.nodes, self._fewer = living, None
            return
        since, most = self._fewer or (now, living)
        self._fewer = since, max(most, living)
        if now - since >= self._lease_ms:
            self.nodes, self._fewer = self._fewer[1], None

    def hold(self, held: Held) -> None:
        """Count a stream in."""
        for key in held.keys:
            self.own[key] += 1

    def drop(self, held: Held) -> None:
        """Count a stream out; what is at zero takes no room."""
        for key in held.keys:
            count_down(self.own, key)

    def shared(self, claim: Claim) -> Claim:
        """The claim with this node's share of each limit in place of the limit, and with what it holds now."""
        return claim._replace(demands=tuple(self._shared(demand) for demand in claim.demands))

    def _shared(self, demand: Demand) -> Demand:
        own = self.own.get(demand.key, 0)
        if demand.limit == NO_LIMIT:
            return demand._replace(own=own)
        return demand._replace(limit=max(own, -(-demand.limit // self.nodes)), own=own)

    def judge(self, shared: Claim, leases: Iterable[Open], now: int) -> Full | None:
        """Whether a claim with shares finds a scope full, and who of the user's own streams here could give way."""
        in_use = [demand.own for demand in shared.demands]
        index = first_full(shared.demands, in_use)
        if index is None:
            return None
        victim = None
        if index == 0 and shared.evict and not self._is_damped(shared.age, now):
            victim = oldest(shared, leases)
        return Full(now, index, in_use[index], victim)

    def evicted(self, claim: Claim, now: int) -> None:
        """Note that a user's stream gave way: two clients that evict each other are stopped here too."""
        if claim.age is None:
            return
        if len(self._dampers) >= DAMPERS_AT_MOST:
            del self._dampers[next(iter(self._dampers))]
        self._dampers.setdefault(claim.age, Damper()).record(now)

    def _is_damped(self, age: str | None, now: int) -> bool:
        damper = self._dampers.get(age or "")
        return damper is not None and damper.until > now


def oldest(claim: Claim, leases: Iterable[Open]) -> Victim | None:
    """The user's oldest stream among `leases`, if its going makes room in every other scope too.

    Looks at all of them: only while the store is away, and only at the limit of a user whose tier evicts.
    """
    mine = [(lease.since, lease.held.stream, lease.held.keys) for lease in leases if lease.held.age == claim.age]
    if not mine:
        return None
    _, stream, held = min(mine)
    after = [demand.own - (demand.key in held) for demand in claim.demands]
    return Victim(stream, claim.node) if first_full(claim.demands, after) is None else None


def count_down(counts: Counter[str], key: str) -> None:
    """Take one away; what is at zero takes no room."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
