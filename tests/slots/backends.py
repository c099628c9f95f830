"""The stores under test with the means to look inside, and short ways to write claims."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from sse_limits.core.slots import NO_LIMIT, Admitted, Claim, Demand, Full, Held, Renewed, Scope
from sse_limits.slots import keys
from sse_limits.slots.base import Order, SlotStore
from sse_limits.slots.batches import Batches
from sse_limits.slots.cluster import ClusterStore
from sse_limits.slots.memory import MemoryStore, epoch_ms
from sse_limits.slots.redis import RedisStore

from .servers import ClusterServer, Server

LEASE_SECONDS = 60.0
ALL_AT = {"user": 5, "class": 5, "tenant": 5, "address": 5, "fleet": 5}
SCRIPTS = 8  # what `every_operation` runs
PAST = 1


class Backend(Protocol):
    """One kind of store, empty at the beginning of each test."""

    is_cluster: bool

    def store(self, lease_seconds: float = LEASE_SECONDS) -> SlotStore:
        """Another store on the same slots, as a second process would have it; memory has only one."""

    def dump(self) -> object:
        """Return everything that is stored."""

    def deadlines(self, key: str) -> dict[str, int]:
        """Return the members of a slot set."""

    def ages(self, key: str) -> set[str]:
        """Return the streams that stand in an age hash."""

    def expire(self, key: str, stream: str) -> None:
        """Let the lease of a stream end in one scope."""

    def pass_damper(self, key: str, ms: int) -> None:
        """Let time pass for the damper of a user."""

    def lose(self, key: str) -> None:
        """Lose one key, as a server that evicts keys does."""

    def flush(self) -> None:
        """Lose everything, as a restarted server does."""


class MemoryBackend:
    is_cluster = False

    def __init__(self) -> None:
        self._store: MemoryStore | None = None

    def store(self, lease_seconds: float = LEASE_SECONDS) -> SlotStore:
        if self._store is None:
            self._store = MemoryStore(lease_seconds=lease_seconds)
        return self._store

    @property
    def model(self):
        assert self._store is not None
        return self._store._model

    def dump(self) -> object:
        return copy.deepcopy(self.model)

    def deadlines(self, key: str) -> dict[str, int]:
        return dict(self.model.members.get(key, {}))

    def ages(self, key: str) -> set[str]:
        age = self.model.ages.get(key)
        return set(age.acquired) if age else set()

    def expire(self, key: str, stream: str) -> None:
        self.model.members[key][stream] = PAST

    def pass_damper(self, key: str, ms: int) -> None:
        damper = self.model.ages[key].damper
        damper.until -= ms
        damper.times = tuple(at - ms for at in damper.times)

    def lose(self, key: str) -> None:
        self.model.members.pop(key, None)
        self.model.ages.pop(key, None)

    def flush(self) -> None:
        self.model.members.clear()
        self.model.ages.clear()


def store_kind(server: Server | ClusterServer) -> type[RedisStore]:
    return ClusterStore if isinstance(server, ClusterServer) else RedisStore


class RedisBackend:
    def __init__(self, server: Server | ClusterServer) -> None:
        self.server = server
        self.is_cluster = isinstance(server, ClusterServer)
        self._kind = store_kind(server)
        self._stores: list[RedisStore] = []

    def store(
        self,
        lease_seconds: float = LEASE_SECONDS,
        *,
        url: str | None = None,
        timeout_seconds: float = 5.0,
        slow_timeout_seconds: float = 5.0,
    ) -> RedisStore:
        """Timeouts are long where nothing is broken on purpose: a busy machine must not fail a test."""
        store = self._kind(
            url or self.server.url,
            lease_seconds=lease_seconds,
            timeout_seconds=timeout_seconds,
            slow_timeout_seconds=slow_timeout_seconds,
        )
        self._stores.append(store)
        return store

    async def aclose(self) -> None:
        for store in self._stores:
            await store.aclose()

    def dump(self) -> object:
        return self.server.dump()

    def deadlines(self, key: str) -> dict[str, int]:
        return {name: int(score) for name, score in self.server.client.zrange(key, 0, -1, withscores=True)}

    def ages(self, key: str) -> set[str]:
        return set(self.server.client.hkeys(key)) - {"*"}

    def expire(self, key: str, stream: str) -> None:
        assert self.server.client.zadd(key, {stream: PAST}, xx=True, ch=True) == 1

    def pass_damper(self, key: str, ms: int) -> None:
        until, *times = self.server.client.hget(key, "*").split("|")
        self.server.client.hset(key, "*", "|".join(str(max(0, int(at) - ms)) for at in (until, *times)))

    def lose(self, key: str) -> None:
        self.server.client.delete(key)

    def flush(self) -> None:
        self.server.client.flushall()


def ask(
    stream: str,
    limits: Mapping[str, int] | None = None,
    *,
    user: str | None = "u1",
    tenant: str = "t1",
    address: str = "192.0.2.1",
    node: str = "n1",
    own: Mapping[str, int] | None = None,
    evict: bool = False,
) -> Claim:
    """Write a claim: user, tenant and fleet always, class and address only with a limit, as the limiter does."""
    limits, own = limits or {}, own or {}
    names = {
        Scope.USER: keys.user(tenant, user) if user else None,
        Scope.CLASS: keys.stream_class(tenant, "clock") if "class" in limits else None,
        Scope.TENANT: keys.tenant(tenant),
        Scope.ADDRESS: keys.address(address) if "address" in limits else None,
        Scope.FLEET: keys.fleet(),
    }
    demands = tuple(
        Demand(scope, key, limits.get(scope, NO_LIMIT), own.get(scope, 0)) for scope, key in names.items() if key
    )
    return Claim(stream, node, demands, keys.age(tenant, user) if user else None, evict)


def held(claim: Claim) -> Held:
    return Held(claim.stream, tuple(demand.key for demand in claim.demands), claim.age)


async def renew(store: SlotStore, leases: Iterable[Held]) -> Renewed:
    """Renew leases in batches, as a node does."""
    batches = Batches()
    for lease in leases:
        batches.add(lease)
    found = [await store.renew(batch) for batch in batches]
    return Renewed(max((each.now for each in found), default=0), frozenset().union(*(each.lost for each in found)))


async def in_use(store: SlotStore, claim: Claim) -> list[int]:
    """The counts of a claim's scopes, read behind every call that the store has been given so far.

    Twice, since a script that the server doesn't know yet is repeated behind its batch: the next one is in order again.
    """
    asked = [demand.key for demand in claim.demands]
    await store.usage(asked)
    return await store.usage(asked)


async def every_operation(store: RedisStore) -> None:
    """Run each script in each of its ways, over every kind of scope."""
    limits = dict.fromkeys(ALL_AT, 9) | {"user": 5}
    claims = [ask(f"s{number}", limits) for number in range(5)]
    await asyncio.gather(*(store.acquire(claim) for claim in claims))
    anonymous = ask("anonymous", {"address": 9}, user=None)
    await store.acquire(anonymous)
    assert isinstance(await store.acquire(ask("new", limits, evict=True)), Full)
    for number in range(3):
        assert isinstance(await store.swap(ask(f"new{number}", limits, evict=True), f"s{number}"), Admitted)
    await renew(store, [held(claim) for claim in (*claims, anonymous)])
    await store.adopt("n1", [(held(claim), 1) for claim in (*claims, anonymous)])
    await store.peek(claims[0])
    await store.order(Order("n1-1", "n2", "s1", "evicted"), 0.01)
    await store.probe()
    for claim in (*claims, anonymous):
        store.release(held(claim))
    await in_use(store, claims[0])


async def until(condition: Callable[[], object], seconds: float = 5.0) -> float:
    """Wait until the condition holds, and return how long that took; fail after `seconds`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.002)
    return time.monotonic() - started


async def next_ms() -> None:
    """Let the clock move, so that what follows is younger."""
    now = epoch_ms()
    await until(lambda: epoch_ms() > now + 1)
