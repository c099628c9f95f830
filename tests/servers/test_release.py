"""A slot is back within a second of every kind of end, whatever the server and the app do; never by the lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from .client import Clients, Stream, handshake_bytes, request_bytes, until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

Journal = Callable[[ServerProcess, str], Any]
SOON = 1.0
WENT_ON = "an app went on for 1 s after its stream had ended: cancelled"


async def until_noted(journal: Journal, server: ServerProcess, run: str, what: str, seconds: float = 5) -> float:
    """Wait until an app has noted something, and return when it did (epoch seconds)."""
    async with asyncio.timeout(seconds):
        while True:
            for noted, at in await journal(server, run):
                if noted.startswith(what):
                    return at
            await asyncio.sleep(0.02)


async def open_one(clients: Clients, server: ServerProcess, slots: Store, path: str, **options: Any) -> Stream:
    stream = await clients.get(server, path, token(), **options)
    assert stream.status == 200
    await stream.until(b"\n\n")
    assert slots.in_use() == held(1, "gina", "globex")
    return stream


HANG_UPS: dict[str, Callable[[Stream], None]] = {"fin": Stream.close, "rst": Stream.reset}
STREAMS = ["/raw/", "/events/", "/busy/", "/deaf/", "/tidy/", "/views/limited/", "/views/ticks/"]


@pytest.mark.parametrize("how", HANG_UPS)
@pytest.mark.parametrize("path", STREAMS)
async def test_a_client_that_leaves_gives_its_slot_back(
    server: ServerProcess, slots: Store, clients: Clients, how: str, path: str
) -> None:
    """vitalik/django-ninja#1166, emmett-framework/granian#412: also while the app sleeps, or only sends."""
    stream = await open_one(clients, server, slots, path)
    HANG_UPS[how](stream)
    await until(lambda: slots.in_use() == {}, SOON)


async def test_a_client_that_takes_nothing_and_leaves_gives_its_slot_back(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal
) -> None:
    """The app waits for a full socket; the process must live on (a producer that never waits for anything else)."""
    stream = await clients.get(server, "/firehose/?run=stuck", token())
    stream.stop_reading()
    await asyncio.sleep(0.3)
    stream.reset()
    await until(lambda: slots.in_use() == {}, SOON)
    await until_noted(journal, server, "stuck", "finally")
    answer = await asyncio.wait_for(clients.get(server, "/healthz"), 2)
    assert answer.status == 200


async def test_a_producer_that_never_waits_does_not_stop_the_process_when_its_client_leaves(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal
) -> None:
    stream = await clients.get(server, "/firehose/?run=hose", token())
    await stream.until(b"x" * 100)
    stream.close()
    await until(lambda: slots.in_use() == {}, SOON)
    await until_noted(journal, server, "hose", "finally")


@pytest.mark.parametrize("path", ["/busy/", "/stubborn/"])
async def test_the_slot_is_back_before_a_busy_app_notices_and_the_app_is_cancelled_later(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal, path: str
) -> None:
    run = f"{server.name}{path}"
    stream = await open_one(clients, server, slots, f"{path}?run={run}")
    before = server.log().count(WENT_ON)
    left_at = time.time()
    stream.close()
    await until(lambda: slots.in_use() == {}, SOON)
    assert await journal(server, run) == [], "the slot was back first"
    noted_at = await until_noted(journal, server, run, {"/busy/": "cancelled", "/stubborn/": "gave in"}[path])
    own = {"/busy/": 0, "/stubborn/": 1}[path]
    assert 0.9 <= noted_at - left_at - own < 2.5, "CLEANUP_SECONDS is 1 here"
    await until(lambda: server.log().count(WENT_ON) == before + 1, 1)


async def test_an_app_that_cleans_up_in_time_is_not_cancelled(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal
) -> None:
    run = f"{server.name}-tidy"
    (await open_one(clients, server, slots, f"/tidy/?run={run}")).close()
    await until_noted(journal, server, run, "cleaned up")
    assert slots.in_use() == {}


async def test_an_app_that_only_sends_is_cancelled_when_its_client_has_left(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal
) -> None:
    run = f"{server.name}-deaf"
    (await open_one(clients, server, slots, f"/deaf/?run={run}")).reset()
    await until_noted(journal, server, run, "finally", 3)


async def test_an_app_may_give_up_a_receive_and_ask_again(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal
) -> None:
    """No wake-up is lost between two calls of `receive`, whichever of them was cancelled."""
    run = f"{server.name}-impatient"
    stream = await open_one(clients, server, slots, f"/impatient/?run={run}")
    stream.close()
    await until_noted(journal, server, run, "http.disconnect,http.disconnect", 0.9)


@pytest.mark.parametrize("path", ["/returns/", "/completes/?run=c", "/views/dropped/?then=replace", "/upload/"])
async def test_an_app_that_returns_gives_the_slot_back_though_its_client_stays(
    server: ServerProcess, slots: Store, clients: Clients, path: str
) -> None:
    """Also where what a view made is never read (jaylfc/taOS#2220)."""
    server.expect("returned without completing response")
    stream = await clients.get(server, path, token())
    assert stream.status == 200
    await until(lambda: slots.in_use() == {}, SOON)


