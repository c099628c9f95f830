"""Events out, on every server: what is published arrives, and who does not read holds up nobody."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from sse_limits.core.frames import event
from sse_limits.publishing import RedisPublisher

from .client import Clients, until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

DEADLINE_SECONDS = 1
Pair = tuple[ServerProcess, ServerProcess]
EVENT_BYTES = 16_000
BAD_MESSAGES = ["", "{", "[]", "1", '{"type": 1}', '{"topic": "x"}', "\0", '{"type": "x", "topic": 3}']


@pytest.fixture
def publisher(slots: Store) -> Iterator[RedisPublisher]:
    found = RedisPublisher(slots.url, 2.0)
    yield found
    found.close()


def numbered(count: int, size: int = 20) -> list[tuple[str, bytes]]:
    return [("news", event(f"{number} ".ljust(size, "."))) for number in range(count)]


async def test_a_stream_begins_at_once_and_names_itself(server: ServerProcess, clients: Clients) -> None:
    stream = await clients.get(server, "/events/?topic=news", token())
    assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
    assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-store", "no")
    begun = await stream.until(b"\n\n")
    assert re.fullmatch(rb':\nevent: hello\ndata: \{"stream": "\w{8}-\d+"\}\n\n', begun), begun


async def test_events_arrive_in_order_with_their_ids_on_every_node(
    pair: Pair, clients: Clients, publisher: RedisPublisher
) -> None:
    streams = [await clients.get(server, "/events/?topic=news", token()) for server in pair]
    for stream in streams:
        await stream.until(b"hello")
    ids = await asyncio.to_thread(publisher.publish, numbered(40))
    for stream in streams:
        came = (await stream.until(b"data: 39 ")).decode()
        assert re.findall(r"^id: (\S+)$", came, re.M) == ids
        assert re.findall(r"^data: (\d+) ", came, re.M) == [str(number) for number in range(40)]


async def test_several_topics_carry_no_ids(server: ServerProcess, clients: Clients, publisher: RedisPublisher) -> None:
    stream = await clients.get(server, "/events/?topic=news&topic=sport", token())
    await stream.until(b"hello")
    publisher.publish([("news", event("n")), ("sport", event("s"))])
    assert b"id:" not in await stream.until(b"data: s")


async def test_who_comes_back_is_told_that_events_were_missed(server: ServerProcess, clients: Clients) -> None:
    stream = await clients.get(server, "/events/?topic=news", token(), headers=[("Last-Event-ID", "1-0")])
    assert b"event: resync\n" in await stream.until(b"not_kept")


async def test_a_class_with_tenant_topics_reads_its_tenants_own(
    server: ServerProcess, clients: Clients, publisher: RedisPublisher
) -> None:
    stream = await clients.get(server, "/tenant/events/?topic=news", token())
    await stream.until(b"hello")
    publisher.publish([("news", event("global")), ("acme/news", event("acme")), ("globex/news", event("ours"))])
    came = await stream.until(b"ours")
    assert b"global" not in came
    assert b"acme" not in came


async def test_an_idle_stream_is_kept_alive(server: ServerProcess, clients: Clients) -> None:
    stream = await clients.get(server, "/events/?topic=news", token())
    await stream.until(b"hello")
    assert (await stream.until(b":\n:\n", 5)).endswith(b":\n:\n")


async def test_a_store_that_is_away_when_topics_are_joined_holds_nobody_up(
    start: Start, kind: str, clients: Clients
) -> None:
    server = start(kind, SSE_LIMITS_REDIS_URL="unix:///nowhere/at/all")
    server.expect("the slot store does not answer")
    stream = await clients.get(server, "/events/?topic=news", token())
    assert stream.status == 200
    await stream.until(b"event: hello")


async def test_a_reader_that_stalls_is_ended_at_the_deadline_and_holds_up_nobody(
    start: Start, kind: str, slots: Store, clients: Clients, publisher: RedisPublisher
) -> None:
    env = {"WRITE_DEADLINE_SECONDS": str(DEADLINE_SECONDS), "LANE_EVENTS": "2000", "LANE_BYTES": "100000000"}
    server = start(kind, **{f"SSE_LIMITS_{key}": value for key, value in env.items()})
    reads = await clients.get(server, "/events/?topic=news", token("reads"))
    stalls = await clients.get(server, "/events/?topic=news", token("stalls"))
    foreign = await clients.get(server, "/firehose/?run=stall", token("foreign"))
    for stream in (reads, stalls):
        await stream.until(b"hello")
    stalls.stop_reading()
    foreign.stop_reading()
    reading = asyncio.create_task(reads.until(b"data: 799 ", 20))
    for start_at in range(0, 800, 100):
        await asyncio.to_thread(publisher.publish, numbered(800, EVENT_BYTES)[start_at : start_at + 100])
        await asyncio.sleep(0.02)
    assert (await reading).count(b"\ndata: ") >= 800
    began = time.monotonic()
    await until(lambda: slots.in_use() == held(1, "reads", "globex"), 10)
    assert time.monotonic() - began < DEADLINE_SECONDS + 3
    await until(lambda: server.log().count("ended: write_deadline") == 2, 1)
    assert "an app went on" not in server.log(), "it was cancelled at once"


class TestWebsocket:
    async def test_messages_are_answered(self, server: ServerProcess, clients: Clients) -> None:
        socket = await clients.websocket(server, "/ws/", token())
        await socket.send(json.dumps({"type": "echo", "data": "ä\u2028"}))
        assert json.loads(await socket.recv()) == {"type": "echo", "data": "ä\u2028"}

    @pytest.mark.parametrize("bad", BAD_MESSAGES)
    async def test_a_bad_message_is_told_so_and_the_socket_lives(
        self, server: ServerProcess, clients: Clients, bad: str
    ) -> None:
        socket = await clients.websocket(server, "/ws/", token())
        await socket.send(bad)
        assert json.loads(await socket.recv())["type"] == "error"
        await socket.send(json.dumps({"type": "echo", "data": 1}))
        assert json.loads(await socket.recv())["type"] == "echo"

    async def test_topics_can_be_joined_and_left(
        self, server: ServerProcess, clients: Clients, publisher: RedisPublisher
    ) -> None:
        socket = await clients.websocket(server, "/ws/", token())
        await socket.send(json.dumps({"type": "subscribe", "topic": "news"}))
        assert json.loads(await socket.recv()) == {"type": "subscribed", "topic": "news"}
        [event_id] = publisher.publish([("news", event("line one\nline two", name="greet"))])
        assert json.loads(await socket.recv()) == {
            "type": "event",
            "topic": "news",
            "id": event_id,
            "event": "greet",
            "data": "line one\nline two",
        }
        await socket.send(json.dumps({"type": "unsubscribe", "topic": "news"}))
        assert json.loads(await socket.recv())["type"] == "unsubscribed"
        publisher.publish([("news", event("no longer"))])
        await socket.send(json.dumps({"type": "echo", "data": "last"}))
        assert json.loads(await socket.recv()) == {"type": "echo", "data": "last"}

    async def test_a_message_over_the_tiers_size_closes_with_1009(
        self, server: ServerProcess, slots: Store, clients: Clients
    ) -> None:
        socket = await clients.websocket(server, "/ws/", token())
        await socket.send("x" * (64 * 1024 + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        await until(lambda: slots.in_use() == {}, 1)

    async def test_channel_groups_reach_every_socket_of_the_process(
        self, server: ServerProcess, clients: Clients
    ) -> None:
        sockets = [await clients.websocket(server, "/group/", token()) for _ in range(3)]
        await sockets[0].send("hello")
        assert [await socket.recv() for socket in sockets] == ["hello"] * 3

    async def test_a_socket_that_does_not_read_holds_up_neither_groups_nor_itself(
        self, server: ServerProcess, clients: Clients
    ) -> None:
        stalled = await clients.websocket(server, "/group/", token("stalled"), max_queue=1)
        quick = await clients.websocket(server, "/group/", token("quick"), max_queue=None)
        stalled.transport.pause_reading()
        for start_at in range(0, 400, 40):  # fewer than a lane holds
            for number in range(start_at, start_at + 40):
                await quick.send(f"{number} ".ljust(EVENT_BYTES, "."))
            came = [await asyncio.wait_for(quick.recv(), 10) for _ in range(40)]
            assert [message.split(" ")[0] for message in came] == [str(start_at + number) for number in range(40)]
