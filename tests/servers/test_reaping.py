"""What a killed process held is free as soon as its death is proved, and else when its lease ends (B02, B03, B11)."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from sse_limits.core.slots import Scope
from sse_limits.live.redis import RedisBoard
from sse_limits.live.sink import RedisSink
from sse_limits.slots import keys
from sse_limits.slots.embedded import find_server
from sse_limits.slots.redis import RedisStore
from tests.conftest import missing
from tests.live.fleet import Station

from .client import Clients, until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

LONG = {"SSE_LIMITS_LEASE_SECONDS": "60", "SSE_LIMITS_HEARTBEAT_SECONDS": "20"}
BOOTED = 1.0


@pytest.fixture(scope="module")
def valkey() -> Iterator[Store]:
    """A store of this module's own: the nodes of other tests would reap here too."""
    binary = find_server()
    if binary is None:
        missing("valkey-server or redis-server")
    store = Store("valkey", binary)
    yield store
    store.end()


def written(slots: Store, server: ServerProcess) -> int:
    """How many streams a server has told of."""
    return slots.client.hlen(keys.node_streams(slots.node_id(server.pid)))


async def hold(server: ServerProcess, clients: Clients, count: int, user: str, tenant: str) -> None:
    for _ in range(count):
        assert (await clients.get(server, "/raw/", token(user, tenant))).status == 200


async def test_a_restarted_node_finds_its_own_ghosts_and_takes_their_slots_back_at_once(
    start: Start, slots: Store, clients: Clients
) -> None:
    """Dispatcharr/Dispatcharr#1256. The last streams were admitted when nobody had told of them yet."""
    env = {**LONG, "SSE_LIMITS_FLEET_LIMIT": "205", "SSE_LIMITS_NODE_NAME": "web-1"}
    other = start("uvicorn", **LONG, SSE_LIMITS_FLEET_LIMIT="205")
    await hold(other, clients, 5, "gina", "globex")
    doomed = start("uvicorn", **env)
    for number in range(20):
        await hold(doomed, clients, 9, f"u{number}", "acme")
    await until(lambda: written(slots, doomed) == 180, 5)
    for number in range(20):
        await hold(doomed, clients, 1, f"u{number}", "acme")
    dead = slots.node_id(doomed.pid)
    doomed.kill()
    again = start("uvicorn", **env)
    began = time.monotonic()
    while (await clients.get(again, "/raw/", token("u0", "acme"))).status != 200:
        assert time.monotonic() < began + BOOTED, slots.in_use()
        await asyncio.sleep(0.02)
    expected = held(1, "u0", "acme") | held(5, "gina", "globex") | {keys.fleet(): 6}
    await until(lambda: slots.in_use() == expected, BOOTED)
    await until(lambda: f"reaped 200 slots of node {dead}" in again.log(), BOOTED)
    assert "reaped" not in other.log()


async def test_survivors_sweep_the_slots_and_the_rows_of_one_that_was_killed(
    start: Start, slots: Store, clients: Clients
) -> None:
    """nginx/nginx#131: the shared count of active connections never lost those of a killed worker."""
    beats = ("1", "1", "20")  # only one of the survivors looks, so that it can be said who has reaped
    nodes = [
        start("uvicorn", ready=False, SSE_LIMITS_LEASE_SECONDS="60", SSE_LIMITS_HEARTBEAT_SECONDS=each)
        for each in beats
    ]
    for number, node in enumerate(nodes):
        node.wait_until_ready()
        await hold(node, clients, 5, f"u{number}", "acme")
    await until(lambda: [written(slots, node) for node in nodes] == [5, 5, 5], 5)
    dead = slots.node_id(nodes[0].pid)
    nodes[0].kill()
    await until(lambda: slots.in_use() == held(5, "u1", "acme") | held(5, "u2", "acme") | held(10, None, "acme"), 2.5)
    await until(lambda: slots.client.keys(f"*{dead}*") == [], 1)
    board = RedisBoard(slots.url, lease_seconds=60, timeout_seconds=5, snapshot_seconds=0)

    def reaped() -> float:
        return sum(node.counters["sse_reaped_total"] for node in board.snapshot().nodes)

    try:
        await until(lambda: reaped() == 5, 2.5)
        found = board.snapshot()
        assert (found.fleet_in_use, sum(node.open for node in found.nodes)) == (10, 10)
        assert sorted(holder.subject for holder in found.tops[Scope.USER]) == ["acme/u1", "acme/u2"]
    finally:
        board.close()
    assert f"reaped 5 slots of node {dead}" in nodes[1].log()
    assert "reaped" not in nodes[2].log()


