"""What a client sends and its app does not take: bounded, in order, and no reason to keep the slot of who has left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from websockets.asyncio.client import ClientConnection

from .client import Clients, Stream, request_bytes, until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

KEEPALIVE = 0.5  # seconds, of the servers of these tests
SOON = 1.0


async def flood(websocket: ClientConnection, message: str = "x" * 500_000) -> int:
    """Send until nothing more is taken; return how many messages were."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 100:
            async with asyncio.timeout(0.3):
                await websocket.send(message)
            sent += 1
    return sent


async def test_a_client_that_sends_more_than_the_app_takes_is_held_up(
    start: Start, kind: str, slots: Store, clients: Clients
) -> None:
    """The mailbox is bounded, so the server's own back-pressure reaches the client."""
    server = start(kind, SSE_LIMITS_KEEPALIVE_SECONDS="5")
    websocket = await clients.websocket(server, "/echo/?hold=2", token())
    assert await flood(websocket) < 40, "20 MB"
    async with asyncio.timeout(5):
        assert len(await websocket.recv()) == 500_000  # once the app takes, it goes on
    assert slots.in_use() == held(1, "gina", "globex")


@pytest.mark.parametrize("path", ["/busy/", "/echo/?hold=8", "/deaf/"])
async def test_the_slot_of_a_client_that_floods_and_leaves_waits_for_no_app(
    start: Start, kind: str, slots: Store, clients: Clients, path: str
) -> None:
    """Nothing tells a server that has stopped reading of a client's end: what was sent stands before it."""
    server = start(kind, SSE_LIMITS_KEEPALIVE_SECONDS="1")
    websocket = await clients.websocket(server, path, token())
    await flood(websocket)
    websocket.transport.abort()
    await until(lambda: slots.in_use() == {}, 1 + SOON)


async def test_a_client_that_stays_is_told_that_nobody_takes_what_it_sends(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    websocket = await clients.websocket(server, "/busy/", token())
    await flood(websocket)
    await until(lambda: slots.in_use() == {}, KEEPALIVE + SOON)
    async with asyncio.timeout(5):
        await websocket.wait_closed()
    assert (websocket.close_code, websocket.close_reason) == (1013, "slow_consumer")


async def test_a_full_mailbox_delays_the_news_of_the_end_to_the_next_keepalive_only(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    """The rest of what was sent fits into the mailbox's spare room, and the disconnect stands behind it."""
    websocket = await clients.websocket(server, "/echo/?hold=8", token())
    for number in range(100):
        await websocket.send(str(number))
    websocket.transport.abort()
    await until(lambda: slots.in_use() == {}, KEEPALIVE + SOON)


async def test_an_app_that_was_away_for_several_keepalives_gets_everything_in_order(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    websocket = await clients.websocket(server, "/echo/?hold=1.5", token())
    numbers = [str(number) for number in range(120)]
    for number in numbers:
        await websocket.send(number)
    async with asyncio.timeout(5):
        assert [await websocket.recv() for _ in numbers] == numbers


async def test_one_large_message_may_wait_for_its_app_as_long_as_it_takes(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    websocket = await clients.websocket(server, "/echo/?hold=1.5", token(), max_size=None)
    await websocket.send("x" * 3_000_000)
    async with asyncio.timeout(5):
        assert len(await websocket.recv()) == 3_000_000
    assert slots.in_use() == held(1, "gina", "globex")


@pytest.mark.parametrize("how", [Stream.close, Stream.reset], ids=["fin", "rst"])
@pytest.mark.parametrize("path", ["/events/", "/busy/"])
async def test_a_body_that_the_app_does_not_read_does_not_keep_the_slot_of_who_has_left(
    server: ServerProcess, kind: str, slots: Store, clients: Clients, path: str, how: Callable[[Stream], None]
) -> None:
    headers = [("Authorization", f"Bearer {token()}"), ("Content-Length", "10000000")]
    stream = await clients.send(server, request_bytes("GET", path, headers) + b"x" * 300_000)
    if kind != "daphne":  # which calls an app only when the whole body is there
        assert (await stream.head()).status == 200
    how(stream)
    await until(lambda: slots.in_use() == {}, KEEPALIVE + SOON)
