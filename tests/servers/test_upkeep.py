"""Leases over time, and a store that forgets, stalls, dies and comes back: no open stream ends for it."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from websockets import InvalidStatus

from sse_limits.slots import keys
from sse_limits.slots.embedded import find_server

from .client import Clients, until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

Pair = tuple[ServerProcess, ServerProcess]
HEARTBEAT = 1.0
LEASE = 3.0
CLOSED = ("vera", "vault")


async def test_a_stream_outlives_its_lease_and_keeps_its_slot(pair: Pair, slots: Store, clients: Clients) -> None:
    streams = [await clients.get(pair[n % 2], path, token()) for n, path in enumerate(("/raw/", "/events/", "/busy/"))]
    websocket = await clients.websocket(pair[1], "/echo/", token())
    ends = time.monotonic() + LEASE + HEARTBEAT
    while time.monotonic() < ends:
        assert slots.in_use() == held(4, "gina", "globex")
        await asyncio.sleep(0.1)
    await websocket.send("still there")
    assert await websocket.recv() == "still there"
    for stream in streams:
        stream.close()
    await websocket.close()
    await until(lambda: slots.in_use() == {}, 1)
    ends = time.monotonic() + 2 * HEARTBEAT
    while time.monotonic() < ends:
        assert slots.in_use() == {}, "no renewal brings a slot back"
        await asyncio.sleep(0.05)


async def test_streams_that_end_while_they_are_renewed_stay_ended(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    """Visits that begin and end around the heartbeats of the node, which may not revive them."""
    ends = time.monotonic() + 2.5 * HEARTBEAT
    number = 0
    while time.monotonic() < ends:
        number += 1
        stream = await clients.get(server, "/raw/", token(f"u{number % 40}"))
        assert stream.status == 200
        stream.close()
    await until(lambda: slots.in_use() == {}, 0.9)


async def test_a_store_that_has_forgotten_everything_knows_it_again_within_two_heartbeats(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    streams = [await clients.get(pair[n % 2], "/raw/", token()) for n in range(5)]
    slots.client.flushall()
    await until(lambda: slots.in_use() == held(5, "gina", "globex"), 2 * HEARTBEAT + 0.5)
    assert (await clients.get(pair[0], "/raw/", token())).status == 429
    for stream in streams:
        await stream.until(b": begun")
        stream.close()
    await until(lambda: slots.in_use() == {}, 1)


async def test_after_a_flush_newcomers_of_the_same_node_do_not_displace_those_who_were_there(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    for _ in range(5):
        await clients.get(server, "/raw/", token())
    slots.client.flushall()
    assert (await clients.get(server, "/raw/", token())).status == 429


async def test_no_stream_ends_although_a_flush_let_others_take_its_place(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    """Another node filled the limit in the meantime: the overshoot is the limit at most, and nobody new gets in."""
    first = [await clients.get(pair[0], "/raw/", token()) for _ in range(5)]
    slots.client.flushall()
    newcomers = [await clients.get(pair[1], "/raw/", token()) for _ in range(5)]
    assert [stream.status for stream in newcomers] == [200] * 5
    await until(lambda: slots.in_use() == held(10, "gina", "globex"), 2 * HEARTBEAT)
    for stream in first:
        assert await clients.status(pair[0], "/raw/", token()) == 429
        stream.close()
    await until(lambda: slots.in_use() == held(5, "gina", "globex"), 1)
    for stream in newcomers:
        await stream.until(b": begun")
    assert await clients.status(pair[1], "/raw/", token()) == 429


# -- the store is away -----------------------------------------------------------------------------------------------


async def assert_closed(clients: Clients, server: ServerProcess) -> None:
    """A closed tier: every kind of request is answered 503 with all that a client needs, well within a second."""
    for path in ("/raw/", "/events/", "/views/limited/"):
        began = time.monotonic()
        refused = await clients.get(server, path, token(*CLOSED))
        assert time.monotonic() - began < 1
        assert refused.status == 503, path
        body = json.loads(await refused.rest())
        assert (body["error"], body["reason"], body["status"]) == ("store_unavailable", "store", 503)
        assert refused.headers["retry-after"] == str(body["retry_after"])
    assert (await clients.get(server, "/raw/", token(*CLOSED), method="HEAD")).status == 503
    assert (await clients.get(server, "/raw/")).status == 401, "who is nobody still is"
    with pytest.raises(InvalidStatus) as refused_socket:
        await clients.websocket(server, "/echo/", token(*CLOSED))
    assert refused_socket.value.response.status_code == 503
    assert (await clients.get(server, "/healthz")).status == 200


async def test_while_the_store_stalls_nodes_enforce_their_share_and_streams_go_on(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    """Each may hold its part of a limit, and of those that it admits none ends when the store is back.

    Half of it, or less where the nodes have counted others within a lease: those of an earlier test.
    """
    server = pair[0]
    for each in pair:
        each.expect("the slot store")
    await until(lambda: slots.client.zcard(keys.nodes()) >= 2)
    await asyncio.sleep(HEARTBEAT)  # by then both have counted each other
    before = len(server.log())
    leaver = await clients.get(server, "/raw/", token())
    stayer = await clients.get(server, "/events/", token())
    with slots.stalled():
        await assert_closed(clients, server)
        answers = await asyncio.gather(*(clients.get(server, "/raw/", token(f"u{n}")) for n in range(50)))
        refused = await clients.get(server, "/raw/", token("late"))
        problem = json.loads(await refused.rest())
        share = problem["limit"]
        assert share in {math.ceil(50 / nodes) for nodes in range(2, 8)}
        assert (refused.status, problem["scope"], problem["in_use"]) == (429, "tenant", share)
        assert Counter(answer.status for answer in answers) == {200: share - 2, 429: 52 - share}, "two were there"
        leaver.close()
        await stayer.until(b"\n:\n")
        await asyncio.sleep(0.2)
    await until(lambda: slots.in_use().get(keys.tenant("globex")) == share - 1, HEARTBEAT + 1)
    await until(lambda: is_admitted(clients, server), 2)
    await stayer.until(b"\n:\n")
    said = [line for line in server.log()[before:].splitlines() if "WARNING" in line]
    assert ["does not answer" in line for line in said] == [True, False], said


async def is_admitted(clients: Clients, server: ServerProcess) -> bool:
    return await clients.status(server, "/raw/", token()) == 200


@pytest.fixture
def own_store() -> Iterator[Store]:
    """A store that the test may kill."""
    store = Store("valkey", str(find_server()))
    yield store
    store.end()


async def test_a_store_that_dies_and_comes_back_empty_costs_no_stream(
    start: Start, kind: str, own_store: Store, clients: Clients
) -> None:
    server = start(kind, SSE_LIMITS_REDIS_URL=own_store.url)
    server.expect("the slot store")
    streams = [await clients.get(server, "/events/", token()) for _ in range(3)]
    own_store.kill()
    await assert_closed(clients, server)
    streams.pop().close()
    await asyncio.gather(*(stream.until(b":\n") for stream in streams))
    own_store.restart()
    await until(lambda: own_store.in_use() == held(2, "gina", "globex"), 2 * HEARTBEAT + 1)
    assert (await clients.get(server, "/raw/", token())).status == 200
    await asyncio.gather(*(stream.until(b":\n") for stream in streams))
    await clients.aclose()
    await until(lambda: own_store.in_use() == {}, 1)
    assert own_store.immortal_keys() == []


async def test_a_server_starts_without_its_store_says_so_once_and_works_when_it_comes(
    start: Start, kind: str, own_store: Store, clients: Clients
) -> None:
    own_store.kill()
    server = start(kind, SSE_LIMITS_REDIS_URL=own_store.url)
    server.expect("the slot store")
    await assert_closed(clients, server)
    said = [line for line in server.log().splitlines() if "WARNING sse_limits.slots.availability" in line]
    assert len(said) == 1, said
    assert "SSE_LIMITS_REDIS_URL" in said[0]
    own_store.restart()
    await until(lambda: is_admitted(clients, server), 2)
    await clients.aclose()
    await until(lambda: own_store.in_use() == {}, 1)
