"""What slots cost in Python and in the store: acquiring, and renewing a hundred thousand.

Measured, in one process with one store (Valkey on a Unix socket, on the other core): acquires of a user, a tenant and
the fleet with 500 in flight (wall clock and this process's CPU time each), then the heartbeats of 100,000 streams (CPU
time of a cycle; in another one the longest time that the event loop stood still, and the longest call in SLOWLOG).
Beside them in the same run: redis-benchmark with 50 connections running the same script, and redis-py used naively: one
`evalsha` a call with 100 tasks, and ZADD + PEXPIRE in pipelines of 500. Every round has a fresh store.
"""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import time
from collections.abc import Awaitable, Callable
from shutil import which

import uvloop
from redis.asyncio import Redis

from sse_limits.core.slots import NO_LIMIT, Claim, Demand, Held, Scope
from sse_limits.slots import keys, scripts
from sse_limits.slots.batches import Batches, chunked
from sse_limits.slots.redis import RedisStore
from sse_limits.streams.renewal import renew_in_parts

from .figures import Figure
from .machine import SERVER_CORE, pin
from .servers import Valkey, valkey

ROUNDS = 5
ACQUIRES = 60_000
STREAMS = 100_000
QUICK_SHARE = 10
IN_FLIGHT = 500
NAIVE_IN_FLIGHT = 100
NAIVE_PIPELINE = 500
TENANTS = 100
LEASE_SECONDS = 600
WALL_US = 1e6 / 30_000
CPU_US = 16.0
CYCLE_MS = 60.0
STALL_MS = 3.0
REDIS_MS = 2.0
TICK_SECONDS = 0.001