async def test_a_view_whose_response_is_replaced_by_304_holds_nothing(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    assert (await clients.get(server, "/views/dropped/?then=304", token())).status == 304
    await until(lambda: slots.in_use() == {}, SOON)


async def test_an_exception_gives_the_slot_back(start: Start, kind: str, slots: Store, clients: Clients) -> None:
    """An own process: after an exception in a response daphne tells its other apps nothing any more."""
    server = start(kind)
    server.expect("Exception", "Traceback", "ERROR", "AppFault", "ViewFault")
    stream = await clients.get(server, "/fails/", token())
    assert stream.status == 200
    await until(lambda: slots.in_use() == {}, SOON)
    assert (await clients.get(server, "/views/dropped/?then=raise", token())).status == 500
    await clients.websocket(server, "/fails/", token())
    await until(lambda: slots.in_use() == {}, SOON)
    await until(lambda: "AppFault" in server.log(), 3)  # the app's own fault is not hidden
    (await clients.get(server, "/raw/", token())).close()
    await until(lambda: slots.in_use() == {}, SOON)


async def test_a_hundred_visits_leave_nothing(server: ServerProcess, slots: Store, clients: Clients) -> None:
    for number in range(100):
        stream = await clients.get(server, "/raw/" if number % 2 else "/events/", token(f"u{number % 20}"))
        assert stream.status == 200
        (Stream.reset if number % 3 else Stream.close)(stream)
    await until(lambda: slots.in_use() == {}, SOON)


@pytest.mark.parametrize("how", HANG_UPS)
async def test_a_client_that_leaves_right_after_its_request_holds_nothing(
    server: ServerProcess, slots: Store, clients: Clients, how: str
) -> None:
    """modelcontextprotocol/python-sdk#1437: health checks that connect and leave."""
    for path in ("/raw/", "/events/", "/views/limited/", "/busy/"):
        for number in range(15):
            request = request_bytes("GET", path, [("Authorization", f"Bearer {token(f'u{number}')}")])
            HANG_UPS[how](await clients.send(server, request))
    async with asyncio.timeout(5):
        while (await clients.get(server, "/healthz")).status != 200:
            pass
    await until(lambda: slots.in_use() == {}, SOON)


async def test_half_a_request_holds_nothing(server: ServerProcess, slots: Store, clients: Clients) -> None:
    with slots.decisions() as asked:
        half = [await clients.send(server, b"GET /raw/ HTTP/1.1\r\nAuthorization: Bear") for _ in range(20)]
    assert asked == []
    assert slots.in_use() == {}
    assert (await clients.get(server, "/raw/", token())).status == 200
    for stream in half:
        stream.close()


# -- WebSockets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("path", ["/echo/", "/busy/", "/deaf/", "/consumer/"])
async def test_a_websocket_that_leaves_gives_its_slot_back(
    server: ServerProcess, slots: Store, clients: Clients, how: str, path: str
) -> None:
    websocket = await clients.websocket(server, path, token())
    assert slots.in_use() == held(1, "gina", "globex")
    if how == "close":
        closing = asyncio.create_task(websocket.close())
        await until(lambda: slots.in_use() == {}, SOON)
        await closing
    else:
        websocket.transport.abort()
        await until(lambda: slots.in_use() == {}, SOON)


@pytest.mark.parametrize("then", ["close", "sleep"])
async def test_the_clean_up_of_a_consumer_does_not_hold_the_slot(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal, then: str
) -> None:
    """django/channels#1925: `disconnect()` is slow, or closes what is closed."""
    run = f"{server.name}-{then}"
    websocket = await clients.websocket(server, f"/consumer/?run={run}&then={then}", token())
    await websocket.send("hello")
    assert await websocket.recv() == "hello"
    await websocket.close()
    await until(lambda: slots.in_use() == {}, SOON)
    await until_noted(journal, server, run, "disconnect")


async def test_a_websocket_that_leaves_before_it_is_accepted_holds_nothing(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    """emmett-framework/granian#835: the app accepts after 300 ms, the clients wait for 100."""

    async def visit(number: int) -> None:
        headers = [("Authorization", f"Bearer {token(f'u{number}')}")]
        stream = await clients.send(server, handshake_bytes("/late/", headers))
        await asyncio.sleep(0.1)
        (Stream.reset if number % 2 else Stream.close)(stream)

    await asyncio.gather(*(visit(number) for number in range(20)))
    await until(lambda: slots.in_use() == {}, SOON)


async def test_a_websocket_whose_app_returns_gives_its_slot_back(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    """Though daphne leaves the socket itself open."""
    await clients.websocket(server, "/returns/", token())
    await until(lambda: slots.in_use() == {}, SOON)


# -- messages pass through unharmed ----------------------------------------------------------------------------------


async def test_the_body_of_a_request_reaches_the_app_whole(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    import hashlib

    body = bytes(range(256)) * 12 * 1024
    answer = await clients.get(server, "/upload/", token(), method="POST", body=body)
    assert (await answer.chunk()).decode() == hashlib.sha256(body).hexdigest()


async def test_messages_arrive_in_order_though_the_app_is_slow(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    websocket = await clients.websocket(server, "/echo/?delay=0.0005", token())

    async def send() -> None:
        for number in range(1000):
            await websocket.send(str(number))

    sending = asyncio.create_task(send())
    async with asyncio.timeout(20):
        assert [await websocket.recv() for _ in range(1000)] == [str(number) for number in range(1000)]
    await sending
