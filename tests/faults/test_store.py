"""Single faults of the store, as clients of two nodes see them."""

from __future__ import annotations

import asyncio
import random

from sse_limits.core.frames import event
from sse_limits.publishing import RedisPublisher
from sse_limits.slots import keys
from tests.servers.client import until

from .conftest import HEARTBEAT_SECONDS, Nodes, Start, assert_calm
from .course import FULL, in_a_thread
from .cycles import come_and_go
from .history import Window
from .kinds import Site, failover
from .load import LEASE_SECONDS, Load, Opened, now
from .settings import TENANT, USER_LIMIT

TRUE_AGAIN_SECONDS = 2 * HEARTBEAT_SECONDS
CROWD = 500
PASSERS_BY = 300
CONNECTIONS_A_NODE = 10
NODES = 3  # with one of the test's own


async def warmed(load: Load) -> None:
    """A stream on each node: it has decided once, and reads its topic, whatever the last test did to its links."""
    for node in load.nodes:
        await until(lambda node=node: load.connect("warm", node))
    load.statuses.clear()
    load.faults.clear()


async def test_a_flush_under_load_costs_no_stream(nodes: Nodes, site: Site, load: Load) -> None:
    """Everybody stays, the truth is back within two heartbeats, and at most a limit more have come in."""
    stayers = await load.fill(FULL)
    running = asyncio.ensure_future(load.run(3))
    await asyncio.sleep(1)
    began = now()
    await asyncio.to_thread(site.store.client.flushall)
    users = [keys.user(TENANT, user) for user in FULL]
    await until(lambda: all(site.store.in_use().get(key, 0) >= USER_LIMIT for key in users), TRUE_AGAIN_SECONDS)
    load.history.windows.append(Window("flush", began, now(), USER_LIMIT))
    await running
    await load.settled()
    await load.until_right(site.store, 1)
    assert all(each.is_open for each in stayers)
    assert load.broken() == []
    assert set(load.statuses) <= {200, 429}
    assert load.faults == []
    assert load.history.report() == ""
    assert nodes.said() == [[], []]


async def test_after_a_failover_no_more_than_what_was_lost_come_in_too_many(
    nodes: Nodes, site: Site, load: Load
) -> None:
    """B37: five streams that the new server has never heard of; the other node admits as many until they are told."""
    await warmed(load)
    for _ in range(2):
        assert await load.connect("old", nodes.servers[0])
    lost: list[object] = []
    began = now()

    async def lose() -> None:
        await asyncio.sleep(0.2)
        for _ in range(USER_LIMIT):
            lost.append(await load.connect("lost", nodes.servers[0]))
        lost.append(await load.connect("old", nodes.servers[0]))

    losing = asyncio.ensure_future(lose())
    async with in_a_thread(failover(site)):
        await losing
        assert all(lost)
        for _ in range(2 * USER_LIMIT):
            await load.connect("lost", nodes.servers[1])
            await load.connect("old", nodes.servers[1])
    await load.until_right(site.store, TRUE_AGAIN_SECONDS)
    load.history.windows += [
        Window("failover", began, now(), USER_LIMIT, frozenset({keys.user(TENANT, "lost")})),
        Window("failover", began, now(), 1, frozenset({keys.user(TENANT, "old")})),
    ]
    for node in nodes.servers:
        assert await load.connect("lost", node) is None
        assert await load.connect("old", node) is None
    assert load.broken() == []
    assert set(load.statuses) <= {200, 429}
    assert load.history.report() == ""


async def test_a_failover_that_closes_nothing_is_found_out_by_the_first_answer(
    nodes: Nodes, site: Site, load: Load
) -> None:
    """B34: connections stay on the old server, which has become a replica; the new one is where new connections go."""
    await warmed(load)
    stayers = await load.fill(FULL)
    replica = site.standby()
    site.proxy.point_to(replica.socket, drop=False)
    old, site.store = site.store, replica
    with old.demoted():
        began = now()
        await load.run(1)
        await load.settled()
        await load.until_right(site.store, TRUE_AGAIN_SECONDS)
        load.history.windows.append(Window("failover", began, now(), USER_LIMIT))
        await load.run(1)
        await load.settled()
        await load.until_right(site.store, 1)
    assert all(each.is_open for each in stayers)
    assert set(load.statuses) <= {200, 429}
    assert load.history.report() == ""
    for said in nodes.said():
        assert_calm(said)


async def test_an_answer_that_takes_longer_than_a_lease_gives_nobody_a_slot(
    nodes: Nodes, site: Site, load: Load
) -> None:
    """B10: the attempt is decided without the store, and what the store did nobody keeps."""
    await warmed(load)
    began = now()
    site.proxy.delay(LEASE_SECONDS + 1, "reply")
    opened = [await load.connect(f"u{number}") for number in range(6)]
    assert all(opened), (load.statuses, load.faults)
    assert max(load.answers) <= 1
    site.proxy.pass_all()
    for each in opened[::2]:
        await each.close()
    await load.until_right(site.store, LEASE_SECONDS + 1 + HEARTBEAT_SECONDS + 1)
    load.history.windows.append(Window("slow", began, now(), 1))
    assert load.history.report() == ""


