"""Publishing to a real server: order, bounds, faults; and the same to the memory of one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sse_limits import publishing
from sse_limits.core.frames import event
from sse_limits.publishing import Event, MemoryTopics, RedisPublisher, encode
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.embedded import find_server
from sse_limits.slots.hash_slots import hash_slot
from tests.slots.servers import ClusterServer, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binary = find_server()
    assert binary is not None, "the embedded extra brings one"
    found = Server("valkey", binary)
    yield found
    found.end()


@pytest.fixture
def publisher(server: Server) -> Iterator[RedisPublisher]:
    server.client.flushall()
    found = RedisPublisher(server.url, 1.0)
    yield found
    found.close()


def logged(server: Server, topic: str) -> list[tuple[str, str]]:
    return [(entry_id, fields["frame"]) for entry_id, fields in server.client.xrange(keys.log(topic))]


def test_an_event_is_logged_and_sent_with_its_predecessor(server: Server, publisher: RedisPublisher) -> None:
    with server.client.pubsub() as listener:
        listener.subscribe(keys.channel("news"))
        listener.get_message(timeout=5)
        first, second = publisher.publish([("news", event("one")), ("news", event("two"))])
        messages = [listener.get_message(timeout=5)["data"] for _ in range(2)]
    assert messages == [f"{first} 0-0\ndata: one\n\n", f"{second} {first}\ndata: two\n\n"]
    assert logged(server, "news") == [(first, "data: one\n\n"), (second, "data: two\n\n")]


def test_on_a_cluster_topics_are_published_by_their_masters_and_moved_ones_followed(cluster: ClusterServer) -> None:
    cluster.flushall()
    publisher = RedisPublisher(cluster.url, 1.0)
    topics = [f"topic{number}" for number in range(12)]
    assert len({cluster.master_of(keys.log(topic)).name for topic in topics}) == 3
    for turn in range(3):
        ids = publisher.publish([(topic, event(f"{turn}")) for topic in topics])
        assert [cluster.client.xrevrange(keys.log(topic), count=1)[0][0] for topic in topics] == ids
        key = keys.log(topics[turn])
        owner = cluster.master_of(key)
        target = next(master for master in cluster.masters if master is not owner)
        target.client.script_flush()
        if turn == 0:
            cluster.move(key, target)
            publisher.publish([(topics[turn], event("moved"))])
            assert publisher._servers._owners[hash_slot(key)] == (
                "127.0.0.1",
                cluster.ports[cluster.masters.index(target)],
            )
        else:
            with cluster.moving(key, target, first=[key]):
                publisher.publish([(topics[turn], event("on its way"))])
            assert cluster.client.xlen(key) == turn + 2
    publisher.close()


def test_twenty_publishers_at_once_keep_one_order(server: Server, publisher: RedisPublisher) -> None:
    with server.client.pubsub() as listener:
        listener.subscribe(keys.channel("news"))
        listener.get_message(timeout=5)
        with ThreadPoolExecutor(20) as pool:
            for _ in range(200):
                pool.submit(publisher.publish, [("news", event("x"))])
        sent = [listener.get_message(timeout=5)["data"].split(" ")[0] for _ in range(200)]
    assert sent == [entry_id for entry_id, _ in logged(server, "news")]


def test_a_log_is_bounded_and_has_a_time_to_live(server: Server, publisher: RedisPublisher) -> None:
    for _ in range(30):
        publisher.publish([("news", event("x"))] * 100)
    assert len(logged(server, "news")) <= publishing.LOG_EVENTS + 100  # trimmed by whole nodes of the stream
    assert server.client.pttl(keys.log("news")) > 0


def test_a_forgotten_script_is_loaded_again(server: Server, publisher: RedisPublisher) -> None:
    publisher.publish([("news", event("one"))])
    server.client.script_flush()
    publisher.publish([("news", event("two")), ("other", event("three"))])
    assert [frame for _, frame in logged(server, "news")] == ["data: one\n\n", "data: two\n\n"]
    assert len(logged(server, "other")) == 1


def test_a_server_that_is_away_is_one_fault() -> None:
    away = RedisPublisher("unix:///nowhere/at/all", 0.2)
    with pytest.raises(StoreUnavailable):
        away.publish([("news", event("x"))])
    away.close()


def test_data_that_is_no_text_goes_out_as_json() -> None:
    assert encode(Event("news", {"a": 1})) == ("news", b'data: {"a": 1}\n\n')


def test_a_tenants_topic_is_its_own() -> None:
    assert encode(Event("news", "x", tenant="acme"))[0] == "acme/news"


@pytest.mark.parametrize("topic", ["", "a\nb", "a\0", "x" * 401, "\ud800"])
def test_a_topic_that_cannot_be_named_is_refused(topic: str) -> None:
    with pytest.raises(ValueError, match="topic is"):
        encode(Event(topic, "x"))


def test_an_event_that_no_lane_should_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(Event("news", "x" * (publishing.MAX_EVENT_BYTES + 1)))


def test_the_memory_of_a_process_keeps_the_same_order() -> None:
    topics = MemoryTopics()
    heard: list[str] = []
    topics.listen("me", lambda published: heard.append(published.id))
    threads = [threading.Thread(target=topics.publish, args=([("news", event("x"))] * 50,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = topics.entries("news")
    assert [entry.id for entry in entries] == heard
    assert [entry.previous for entry in entries] == [publishing.NO_ID, *heard[:-1]]
