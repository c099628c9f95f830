"""Reaping on real servers: what is found, what is left alone, and what an unreachable store costs."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from django.test import override_settings

from sse_limits.conf import get_conf
from sse_limits.limiter import Limiter, build_sink, build_store
from sse_limits.live import process
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.streams.reaping import Reaping
from tests.conftest import REDIS_KINDS
from tests.faults.proxy import Proxy
from tests.live.fleet import RedisFleet, Station
from tests.slots.servers import Server

pytestmark = pytest.mark.redis

CROWD = 2000
LIMITS = {"class": 10_000, "address": 10_000}


@pytest.fixture(params=[*REDIS_KINDS, "cluster"])
def server(request: pytest.FixtureRequest) -> Server:
    """An empty server of each kind, and a Cluster."""
    found: Server = request.getfixturevalue(request.param)
    found.client.flushall()
    return found


@pytest.fixture
async def fleet(server: Server) -> AsyncIterator[RedisFleet]:
    found = RedisFleet(server, lease_seconds=60)
    yield found
    await found.aclose()


@pytest.fixture(scope="module")
def ended() -> int:
    """A pid that no process has any more."""
    with subprocess.Popen(["true"]) as found:
        pid = found.pid
    return pid


@pytest.fixture
def dead(fleet: RedisFleet, ended: int) -> Station:
    """A node of this machine whose process has ended."""
    station = fleet.station()
    me = process.incarnation()
    station.own = {"boot": me.boot, "pid_namespace": me.pid_namespace, "pid": ended, "start_ticks": 1}
    return station


@pytest.fixture
def in_force(server: Server) -> Iterator[None]:
    policy = {"tiers": {"free": {}, "anonymous": {}}}
    with override_settings(SSE_LIMITS={"REDIS_URL": server.url, "STORE_TIMEOUT_SECONDS": 5, "POLICY": policy}):
        yield


@asynccontextmanager
async def survivor(url: str | None = None) -> AsyncIterator[tuple[Reaping, Limiter]]:
    """A node of this process, its display's connection at another address perhaps."""
    conf = get_conf()
    limiter = Limiter(conf, build_store(conf))
    with override_settings(SSE_LIMITS={"REDIS_URL": url or conf.redis_url}):
        sink = build_sink(get_conf(), limiter.store)
    assert sink.remains is not None
    try:
        yield Reaping(limiter, sink, sink.remains), limiter
    finally:
        await sink.aclose()
        await limiter.aclose()


def held_in(server: Server) -> dict[str, int]:
    return {key: server.client.zcard(key) for key in server.client.scan_iter("sl:1:slot:*")}


@pytest.mark.usefixtures("in_force")
async def test_everything_of_the_dead_is_found_in_a_crowd_and_nothing_else_is_touched(
    server: Server, fleet: RedisFleet, dead: Station
) -> None:
    """Also what it had not told of yet, except in sets that it had not named at all: they wait for the lease."""
    alive = fleet.station()
    for _ in range(2):
        await alive.open("u1", limits=LIMITS)
    await alive.write()
    crowd = {f"crowdddd-{number}": 2 * 10**12 for number in range(CROWD)}
    for key in (keys.fleet(), keys.tenant("t1")):
        server.client.zadd(key, crowd)
    before = held_in(server)
    for user in ("u1", "u1", "u2", None):
        await dead.open(user, limits=LIMITS)
    await dead.write()
    for _ in range(3):
        await dead.open("u1", limits=LIMITS)
    await dead.open("u9", "t9")
    async with survivor() as (reaping, limiter):
        await reaping.reap()
        assert limiter.journal.reaped == 8
        assert keys.tenant("t1") in limiter.journal.touched
    assert held_in(server) == {**before, keys.user("t9", "u9"): 1, keys.tenant("t9"): 1}
    assert server.client.hlen(keys.age("t1", "u1")) == 2
    assert not server.client.exists(keys.age("t1", "u2"))
    assert server.client.keys(f"*{dead.id}*") == []
    assert [row.id for row in fleet.board().snapshot().nodes] == [alive.id]


@pytest.mark.usefixtures("in_force")
async def test_two_survivors_may_reap_at_the_same_time(server: Server, fleet: RedisFleet, dead: Station) -> None:
    alive = fleet.station()
    await alive.open("u1")
    before = held_in(server)
    for number in range(120):
        await dead.open(f"u{number % 7}")
    await dead.write()
    async with survivor() as (one, _), survivor() as (two, _):
        await asyncio.gather(one.reap(), two.reap())
    assert held_in(server) == before


@pytest.mark.parametrize("server", REDIS_KINDS, indirect=True)
@pytest.mark.usefixtures("in_force")
async def test_wherever_the_link_breaks_the_next_heartbeat_finishes(
    server: Server, fleet: RedisFleet, dead: Station
) -> None:
    broken = 0
    with Proxy(server.socket) as proxy:
        for place in range(0, 1500, 75):
            for number in range(10):
                await dead.open(f"u{number}")
            await dead.write()
            async with survivor(proxy.url) as (reaping, _):
                proxy.cut_after(place, "reply")
                try:
                    await reaping.reap()
                except StoreUnavailable:
                    broken += 1
                proxy.pass_all()
                await reaping.reap()
            assert held_in(server) == {}
            assert server.client.keys(f"*{dead.id}*") == []
    assert broken > 10


@pytest.mark.usefixtures("in_force")
async def test_a_node_without_a_row_waits_for_its_lease(server: Server, dead: Station) -> None:
    await dead.open("u1")
    await dead.write()
    before = held_in(server)
    server.client.delete(keys.node(dead.id))
    async with survivor() as (reaping, limiter):
        await reaping.reap()
        assert limiter.journal.reaped == 0
    assert held_in(server) == before


@pytest.mark.parametrize("server", REDIS_KINDS, indirect=True)
@pytest.mark.usefixtures("in_force")
async def test_whoever_is_out_of_sight_is_not_asked_about_again(
    server: Server, fleet: RedisFleet, dead: Station
) -> None:
    dead.own["boot"] = "another"
    await dead.write()
    async with survivor() as (reaping, _):
        for count in (1, 0):
            with server.watched() as commands:
                await reaping.reap()
            assert sum("HMGET" in command for command in commands) == count
