"""The hub on a real server: what is published after a join arrives once and in order, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from sse_limits.core.frames import event
from sse_limits.publishing import MemoryTopics, Publisher, RedisPublisher
from sse_limits.slots import keys
from sse_limits.slots.embedded import find_server
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.feeds import Feed, MemoryFeed, RedisFeed
from sse_limits.streams.hub import Delivery, Hub
from tests.slots.backends import next_ms
from tests.slots.servers import ClusterServer, Server

PATIENCE_SECONDS = 0.25
FEED_SECONDS = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binary = find_server()
    assert binary is not None, "the embedded extra brings one"
    found = Server("valkey", binary)
    yield found
    found.end()


class Reader:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.data: list[str] = []
        self.ids: list[str] = []

    def deliver(self, delivery: Delivery) -> None:
        self.data.append(delivery.published.frame.decode().removeprefix("data: ").rstrip("\n"))
        self.ids.append(delivery.published.id)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.data) < count:  # noqa: ASYNC110 - a condition on what has come
                await asyncio.sleep(0.005)


def hub_over(feed: Feed) -> Hub:
    return Hub(feed, epoch_ms, lambda: PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def running(hub: Hub) -> AsyncIterator[None]:
    delivering = asyncio.ensure_future(hub.run())
    yield
    delivering.cancel()
    await asyncio.wait([delivering])
    await hub.aclose()


@pytest.fixture
async def redis_ends(server: Server) -> AsyncIterator[tuple[Hub, RedisPublisher]]:
    server.client.flushall()
    publisher = RedisPublisher(server.url, 1.0)
    hub = hub_over(RedisFeed(server.url, 1.0))
    async with running(hub):
        yield hub, publisher
    publisher.close()


@pytest.fixture
async def cluster_ends(cluster: ClusterServer) -> AsyncIterator[tuple[Hub, RedisPublisher]]:
    """Topics fall to different masters; a message is heard on each."""
    cluster.flushall()
    publisher = RedisPublisher(cluster.url, 1.0)
    hub = hub_over(RedisFeed(cluster.url, 1.0))
    async with running(hub):
        yield hub, publisher
    publisher.close()


@pytest.fixture
async def memory_ends() -> AsyncIterator[tuple[Hub, MemoryTopics]]:
    publisher = MemoryTopics()
    hub = hub_over(MemoryFeed(publisher))
    async with running(hub):
        yield hub, publisher


@pytest.fixture(params=["redis_ends", "cluster_ends", "memory_ends"])
def ends(request: pytest.FixtureRequest) -> tuple[Hub, Publisher]:
    found: tuple[Hub, Publisher] = request.getfixturevalue(request.param)
    return found


async def test_what_is_published_after_a_join_arrives_in_order(ends: tuple[Hub, Publisher]) -> None:
    hub, publisher = ends
    reader = Reader()
    publisher.publish([("news", event("before"))])
    await hub.join("news", reader)
    await asyncio.to_thread(publisher.publish, [("news", event(str(number))) for number in range(100)])
    await reader.until(100)
    assert reader.data == [str(number) for number in range(100)]


async def test_every_reader_of_a_topic_gets_the_event_and_no_other(ends: tuple[Hub, Publisher]) -> None:
    hub, publisher = ends
    first, second, other = Reader(), Reader(), Reader()
    await asyncio.gather(hub.join("news", first), hub.join("news", second), hub.join("sport", other))
    publisher.publish([("news", event("n")), ("sport", event("s"))])
    for reader in (first, second, other):
        await reader.until(1)
    assert (first.data, second.data, other.data) == (["n"], ["n"], ["s"])


async def test_who_has_left_gets_nothing_and_the_last_one_ends_the_subscription(ends: tuple[Hub, Publisher]) -> None:
    hub, publisher = ends
    reader, stays = Reader(), Reader()
    await hub.join("news", reader)
    await hub.join("sport", stays)
    hub.leave("news", reader)
    publisher.publish([("news", event("n")), ("sport", event("s"))])
    await stays.until(1)
    assert reader.data == []


async def test_after_a_break_what_was_missed_comes_from_the_log(
    server: Server, redis_ends: tuple[Hub, RedisPublisher]
) -> None:
    hub, publisher = redis_ends
    reader = Reader()
    await hub.join("news", reader)
    publisher.publish([("news", event("1"))])
    await reader.until(1)
    for client in server.client.client_list():
        if client["sub"] != "0":
            server.client.client_kill_filter(_id=client["id"])
    publisher.publish([("news", event("2")), ("news", event("3"))])
    await reader.until(3)
    assert reader.data == ["1", "2", "3"]


async def test_a_message_lost_on_the_way_is_fetched_before_the_next_one(
    server: Server, redis_ends: tuple[Hub, RedisPublisher]
) -> None:
    hub, publisher = redis_ends
    reader = Reader()
    await hub.join("news", reader)
    publisher.publish([("news", event("1"))])
    await reader.until(1)
    server.client.xadd(keys.log("news"), {"frame": "data: 2\n\n"})  # logged, and its message never came
    publisher.publish([("news", event("3"))])
    await reader.until(3)
    assert reader.data == ["1", "2", "3"]


async def test_who_joins_while_the_store_is_away_waits_for_nothing_and_gets_all_that_comes_later(
    server: Server, redis_ends: tuple[Hub, RedisPublisher]
) -> None:
    """What is published before its subscription takes effect comes from the log, also when nothing follows."""
    hub, publisher = redis_ends
    early, late = Reader(), Reader()
    publisher.publish([("news", event("before")), ("sport", event("before"))])
    await next_ms()
    with server.stalled():
        for reader, topic in ((early, "news"), (late, "sport")):
            async with asyncio.timeout(PATIENCE_SECONDS + 1):
                await hub.join(topic, reader)
        await asyncio.sleep(2 * FEED_SECONDS)
    publisher.publish([("news", event("1")), ("sport", event("1"))])
    for reader in (early, late):
        await reader.until(1)
        assert reader.data == ["1"]


async def test_who_leaves_while_the_store_is_away_waits_for_nothing(
    server: Server, redis_ends: tuple[Hub, RedisPublisher]
) -> None:
    hub, publisher = redis_ends
    reader, again = Reader(), Reader()
    await hub.join("news", reader)
    with server.stalled():
        hub.leave("news", reader)
        await hub.join("news", again)
    publisher.publish([("news", event("1"))])
    await again.until(1)
    assert (reader.data, again.data) == ([], ["1"])


async def test_a_hub_without_a_store_ends_at_once() -> None:
    hub = hub_over(RedisFeed("unix:///nowhere/at/all", FEED_SECONDS))
    async with running(hub):
        await hub.join("news", Reader())
