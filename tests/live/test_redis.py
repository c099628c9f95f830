"""What only a real server shows: lost memory, lost replies, a server that stands still, and what it is asked."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sse_limits.core.rejections import Layer, Reason, Reject
from sse_limits.core.slots import Scope
from sse_limits.live.board import Board
from sse_limits.live.journal import ENFORCE
from sse_limits.live.redis import LATE_MS
from sse_limits.live.rows import Cause
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.batches import Batch
from tests.faults.proxy import Proxy
from tests.slots.backends import next_ms, until
from tests.slots.servers import Server

from .fleet import HEARTBEAT_SECONDS, RedisFleet, Station

pytestmark = pytest.mark.redis

STORE = Reject(Reason.STORE)
CAUSE = Cause(Layer.SLOTS, Reason.STORE, ENFORCE)
SHORT = 0.5

# What a node may ask of the server for the display, by itself and within its scripts.
ASKED = {
    *("EVALSHA", "EVAL", "HSET", "HDEL", "HMGET", "PEXPIRE", "XADD", "ZRANGE", "ZREVRANGE", "ZRANGEBYSCORE"),
    *("TIME", "ZADD", "ZREM", "ZCARD", "ZCOUNT", "ZINCRBY", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "PTTL"),
    *("GET", "SET", "HGET", "HINCRBY", "ZREVRANGEBYSCORE"),
}


async def open_many(station: Station, count: int, **options: Any) -> list[str]:
    found = []
    for number in range(count):
        stream = await station.open(f"u{number}", **options)
        assert isinstance(stream, str)
        found.append(stream)
    return found


def counted(board: Board) -> int:
    return sum(bucket.counts.get(CAUSE, 0) for bucket in board.rejections(minutes=15))


# --- lost memory, lost replies, no memory --------------------------------------------------------------------------


async def test_a_flushed_server_knows_everything_again_after_a_heartbeat(
    redis_fleet: RedisFleet, server: Server
) -> None:
    station = redis_fleet.station()
    streams = await open_many(station, 40)
    for _ in range(2):
        await station.write()
    server.client.flushall()
    await station.store.renew(Batch())
    for _ in range(round(HEARTBEAT_SECONDS) + 1):
        await station.write()
    assert server.client.hlen(keys.node_streams(station.id)) == len(streams)
    assert len(redis_fleet.board().snapshot().nodes) == 1


async def test_what_is_rejected_while_the_server_is_away_is_counted_once_it_is_back(
    redis_fleet: RedisFleet, server: Server
) -> None:
    station = redis_fleet.station(timeout_seconds=0.1)
    await station.write()
    with server.stalled():
        for _ in range(3):
            station.reject(STORE)
            with pytest.raises(StoreUnavailable):
                await station.write()
    for _ in range(2):
        await station.write()
    board = redis_fleet.board()
    assert counted(board) == 3
    assert len({row.id for row in board.decisions()}) == 3


async def test_a_batch_whose_answer_was_lost_is_counted_once(redis_fleet: RedisFleet, server: Server) -> None:
    """Wherever the link breaks within the answers, and whether or not the server has done its work."""
    with Proxy(server.socket) as proxy:
        station = redis_fleet.station(url=proxy.url)
        expected = lost = 0
        for place in range(0, 240, 8):
            station.reject(STORE)
            expected += 1
            proxy.cut_after(place, "reply")
            try:
                await station.write()
            except StoreUnavailable:
                lost += 1
            proxy.pass_all()
        for _ in range(2):
            await station.write()
        assert lost > 10
        assert counted(redis_fleet.board()) == expected


async def test_without_memory_nothing_is_lost(redis_fleet: RedisFleet, server: Server) -> None:
    station = redis_fleet.station()
    station.reject(STORE)
    with server.out_of_memory(), pytest.raises(StoreUnavailable):
        await station.write()
    await station.write()
    board = redis_fleet.board()
    assert counted(board) == 1
    assert len(board.decisions()) == 1


async def test_forgotten_scripts_are_loaded_again(redis_fleet: RedisFleet, server: Server) -> None:
    station, board = redis_fleet.station(), redis_fleet.board()
    await station.write()
    board.snapshot()
    server.client.script_flush()
    await station.write()
    server.client.script_flush()
    assert len(board.snapshot().nodes) == 1


# --- leases --------------------------------------------------------------------------------------------------------


async def test_a_dead_node_and_what_it_held_are_gone_with_its_lease(server: Server) -> None:
    fleet = RedisFleet(server, lease_seconds=SHORT)
    try:
        dead, living = fleet.station(), fleet.station()
        await open_many(dead, 3, tenant="t9")
        await dead.write()
        board = fleet.board()
        assert [node.id for node in board.snapshot().nodes] == [dead.id]
        assert server.client.zcard(keys.top(Scope.USER)) == 3

        async def is_gone() -> bool:
            await living.open("u1", "t1")
            await living.write()
            return (
                not server.client.zscore(keys.top(Scope.TENANT), "t9")
                and server.client.zcard(keys.top(Scope.USER)) == 1
            )

        deadline = time.monotonic() + 5
        while not await is_gone():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        found = board.snapshot()
        assert [node.id for node in found.nodes] == [living.id]
        assert [holder.subject for holder in found.tops[Scope.TENANT]] == ["t1"]
        await until(lambda: not server.client.exists(keys.node(dead.id), keys.node_streams(dead.id)))
    finally:
        await fleet.aclose()


async def test_no_key_of_the_display_lives_for_ever(redis_fleet: RedisFleet, server: Server) -> None:
    station = redis_fleet.station()
    await open_many(station, 3)
    station.reject(STORE)
    station.end(Reason.EVICTED)
    for _ in range(3):
        await station.write()
    found = server.ttls()
    assert any(":rejected:" in key for key in found)
    assert any(":decisions:" in key for key in found)
    assert [key for key, ttl in found.items() if ttl <= 0] == []


# --- what the server is asked --------------------------------------------------------------------------------------


async def test_a_busy_node_asks_for_little_and_nothing_without_a_bound(redis_fleet: RedisFleet, server: Server) -> None:
    station = redis_fleet.station()
    streams = await open_many(station, 600)
    await station.write()
    for stream in streams[:200]:
        await station.close(stream)
    await open_many(station, 200, tenant="t2")
    for number in range(30):
        await station.open(f"u{number}", limits={"user": 0})
        await station.open(limits={"tenant": 1})
    with server.watched() as said:
        for _ in range(3):
            await station.write()
    names = Counter(command.split(" ")[0].upper() for command in said)
    assert set(names) <= ASKED
    for command in said:
        name, _, rest = command.partition(" ")
        if name.upper().endswith("RANGEBYSCORE") and name.upper().startswith("Z") and "REM" not in name.upper():
            assert "LIMIT" in rest, command
        if name.upper() in ("ZRANGE", "ZREVRANGE"):
            assert not rest.rstrip().endswith("-1"), command
    # Of scripts and plain commands: the second with 400 changes and 60 rejections, and two quiet ones.
    assert names["EVALSHA"] + names["EVAL"] < 60
    assert names["HSET"] <= 3 * 6
    assert names["XADD"] <= 60


async def test_however_many_look_the_server_is_read_once(redis_fleet: RedisFleet, server: Server) -> None:
    station = redis_fleet.station()
    await open_many(station, 3)
    await station.write()
    board = redis_fleet.board(snapshot_seconds=60)

    def reads() -> int:
        return int(server.client.info("commandstats")["cmdstat_hgetall"]["calls"])

    board.snapshot()
    before = reads()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: board.snapshot(), range(50)))
    assert reads() == before
    assert all(each is found[0] for each in found)


# --- reading -------------------------------------------------------------------------------------------------------


async def test_a_server_that_stands_still_is_a_fault_in_time_and_for_all_who_look(
    redis_fleet: RedisFleet, server: Server
) -> None:
    board = redis_fleet.board(timeout_seconds=0.2, snapshot_seconds=1)
    with server.stalled():
        started = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            looks = [pool.submit(board.snapshot) for _ in range(8)]
        assert [type(look.exception()) for look in looks] == [StoreUnavailable] * 8
        assert time.monotonic() - started < 1.5
        for ask in (board.decisions, lambda: board.streams(Scope.FLEET, ""), lambda: board.revoke(["a-1"], "revoked")):
            with pytest.raises(StoreUnavailable):
                ask()


async def test_every_decision_is_on_exactly_one_page(redis_fleet: RedisFleet) -> None:
    """Two nodes write at different times, and some decisions are of one instant."""
    one, two = redis_fleet.station(), redis_fleet.station()
    taken = set()
    for number in range(120):
        station = (one, two)[number % 2]
        taken.add(station.reject(STORE).id)
        if number % 5 == 0:
            await next_ms()
        if number % 7 == 0:
            await one.write()
        if number % 11 == 0:
            await two.write()
    await one.write()
    await two.write()
    board = redis_fleet.board()
    seen: list[str] = []
    before = None
    while page := board.decisions(before=before, count=10):
        seen += [row.id for row in page]
        before = page[-1].at
    assert len(seen) == len(set(seen))
    assert set(seen) == taken


async def test_what_is_written_while_a_snapshot_is_read_is_in_it_with_its_details(redis_fleet: RedisFleet) -> None:
    """Its counts are read behind its instant, and so are the decisions that were counted."""
    station, board = redis_fleet.station(), redis_fleet.board()
    begun = board._now()
    await next_ms()
    decision = station.reject(STORE)
    await station.write()
    assert [row.id for row in board._latest(begun, begun + LATE_MS, 50)] == [decision.id]


async def test_what_another_version_wrote_is_passed_over(redis_fleet: RedisFleet, server: Server) -> None:
    station, board = redis_fleet.station(), redis_fleet.board()
    [stream] = await open_many(station, 1)
    decision = station.reject(STORE)
    await station.write()
    hour = decision.at // 3_600_000
    server.client.xadd(keys.decisions(hour), {"d": '["of", "later"]'})
    server.client.xadd(keys.decisions(hour), {"later": "x"})
    span = decision.at // 10_000 * 10
    server.client.hset(keys.rejected(10, span), "slots|a_later_reason|enforce", 3)
    server.client.zadd(keys.rejected_tenants(decision.at // 60_000 * 60), {"t1|nonsense": 3})
    server.client.hset(keys.node_streams(station.id), stream, "{not json")
    server.client.zadd(keys.nodes(), {"web:9:other": 9e15})
    server.client.hset(keys.node("web:9:other"), "pid", "a later one")
    assert [row.id for row in board.decisions()] == [decision.id]
    assert counted(board) == 1
    assert board.tenant_causes(minutes=15)[0].cause == CAUSE
    [found] = board.streams(Scope.FLEET, "")[1]
    assert (found.id, found.path) == (stream, "")
    assert [node.id for node in board.snapshot().nodes] == [station.id]


async def test_an_address_without_a_slot_set_is_searched_for_among_the_nodes(redis_fleet: RedisFleet) -> None:
    station = redis_fleet.station()
    streams = [await station.open(f"u{number}", address="2001:db8::/64") for number in range(3)]
    await open_many(station, 5)
    await station.write()
    total, rows = redis_fleet.board().streams(Scope.ADDRESS, "2001:db8::/64", count=2)
    assert (total, [row.id for row in rows]) == (3, streams[:2])


async def test_of_very_many_streams_a_page_is_read_and_no_more(
    redis_fleet: RedisFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sse_limits.live.streams.SORTED_AT_MOST", 10)
    station = redis_fleet.station()
    streams = await open_many(station, 25)
    await station.write()
    board = redis_fleet.board()
    seen: list[str] = []
    for offset in range(0, 25, 10):
        total, rows = board.streams(Scope.TENANT, "t1", offset=offset, count=10)
        assert total == 25
        seen += [row.id for row in rows]
    assert sorted(seen) == sorted(streams)
