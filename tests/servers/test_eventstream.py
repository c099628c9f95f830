"""django-eventstream behind the guard, unchanged: admitted, refused, and its slot back as that of any other stream."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from .client import Clients, Stream, until
from .harness import ServerProcess
from .slots import Store, held, token

OPEN = b"event: stream-open\ndata:\n\n"


async def open_one(clients: Clients, server: ServerProcess, **options: object) -> Stream:
    stream = await clients.get(server, "/es/", token(), **options)
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
    await stream.until(OPEN)
    return stream


async def test_events_come_as_they_are_sent_though_gzip_stands_in_front(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    stream = await open_one(clients, server, headers=[("Accept-Encoding", "gzip, deflate, br")])
    assert "content-encoding" not in stream.headers
    assert slots.in_use() == held(1, "gina", "globex")
    for said in ("one", "two"):
        assert (await clients.get(server, f"/es/send/?said={said}")).status == 200
        assert (await stream.until(b"\n\n")).endswith(b'event: message\ndata: {"said": "%s"}\n\n' % said.encode())


async def test_at_the_limit_it_is_refused_before_it_knows_of_the_client(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    for _ in range(5):
        await open_one(clients, server)
    refused = await clients.get(server, "/es/", token())
    problem = json.loads(await refused.rest())
    assert (refused.status, problem["reason"], problem["limit"]) == (429, "user_limit", 5)
    assert int(refused.headers["retry-after"]) > 0
    assert (await clients.get(server, "/es/")).status == 401
    assert slots.in_use() == held(5, "gina", "globex")


@pytest.mark.parametrize("how", [Stream.close, Stream.reset], ids=["fin", "rst"])
async def test_a_client_that_leaves_gives_its_slot_back_and_another_may_come(
    server: ServerProcess, slots: Store, clients: Clients, how: Callable[[Stream], None]
) -> None:
    streams = [await open_one(clients, server) for _ in range(5)]
    how(streams[0])
    await until(lambda: slots.in_use() == held(4, "gina", "globex"), 1)
    await open_one(clients, server)
    for stream in streams[1:]:
        how(stream)
    await until(lambda: slots.in_use() == held(1, "gina", "globex"), 1)


async def test_head_answers_what_get_would_get_and_takes_no_slot(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    """django-eventstream itself would begin a stream for it."""
    probe = await clients.get(server, "/es/", token(), method="HEAD")
    assert (probe.status, probe.headers["content-type"]) == (200, "text/event-stream")
    assert slots.in_use() == {}
    for _ in range(5):
        await open_one(clients, server)
    assert (await clients.get(server, "/es/", token(), method="HEAD")).status == 429


async def test_who_is_evicted_is_told_and_does_not_come_back(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    oldest = await clients.get(server, "/es/", token("u1", "small"))
    await oldest.until(OPEN)
    for _ in range(2):
        assert (await clients.get(server, "/es/", token("u1", "small"))).status == 200
    last = await oldest.rest()
    assert b"event: evicted\n" in last
    marker = next(line for line in last.decode().splitlines() if line.startswith("id: ")).removeprefix("id: ")
    again = await clients.get(server, "/es/", token("u1", "small"), headers=[("Last-Event-ID", marker)])
    assert again.status == 204


@pytest.mark.parametrize("last_id", ["news:7", "news:7,sport:1"])
async def test_its_own_last_event_id_reaches_it(
    server: ServerProcess, slots: Store, clients: Clients, last_id: str
) -> None:
    await open_one(clients, server, headers=[("Last-Event-ID", last_id)])
    assert slots.in_use() == held(1, "gina", "globex")


async def test_a_last_event_id_that_it_cannot_read_is_its_own_error_and_holds_nothing(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    stream = await clients.get(server, "/es/", token(), headers=[("Last-Event-ID", "1-0")])
    assert b"event: stream-error\n" in await stream.rest()
    await until(lambda: slots.in_use() == {}, 1)