async def test_without_proof_of_death_the_lease_does_it(start: Start, slots: Store, clients: Clients) -> None:
    """praekeltfoundation/vumi-go#541, as in another container: its pid means nothing here."""
    env = {"SSE_LIMITS_LEASE_SECONDS": "4"}
    doomed, alive = start("uvicorn", **env), start("uvicorn", **env)
    await hold(doomed, clients, 5, "gina", "globex")
    await until(lambda: written(slots, doomed) == 5, 5)
    slots.hide(doomed.pid)
    killed = time.monotonic()
    doomed.kill()
    while time.monotonic() < killed + 2.3:  # two heartbeats of the survivor
        assert (await clients.get(alive, "/raw/", token())).status == 429
        await asyncio.sleep(0.1)
    while (await clients.get(alive, "/raw/", token())).status != 200:
        assert time.monotonic() < killed + 5
        await asyncio.sleep(0.05)
    assert "reaped" not in alive.log()


async def test_a_process_that_stands_still_is_not_dead(start: Start, slots: Store, clients: Clients) -> None:
    env = {"SSE_LIMITS_LEASE_SECONDS": "60"}
    frozen = start("uvicorn", **env)
    await hold(frozen, clients, 2, "gina", "globex")
    await until(lambda: written(slots, frozen) == 2, 5)
    frozen.process.send_signal(signal.SIGSTOP)
    alive = start("uvicorn", **env)
    await until(lambda: bool(slots.node_id(alive.pid)), 5)  # it has looked for the dead, and written after that
    assert slots.in_use() == held(2, "gina", "globex")
    frozen.process.send_signal(signal.SIGCONT)


# --- NODE_EXCLUSIVE --------------------------------------------------------------------------------------------------


@pytest.fixture
async def elsewhere(slots: Store) -> AsyncIterator[list[Station]]:
    """Two nodes of another machine, by their rows: one is called `web`, the other `web2`."""
    store = RedisStore(slots.url, lease_seconds=60, timeout_seconds=5, slow_timeout_seconds=5)
    sink = RedisSink(slots.url, lease_seconds=60, timeout_seconds=5)
    found = [Station(number, store, sink) for number in (1, 2)]
    found[1].id = f"web2:2:{found[1].name}"
    for number, station in enumerate(found):
        station.own = {"boot": "elsewhere", "pid_namespace": "pid:[2]", "start_ticks": 5}
        await station.open(f"u{number}", "t1")
        await station.write()
    yield found
    for station in found:
        for stream in list(station.rows):
            await station.close(stream)
    await sink.aclose()
    await store.aclose()


async def test_with_the_promise_an_earlier_process_of_the_name_is_dead_wherever_it_was(
    start: Start, slots: Store, elsewhere: list[Station]
) -> None:
    server = start("uvicorn", **LONG, SSE_LIMITS_NODE_NAME="web", SSE_LIMITS_NODE_EXCLUSIVE="true")
    expected = dict.fromkeys(elsewhere[1].held(), 1)
    await until(lambda: slots.in_use() == expected, BOOTED)
    await until(lambda: f"reaped 1 slots of node {elsewhere[0].id}" in server.log(), BOOTED)
    assert elsewhere[1].id in slots.client.zrange(keys.nodes(), 0, -1)


async def test_a_broken_promise_is_told_and_costs_nobody_a_slot(start: Start, slots: Store, clients: Clients) -> None:
    env = {"SSE_LIMITS_NODE_NAME": "web", "SSE_LIMITS_NODE_EXCLUSIVE": "true"}
    first = start("uvicorn", **LONG, **env)
    await hold(first, clients, 2, "gina", "globex")
    await until(lambda: written(slots, first) == 2, 5)
    second = start("uvicorn", **LONG, **env)
    second.expect("NODE_EXCLUSIVE says that only one process at a time is called web")
    await until(lambda: f"but node {slots.node_id(first.pid)} runs too" in second.log(), 5)
    assert slots.in_use() == held(2, "gina", "globex")