def run(*, quick: bool) -> list[Figure]:
    """Measure acquires and heartbeats, and what else could have been done."""
    share = QUICK_SHARE if quick else 1
    rounds = [uvloop.run(one_round(ACQUIRES // share, STREAMS // share)) for _ in range(ROUNDS)]
    found: dict[str, list[float]] = {name: [each[name] for each in rounds] for name in rounds[0]}
    naive, bench = Figure("", "us", found["naive wall"]), Figure("", "us", found["redis-benchmark"])
    beside = f"redis-benchmark {bench.median:.0f} us, naive redis-py {naive.median:.0f} us"
    naive_cpu = f"naive redis-py {Figure('', '', found['naive cpu']).median:.0f} us"
    naive_cycle = f"ZADD + PEXPIRE in pipelines {Figure('', '', found['naive cycle']).median:,.0f} ms"
    streams = f"{STREAMS // share:,} streams, 3 scopes"
    return [
        Figure("slots: an acquire, 500 in flight", "us", found["wall"], WALL_US, beside),
        Figure("slots: an acquire, this process's CPU", "us", found["cpu"], CPU_US, naive_cpu),
        Figure(f"slots: a heartbeat, CPU ({streams})", "ms", found["cycle"], CYCLE_MS / share, naive_cycle),
        Figure("slots: the first heartbeat, nothing packed yet, CPU", "ms", found["first"]),
        Figure("slots: the loop's longest stall in a heartbeat", "ms", found["stall"], STALL_MS, digits=2),
        Figure("slots: the longest renewal call in the store", "ms", found["slowest"], REDIS_MS, digits=2),
    ]


async def one_round(acquires: int, streams: int) -> dict[str, float]:
    """All figures once, on a store of their own."""
    found: dict[str, float] = {}
    with valkey() as server:
        pin(server.process.pid, SERVER_CORE)
        store = RedisStore(server.url, lease_seconds=LEASE_SECONDS, timeout_seconds=60, slow_timeout_seconds=60)
        client = Redis.from_url(server.url)
        claims = [claim(number) for number in range(acquires)]
        await store.acquire(claim(-1))
        found["wall"], found["cpu"] = await timed(claims, IN_FLIGHT, store.acquire)
        await client.flushall()
        found["redis-benchmark"] = redis_benchmark(server, acquires)
        await client.flushall()
        script = await client.script_load(scripts.load("acquire").source)
        naively = Naive(client, script)
        found["naive wall"], found["naive cpu"] = await timed(claims[: acquires // 4], NAIVE_IN_FLIGHT, naively.acquire)
        await client.flushall()
        await renewals(found, store, client, streams)
        await store.aclose()
        await client.aclose()
    return found


async def renewals(found: dict[str, float], store: RedisStore, client: Redis, streams: int) -> None:
    """Adopt so many streams, then let the heart beat three times: from the second on all is packed."""
    leases = [held(number) for number in range(streams)]
    batches = Batches()
    for each in leases:
        batches.add(each)
    for part in chunked(leases, 100):
        await store.adopt("n", [(each, 1) for each in part])
    await client.config_set("slowlog-log-slower-than", 0)
    await client.config_set("slowlog-max-len", 3 * streams)
    gc.collect()
    gc.freeze()
    found["first"] = await heartbeat(store, batches)
    await client.slowlog_reset()
    found["cycle"] = await heartbeat(store, batches)
    found["stall"] = await watched(heartbeat(store, batches))
    slow = await client.slowlog_get(3 * streams)
    found["slowest"] = max(each["duration"] for each in slow if each["command"].startswith(b"EVALSHA")) / 1000
    await client.config_set("slowlog-log-slower-than", 10_000)
    began = time.process_time()
    for part in chunked(leases, NAIVE_PIPELINE):
        pipeline = client.pipeline(transaction=False)
        for each in part:
            for key in each.keys:
                pipeline.zadd(key, {each.stream: 1e13})
                pipeline.pexpire(key, 1000 * LEASE_SECONDS)
        await pipeline.execute()
    found["naive cycle"] = (time.process_time() - began) * 1000
    gc.unfreeze()


async def heartbeat(store: RedisStore, batches: Batches) -> float:
    """The CPU time of one cycle in ms."""
    began = time.process_time()
    async for batch, renewed in renew_in_parts(store, list(batches)):
        assert not renewed.lost
        batch.deadline = renewed.now + LEASE_SECONDS * 1000
    return (time.process_time() - began) * 1000


async def watched(work: Awaitable[object]) -> float:
    """The longest time, in ms, that the event loop stood still in the course of some work."""
    stall = 0.0

    async def watch() -> None:
        nonlocal stall
        while True:
            due = time.perf_counter() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            stall = max(stall, time.perf_counter() - due)

    watching = asyncio.create_task(watch())
    await work
    watching.cancel()
    return stall * 1000


async def timed(claims: list[Claim], in_flight: int, call: Callable[[Claim], Awaitable[object]]) -> tuple[float, float]:
    """Wall clock and CPU time of this process for each call, in us, with so many under way."""
    waiting = iter(claims)

    async def work() -> None:
        for each in waiting:
            await call(each)

    gc.collect()
    gc.freeze()  # the claims are the benchmark's, not a node's
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall / len(claims) * 1e6, cpu / len(claims) * 1e6


class Naive:
    """The same script as most people call it."""

    def __init__(self, client: Redis, script: str) -> None:
        self._client = client
        self._script = script

    async def acquire(self, claim: Claim) -> object:
        """One script call."""
        names = [demand.key for demand in claim.demands]
        limits = [number for demand in claim.demands for number in (demand.limit, demand.own)]
        keys = [*names, claim.age or ""]
        return await self._client.evalsha(  # type: ignore[no-any-return]
            self._script, len(keys), *keys, claim.stream, LEASE_SECONDS * 1000, claim.node, 0, *limits
        )


def redis_benchmark(server: Valkey, calls: int) -> float:
    """The us that redis-benchmark needs for each admission by the acquire script, with 50 connections; 0 without it."""
    binary = which("redis-benchmark") or which("valkey-benchmark")
    if binary is None:
        return 0.0
    user = "__rand_int__"  # another one in each call, as in the claims
    names = [keys.user("t0", user), keys.tenant("t0"), keys.fleet()]
    args = ["__rand_int__", str(LEASE_SECONDS * 1000), "n", "0", *[str(NO_LIMIT), "0"] * len(names)]
    command = ["EVALSHA", scripts.load("acquire").sha, "4", *names, keys.age("t0", user), *args]
    asked = [binary, "-s", str(server.socket), "-n", str(calls), "-c", "50", "-r", "1000000000", "--csv", *command]
    said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    rate = float(re.findall(r'"([\d.]+)"', said.splitlines()[-1])[0])
    return 1e6 / rate


def claim(number: int) -> Claim:
    """A claim of a user of its own, in one of a hundred tenants."""
    tenant, user = f"t{number % TENANTS}", f"user{number}"
    demands = (
        Demand(Scope.USER, keys.user(tenant, user), 5, 0),
        Demand(Scope.TENANT, keys.tenant(tenant), NO_LIMIT, 0),
        Demand(Scope.FLEET, keys.fleet(), NO_LIMIT, 0),
    )
    return Claim(f"abcdefgh-{number}", "abcdefgh", demands, keys.age(tenant, user))


def held(number: int) -> Held:
    """The lease of such a claim."""
    found = claim(number)
    return Held(found.stream, tuple(demand.key for demand in found.demands), found.age)
