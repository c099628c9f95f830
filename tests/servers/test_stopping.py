"""SIGTERM: every client is told, every slot is back, and the process is gone in time; and what stock commands do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterable

import pytest
from websockets import InvalidStatus
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from sse_limits.slots import keys

from .client import Clients, Stream
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

EACH = 50
MOST_SECONDS = 5.0
RESTART = 1012


async def open_streams(clients: Clients, server: ServerProcess, number: int) -> list[Stream]:
    """So many event streams, of as many users."""
    streams = [await clients.get(server, "/events/?topic=news", token(f"s{each}", None)) for each in range(number)]
    for stream in streams:
        await stream.until(b"hello")
    return streams


async def open_websockets(clients: Clients, server: ServerProcess, number: int) -> list[ClientConnection]:
    return [await clients.websocket(server, "/ws/", token(f"w{each}", None)) for each in range(number)]


async def assert_told(streams: Iterable[Stream], sockets: Iterable[ClientConnection]) -> None:
    """Each was told that the server goes, and when to come back."""
    for stream in streams:
        goodbye = await stream.rest(MOST_SECONDS)
        assert b"event: shutdown\n" in goodbye
        assert re.search(rb"retry: \d+\n", goodbye)
    for socket in sockets:
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), MOST_SECONDS)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == RESTART


@pytest.mark.parametrize(("workers", "each"), [(1, EACH), (2, 10)])
async def test_serve_tells_everybody_and_ends_in_time(
    start: Start, kind: str, slots: Store, clients: Clients, workers: int, each: int
) -> None:
    server = start(kind, workers=workers)
    streams = await open_streams(clients, server, each)
    sockets = await open_websockets(clients, server, each)
    assert slots.in_use()[keys.fleet()] == 2 * each
    began = time.monotonic()
    server.process.terminate()
    told = asyncio.create_task(assert_told(streams, sockets))
    await asyncio.to_thread(server.process.wait, 2 * MOST_SECONDS)
    assert time.monotonic() - began < MOST_SECONDS
    assert slots.in_use() == {}
    assert "Killing" not in server.log(), "granian's last resort"
    await told


async def test_an_app_of_its_own_making_is_told_too(start: Start, kind: str, slots: Store, clients: Clients) -> None:
    server = start(kind)
    foreign = await clients.get(server, "/raw/", token())
    server.process.terminate()
    await assert_told([foreign], [])
    await asyncio.to_thread(server.process.wait, MOST_SECONDS)


async def test_a_node_that_is_told_to_stop_gives_its_slots_back(
    start: Start, kind: str, slots: Store, clients: Clients
) -> None:
    """Kludex/uvicorn#2829: clients that do not even answer the goodbye."""
    server = start(kind)
    server.expect("ERROR: +Cancel", "timeout graceful shutdown", "ERROR: +Exception in ASGI", "Traceback")
    for _ in range(3):
        await clients.get(server, "/raw/", token())
    with contextlib.suppress(InvalidStatus):
        await clients.websocket(server, "/echo/", token())
    assert slots.in_use() == held(4, "gina", "globex")
    server.process.terminate()
    await asyncio.to_thread(server.process.wait, 8)
    assert slots.in_use() == {}


async def test_stock_granian_tells_its_event_streams(start: Start, slots: Store, clients: Clients) -> None:
    """Not its WebSockets: it drops them while we speak to them, and sometimes dies of that (granian 2.8.9)."""
    server = start("stock granian")
    streams = await open_streams(clients, server, EACH)
    server.process.terminate()
    await assert_told(streams, [])
    await asyncio.to_thread(server.process.wait, MOST_SECONDS)
    assert slots.in_use() == {}


async def test_stock_hypercorn_tells_nobody_and_gives_the_slots_back(
    start: Start, slots: Store, clients: Clients
) -> None:
    """Its workers are told by an event of multiprocessing, not by a signal (hypercorn 0.18)."""
    server = start("stock hypercorn")
    streams = await open_streams(clients, server, 3)
    await open_websockets(clients, server, 3)
    server.process.terminate()
    for stream in streams:
        with contextlib.suppress(ConnectionError):
            assert b"event: shutdown\n" not in await stream.rest(2 * MOST_SECONDS)
    await asyncio.to_thread(server.process.wait, 2 * MOST_SECONDS)
    assert slots.in_use() == {}
