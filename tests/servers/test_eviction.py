"""At the user limit of an evict tier: the oldest stream gives way, across nodes, and does not come back by itself."""

from __future__ import annotations

import asyncio
import re

from .client import Clients, Stream, until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token

Pair = tuple[ServerProcess, ServerProcess]
GOODBYE = re.compile(rb"id: (evicted\.[0-9a-f]{8})\nevent: evicted\ndata: (\{.*\})\n\n")


async def ten(clients: Clients, pair: Pair, user: str = "alice") -> list[Stream]:
    """Ten streams of one user over both nodes, the oldest first."""
    found = []
    for number in range(10):
        stream = await clients.get(pair[number % 2], "/raw/", token(user, "acme"))
        assert stream.status == 200
        found.append(stream)
    return found


async def goodbye(stream: Stream) -> str:
    """Read to the end, which must be an eviction; return its marker."""
    said = await stream.rest()
    found = GOODBYE.search(said)
    assert found, said
    assert said.endswith(found[0]), "nothing comes after the goodbye"
    assert b"retry:" not in said
    return found[1].decode()


async def test_the_oldest_stream_gives_way_to_the_newest_over_two_nodes(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    streams = await ten(clients, pair)
    newest = await clients.get(pair[1], "/raw/", token("alice", "acme"))
    assert newest.status == 200
    assert slots.in_use() == held(10, "alice", "acme")
    await goodbye(streams[0])
    assert slots.in_use() == held(10, "alice", "acme")
    await newest.until(b": begun")
    streams[1].close()
    again = await clients.get(pair[0], "/raw/", token("alice", "acme"))
    assert again.status == 200
    assert slots.in_use() == held(10, "alice", "acme"), "there was room: nobody else had to go"


async def test_who_comes_back_with_the_marker_is_told_not_to_without_asking_the_store(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    streams = await ten(clients, pair)
    await clients.get(pair[1], "/raw/", token("alice", "acme"))
    marker = await goodbye(streams[0])
    with slots.decisions() as asked:
        for path in ("/raw/", "/events/", "/views/limited/"):
            for server in pair:
                refused = await clients.get(server, path, token("alice", "acme"), headers=[("Last-Event-ID", marker)])
                assert refused.status == 204
                assert "content-type" not in refused.headers or path == "/views/limited/"
    assert asked == []
    stranger = await clients.get(pair[0], "/raw/", token("aron", "acme"), headers=[("Last-Event-ID", marker)])
    assert stranger.status == 200, "the marker is one user's"
    forged = await clients.get(pair[0], "/raw/", token("aron", "acme"), headers=[("Last-Event-ID", "evicted.00000000")])
    assert forged.status == 200


async def test_an_evicted_websocket_is_closed_with_its_code(pair: Pair, slots: Store, clients: Clients) -> None:
    websocket = await clients.websocket(pair[0], "/echo/", token("alice", "acme"))
    await ten(clients, pair)
    await asyncio.wait_for(websocket.wait_closed(), 2)
    assert websocket.close_code == 4505
    assert slots.in_use() == held(10, "alice", "acme")


async def test_an_evicted_consumer_and_a_busy_app_are_ended_too(pair: Pair, slots: Store, clients: Clients) -> None:
    """The app does not look: its client hears of it at once all the same, and the process goes on.

    Behind a firehose there may be megabytes before the last word, which has a second to get out: only its end is sure.
    """
    for path in (
        "/events/",
        "/busy/",
        "/deaf/",
        "/views/ticks/",
        "/firehose/",
    ):
        slots.client.flushall()
        user = f"u{path.strip('/').replace('/', '-')}"
        oldest = await clients.get(pair[0], path, token(user, "small"))
        await clients.get(pair[1], "/raw/", token(user, "small"))
        reading = asyncio.create_task(oldest.rest(8))
        assert (await clients.get(pair[1], "/raw/", token(user, "small"))).status == 200
        assert b"event: evicted\n" in (await reading)[-600:] or path == "/firehose/", path
    assert (await clients.get(pair[0], "/healthz")).status == 200


async def test_evicting_one_after_the_other_ends_in_a_plain_rejection(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    """Two devices that evict each other would never stop; the third time within 10 s shuts the door for 30."""
    streams = await ten(clients, pair)
    for number in range(3):
        assert (await clients.get(pair[number % 2], "/raw/", token("alice", "acme"))).status == 200
        await goodbye(streams[number])
    refused = await clients.get(pair[0], "/raw/", token("alice", "acme"))
    assert refused.status == 429
    assert refused.headers["ratelimit-policy"] == '"user";q=10;qu="concurrent-requests"'
    assert slots.in_use() == held(10, "alice", "acme")


async def test_head_at_the_limit_of_an_evict_tier_is_200_and_evicts_nobody(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    await ten(clients, pair)
    for path in ("/raw/", "/events/", "/views/limited/"):
        assert (await clients.get(pair[0], path, token("alice", "acme"), method="HEAD")).status == 200
    assert slots.in_use() == held(10, "alice", "acme")
    ages = slots.client.hkeys("sl:1:age:{t:acme}:user:alice")
    assert len(ages) == 10


async def test_a_dead_node_is_not_waited_for(start: Start, kind: str, slots: Store, clients: Clients) -> None:
    dead, alive = start(kind), start(kind)
    for _ in range(2):
        assert (await clients.get(dead, "/raw/", token("u1", "small"))).status == 200
    dead.kill()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await clients.get(alive, "/raw/", token("u1", "small"))).status == 200
    assert loop.time() - began < 0.25, "an answer from the dead would be waited for so long"
    await until(lambda: slots.in_use() == held(1, "u1", "small"), 4.5)


async def test_the_rest_of_a_killed_nodes_slots_is_free_by_the_end_of_the_lease(
    start: Start, kind: str, slots: Store, clients: Clients
) -> None:
    """praekeltfoundation/vumi-go#541: nobody repairs anything by hand."""
    dead, alive = start(kind), start(kind)
    for _ in range(5):
        await clients.get(dead, "/raw/", token())
    dead.kill()
    await until(lambda: slots.in_use() == {}, 4)
    for _ in range(5):
        assert (await clients.get(alive, "/raw/", token())).status == 200