async def test_the_first_reader_of_a_topic_is_admitted_while_the_store_is_away(
    nodes: Nodes, site: Site, load: Load
) -> None:
    """Its events come when the store is back; until then keepalives do."""
    began = now()
    with site.store.stalled():
        opened = [await load.connect(f"u{number}") for number in range(4)]
        assert all(opened), (load.statuses, load.faults)
        assert max(load.answers) <= 1
    await load.until_right(site.store, HEARTBEAT_SECONDS + 1)
    load.history.windows.append(Window("stall", began, now(), 1))
    publisher = RedisPublisher(site.store.url, 2.0)
    try:
        await until(lambda: heard(publisher, opened), 5)
    finally:
        publisher.close()


async def heard(publisher: RedisPublisher, streams: list[Opened]) -> bool:
    """Publish, and whether everybody has heard of one so far."""
    await asyncio.to_thread(publisher.publish, [("news", event("after"))])
    return all(b"data: after" in each.said for each in streams)


async def test_a_crowd_of_one_user_gets_the_shares_of_the_nodes_while_the_store_is_away(
    nodes: Nodes, site: Site, load: Load
) -> None:
    """B33: half the limit each, rounded up."""
    await warmed(load)
    began = now()
    with site.store.stalled():
        found = await asyncio.gather(*(load.connect("crowd") for _ in range(CROWD)))
        assert sum(each is not None for each in found) == len(nodes.servers) * -(-USER_LIMIT // len(nodes.servers))
        assert set(load.statuses) == {200, 429}
    await load.until_right(site.store, HEARTBEAT_SECONDS + 1)
    load.history.windows.append(Window("stall", began, now(), 1))
    assert load.history.report() == ""
    for said in nodes.said():
        assert_calm(said)


async def test_without_memory_slots_are_given_back_and_nobody_is_told_500(nodes: Nodes, site: Site, load: Load) -> None:
    """B36."""
    await warmed(load)
    opened = await load.fill(["u1", "u2"])
    with site.store.out_of_memory():
        for each in opened[:USER_LIMIT]:
            await each.close()
        await until(lambda: keys.user(TENANT, "u1") not in site.store.in_use(), 2)
        assert await load.connect("u3") is not None, "decided by the node"
    await load.until_right(site.store, HEARTBEAT_SECONDS + 1)
    assert set(load.statuses) <= {200, 429}


async def test_clients_that_leave_at_any_moment_get_nobody_elses_answer_and_keep_no_slot(
    site: Site, patient: Load
) -> None:
    """B21: every rejection tells its own user's count, while others hang up in the middle of theirs."""
    chance = random.Random(1)
    site.proxy.delay(0.002, "reply")
    counts = {f"full{number}": number for number in range(1, USER_LIMIT + 1)}
    for user, number in counts.items():
        for _ in range(number):
            assert await patient.connect(user)

    async def leave(number: int) -> None:
        attempt = asyncio.ensure_future(patient.connect(f"leaver{number}"))
        await asyncio.sleep(chance.uniform(0, 0.02))
        attempt.cancel()
        [found] = await asyncio.gather(attempt, return_exceptions=True)
        if not isinstance(found, BaseException) and found is not None:
            await found.close()

    async def ask() -> None:
        for _ in range(20):
            told = await patient.problem(f"full{USER_LIMIT}")
            assert (told["scope"], told["limit"], told["in_use"]) == ("user", USER_LIMIT, USER_LIMIT)

    await asyncio.gather(ask(), ask(), *(leave(number) for number in range(PASSERS_BY)))
    await patient.until_right(site.store, 2)


async def test_users_who_come_once_leave_nothing_behind(site: Site, start: Start) -> None:
    """B31."""
    await come_and_go(site, start, PASSERS_BY, PASSERS_BY)


async def test_renewals_that_are_late_bring_no_slot_back(site: Site, patient: Load) -> None:
    """B08: every command is under way for 100 ms, and streams close while their renewal is."""
    chance = random.Random(1)
    streams = await patient.fill([f"u{number}" for number in range(10)])
    site.proxy.delay(0.1, "request")

    async def close(stream: Opened) -> None:
        await asyncio.sleep(chance.uniform(0, 2 * HEARTBEAT_SECONDS))
        await stream.close()

    await asyncio.gather(*map(close, streams[5:]))
    await patient.until_right(site.store, 0.5)
    site.proxy.pass_all()
    ends = now() + HEARTBEAT_SECONDS + 0.2
    while now() < ends:
        assert site.store.in_use() == patient.expected(), "and none comes later"
        await asyncio.sleep(0.05)


async def test_a_crowd_at_once_needs_few_connections(site: Site, patient: Load) -> None:
    """B38: 500 connects at the same moment are all decided, over as many connections as ever."""
    before = site.proxy.counts["links"]
    found = await asyncio.gather(*(patient.connect(f"crowd{number % 50}") for number in range(CROWD)))
    assert sum(each is not None for each in found) == 50 * USER_LIMIT
    assert set(patient.statuses) == {200, 429}
    assert site.proxy.links <= CONNECTIONS_A_NODE * NODES
    assert site.proxy.counts["links"] - before <= NODES
    assert patient.history.report() == ""
