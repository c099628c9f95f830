"""What every board promises, run over memory, Valkey 9 and Redis 7: what nodes wrote is what pages read."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from sse_limits.core.rejections import Layer, Reason, Reject
from sse_limits.core.slots import Scope
from sse_limits.live.board import NOTE_CHARS, TOP_ROWS
from sse_limits.live.journal import ENFORCE
from sse_limits.live.rows import Cause, DecisionRow, Holder, StreamRow, TenantCauses
from sse_limits.slots.base import Order
from tests.slots.backends import next_ms, until

from .fleet import Fleet, Station

USER_LIMIT = Cause(Layer.SLOTS, Reason.USER_LIMIT, ENFORCE)
TENANT_LIMIT = Cause(Layer.SLOTS, Reason.TENANT_LIMIT, ENFORCE)
STORE = Reject(Reason.STORE)


async def opened(
    station: Station, count: int = 1, user: str | None = "u1", tenant: str = "t1", **options: object
) -> list[str]:
    found = []
    for _ in range(count):
        stream = await station.open(user, tenant, **options)  # type: ignore[arg-type]
        assert isinstance(stream, str)
        found.append(stream)
        await next_ms()
    return found


def ids(rows: list[StreamRow]) -> list[str]:
    return [found.id for found in rows]


# --- the snapshot --------------------------------------------------------------------------------------------------


async def test_a_fleet_in_which_nothing_has_happened_is_empty_and_has_all_its_spans(fleet: Fleet) -> None:
    found = fleet.board().snapshot()
    assert (found.fleet_in_use, found.nodes, found.tenant_causes, found.latest) == (0, [], [], [])
    assert {scope: list(rows) for scope, rows in found.tops.items()} == {
        Scope.USER: [],
        Scope.TENANT: [],
        Scope.ADDRESS: [],
    }
    starts = [bucket.at for bucket in found.rejections]
    assert starts == [point.at for point in found.history]
    assert starts == list(range(starts[0], starts[0] + 900_000, 10_000))
    assert starts[-1] <= found.at < starts[-1] + 10_000
    assert all(not bucket.counts and bucket.seconds == 10 for bucket in found.rejections)


async def test_what_two_nodes_hold_is_added_up(fleet: Fleet) -> None:
    one, two = fleet.station(), fleet.station()
    await opened(one, 3)
    await opened(two, 2)
    await opened(two, 1, "u2", "t2", address="192.0.2.2", transport="websocket")
    await opened(one, 1, None, "t2", address="192.0.2.3")
    for station in (one, two):
        await station.write()
    found = fleet.board().snapshot()
    assert found.fleet_in_use == 7
    assert [(node.open, node.open_sse) for node in found.nodes] == [(4, 4), (3, 2)]
    assert found.tops == {
        Scope.USER: [Holder(Scope.USER, "t1/u1", 5), Holder(Scope.USER, "t2/u2", 1)],
        Scope.TENANT: [Holder(Scope.TENANT, "t1", 5), Holder(Scope.TENANT, "t2", 2)],
        Scope.ADDRESS: [
            Holder(Scope.ADDRESS, "192.0.2.1", 5),
            Holder(Scope.ADDRESS, "192.0.2.2", 1),
            Holder(Scope.ADDRESS, "192.0.2.3", 1),
        ],
    }
    assert (found.history[-1].sse, found.history[-1].websocket, found.history[-1].admitted) == (6, 1, 7)


async def test_the_first_rows_of_a_top_are_right_before_anybody_has_written_it(fleet: Fleet) -> None:
    station = fleet.station()
    first, second = await opened(station, 2)
    [other] = await opened(station, 1, "u2")
    await station.write()
    for stream in (first, second):
        await station.close(stream)
    tops = fleet.board().snapshot().tops
    assert tops[Scope.USER] == [Holder(Scope.USER, "t1/u2", 1)]
    assert tops[Scope.TENANT] == [Holder(Scope.TENANT, "t1", 1)]
    await station.close(other)
    await station.write()
    assert not any(fleet.board().snapshot().tops.values())


async def test_a_top_has_at_most_200_rows(fleet: Fleet) -> None:
    station = fleet.station()
    for number in range(TOP_ROWS + 5):
        assert isinstance(await station.open(f"u{number}"), str)
    await opened(station, 1, "u7")
    await station.write()
    top = fleet.board().snapshot().tops[Scope.USER]
    assert len(top) == TOP_ROWS
    assert top[0] == Holder(Scope.USER, "t1/u7", 2)


async def test_a_node_is_shown_as_it_says_and_goes_when_it_leaves(fleet: Fleet) -> None:
    station = fleet.station()
    station.own = {
        "budget": 800,
        "is_draining": True,
        "blocked": 2,
        "boot": "b",
        "pid_namespace": "pid:[1]",
        "start_ticks": 99,
    }
    await opened(station)
    await station.write()
    [found] = fleet.board().snapshot().nodes
    assert found == replace(station.row(), seen_at=found.seen_at)
    assert found.counters['sse_admitted_total{tier="free"}'] == 1
    assert found.addresses == {"192.0.2.1": 1}
    await station.sink.leave(station.id)
    assert fleet.board().snapshot().nodes == []


# --- streams -------------------------------------------------------------------------------------------------------


async def test_a_stream_is_described_by_its_node_and_forgotten_when_it_ends(fleet: Fleet) -> None:
    station = fleet.station()
    first, second = await opened(station, 2)
    await station.write()
    board = fleet.board()
    assert board.stream(first) == station.rows[first]
    assert board.streams(Scope.USER, "t1/u1") == (2, [station.rows[first], station.rows[second]])
    station.load(first, 5, 40)
    await station.write()
    assert board.stream(first) == station.rows[first]
    await station.close(first)
    assert board.stream(first) is None
    await station.write()
    assert board.streams(Scope.NODE, station.id) == (1, [station.rows[second]])


async def test_each_holder_has_its_streams_the_oldest_first_and_page_by_page(fleet: Fleet) -> None:
    one, two = fleet.station(), fleet.station()
    streams = []
    for number in range(6):
        streams += await opened((one, two)[number % 2], limits={"class": 50})
    await opened(one, 1, "u2", "t2", address="192.0.2.9")
    for station in (one, two):
        await station.write()
    board = fleet.board()
    holders = [(Scope.USER, "t1/u1"), (Scope.TENANT, "t1"), (Scope.CLASS, "t1/clock"), (Scope.ADDRESS, "192.0.2.1")]
    for scope, subject in holders:
        total, rows = board.streams(scope, subject)
        assert (total, ids(rows)) == (6, streams), scope
        total, rows = board.streams(scope, subject, offset=2, count=3)
        assert (total, ids(rows)) == (6, streams[2:5]), scope
    total, rows = board.streams(Scope.FLEET, "")
    assert (total, ids(rows)[:6]) == (7, streams)
    total, rows = board.streams(Scope.NODE, two.id, offset=1)
    assert (total, ids(rows)) == (3, streams[3::2])
    assert board.streams(Scope.USER, "t9/nobody") == (0, [])
    assert board.streams(Scope.NODE, "no:such:node") == (0, [])


async def test_an_address_shows_also_the_streams_that_no_address_limit_holds_for(fleet: Fleet) -> None:
    station = fleet.station()
    limited = await opened(station, 2, None, "", limits={"address": 9})
    others = await opened(station, 3)
    await station.write()
    total, rows = fleet.board().streams(Scope.ADDRESS, "192.0.2.1")
    assert (total, ids(rows)) == (5, limited + others)


async def test_a_stream_that_nobody_has_described_has_a_row_all_the_same(fleet: Fleet) -> None:
    station = fleet.station()
    [stream] = await opened(station)
    board = fleet.board()
    total, [found] = board.streams(Scope.USER, "t1/u1")
    assert (total, found.id, found.path) == (1, stream, "")
    assert board.stream(stream) == found


async def test_a_count_is_the_slot_sets_own(fleet: Fleet) -> None:
    station = fleet.station()
    await opened(station, 2, limits={"class": 50})
    await opened(station, 1, None, "t2", address="192.0.2.3")
    holders = [
        (Scope.USER, "t1/u1"),
        (Scope.TENANT, "t2"),
        (Scope.CLASS, "t1/clock"),
        (Scope.FLEET, ""),
        (Scope.USER, "t1/nobody"),
        (Scope.ADDRESS, "192.0.2.1"),
        (Scope.NODE, station.id),
    ]
    assert fleet.board().in_use(holders) == [2, 1, 2, 3, 0, 0, 0]
    await station.write()
    assert fleet.board().in_use(holders) == [2, 1, 2, 3, 0, 2, 3]
    assert fleet.board().in_use([]) == []


async def test_whether_a_stream_is_held_is_known_at_once(fleet: Fleet) -> None:
    station = fleet.station()
    first, second = await opened(station, 2)
    rows = [station.rows[first], station.rows[second]]
    assert fleet.board().is_held(rows) == [True, True]
    await station.close(first)
    assert fleet.board().is_held(rows) == [False, True]
    assert fleet.board().is_held([]) == []


# --- rejections ----------------------------------------------------------------------------------------------------


async def test_rejections_and_ends_are_counted_by_cause_and_tenant(fleet: Fleet) -> None:
    one, two = fleet.station(), fleet.station()
    for station, count in ((one, 3), (two, 2)):
        for _ in range(count):
            station.reject(Reject(Reason.USER_LIMIT, Scope.USER, 5, 5))
    two.reject(Reject(Reason.MISSING_TOKEN), tenant=None)
    two.end(Reason.EVICTED, "t2")
    for station in (one, two):
        await station.write()
        await station.write()  # nothing new: nothing is counted twice
    board = fleet.board()
    expected = {
        USER_LIMIT: 5,
        Cause(Layer.IDENTITY, Reason.MISSING_TOKEN, ENFORCE): 1,
        Cause(Layer.SLOTS, Reason.EVICTED, ENFORCE): 1,
    }
    for minutes, seconds, spans in ((15, 10, 90), (60, 10, 360), (2880, 60, 2880)):
        found = board.rejections(minutes=minutes)
        assert (len(found), found[-1].seconds) == (spans, seconds)
        total: dict[Cause, int] = {}
        for bucket in found[-2:]:
            for cause, count in bucket.counts.items():
                total[cause] = total.get(cause, 0) + count
        assert total == expected
    assert board.tenant_causes(minutes=15) == [
        TenantCauses("t1", USER_LIMIT, 5),
        TenantCauses(None, Cause(Layer.IDENTITY, Reason.MISSING_TOKEN, ENFORCE), 1),
        TenantCauses("t2", Cause(Layer.SLOTS, Reason.EVICTED, ENFORCE), 1),
    ]
    assert board.snapshot().tenant_causes == board.tenant_causes(minutes=15)
    counters = board.snapshot().nodes[1].counters
    assert counters['sse_rejected_total{layer="slots",reason="user_limit",mode="enforce"}'] == 2
    assert counters['sse_ended_total{reason="evicted"}'] == 1


async def test_decisions_are_read_newest_first_and_page_by_page(fleet: Fleet) -> None:
    station = fleet.station()
    taken = []
    for _ in range(7):
        taken.insert(0, station.reject(STORE))
        await next_ms()
        await station.write()
    board = fleet.board()
    assert board.decisions() == taken
    assert board.snapshot().latest == taken
    assert board.decisions(count=3) == taken[:3]
    assert board.decisions(before=taken[2].at, count=3) == taken[3:6]
    assert board.decisions(before=taken[-1].at) == []


async def test_a_decision_is_found_by_its_id_with_all_that_was_told(fleet: Fleet) -> None:
    station = fleet.station()
    taken = [station.reject(Reject(reason)) for reason in Reason if not reason.endswith("_limit")]
    for scope in (Scope.USER, Scope.CLASS, Scope.TENANT, Scope.ADDRESS, Scope.FLEET):
        taken.append(station.reject(Reject(Reason(f"{scope}_limit"), scope, 9, 9)))
    await station.write()
    board = fleet.board()
    for decision in taken:
        found = board.decision(decision.id, decision.at)
        assert found is not None
        assert replace(found, holders=(), others=0) == decision
        assert json.loads(found.body)["decision"] == decision.id
    assert board.decision("a" * 56, taken[0].at) is None
    assert board.decision(taken[0].id, taken[0].at - 50 * 3_600_000) in (None, taken[0])


async def test_beyond_the_burst_only_counts_are_kept(fleet: Fleet) -> None:
    station = fleet.station()
    for _ in range(500):
        station.reject(STORE)
    await station.write()
    board = fleet.board()
    assert (
        sum(bucket.counts.get(Cause(Layer.SLOTS, Reason.STORE, ENFORCE), 0) for bucket in board.rejections(minutes=15))
        == 500
    )
    assert 200 <= len(board.decisions(count=500)) <= 205


# --- who held it then ----------------------------------------------------------------------------------------------


async def refused(station: Station, limits: dict[str, int], **options: object) -> DecisionRow:
    """Be refused, and read the decision back."""
    found = await station.open(limits=limits, **options)  # type: ignore[arg-type]
    assert isinstance(found, DecisionRow)
    return found


async def test_at_a_users_limit_the_users_streams_are_told_with_their_age(fleet: Fleet) -> None:
    one, two = fleet.station(), fleet.station()
    first = await opened(one, 1)
    second = await opened(two, 1)
    decision = await refused(one, {"user": 2})
    await one.write()
    found = fleet.board().decision(decision.id, decision.at)
    assert found is not None
    assert [name for name, _ in found.holders] == [*first, *second]
    assert all(0 <= age < 60 for _, age in found.holders)
    assert found.others == 0


async def test_at_a_tenants_limit_its_users_are_told_with_their_counts(fleet: Fleet) -> None:
    one, two = fleet.station(), fleet.station()
    await opened(one, 2, "big")
    await opened(two, 3, "big")
    for number in range(12):
        await opened(two, 1, f"small{number:02}")
    for station in (one, two):
        await station.write()
    await opened(one, 1, "undescribed")
    decision = await refused(one, {"tenant": 18})
    await one.write()
    found = fleet.board().decision(decision.id, decision.at)
    assert found is not None
    assert found.holders == (("t1/big", 5), *((f"t1/small{number:02}", 1) for number in range(9)))
    assert found.others == 18 - 5 - 9


async def test_other_full_scopes_name_those_who_hold_them(fleet: Fleet) -> None:
    station = fleet.station()
    await opened(station, 2, limits={"address": 9})
    await opened(station, 1, None, limits={"address": 9})
    await opened(station, 1, "u2", "t2", address="192.0.2.2")
    await station.write()
    address = await refused(station, {"address": 3})
    fleet_wide = await refused(station, {"fleet": 4})
    await station.write()
    board = fleet.board()
    found = board.decision(address.id, address.at)
    assert found is not None
    assert (found.holders, found.others) == ((("t1/u1", 2), ("192.0.2.1", 1)), 0)
    found = board.decision(fleet_wide.id, fleet_wide.at)
    assert found is not None
    assert (found.holders, found.others) == ((("t1", 3), ("t2", 1)), 0)


# --- orders --------------------------------------------------------------------------------------------------------


async def test_an_order_reaches_the_node_of_its_stream_with_its_note(fleet: Fleet) -> None:
    station = fleet.station()
    heard: list[Order] = []
    station.store.listen(station.name, heard.append)
    [stream] = await opened(station)
    await station.store.usage([])
    assert await asyncio.to_thread(fleet.board().revoke, [stream, f"{station.name}-77"], "revoked", "n" * 600) == 2

    await until(lambda: len(heard) >= 2)
    told = {(order.node, order.stream, order.reason, order.note) for order in heard}
    assert told == {(station.name, each, "revoked", "n" * NOTE_CHARS) for each in (stream, f"{station.name}-77")}
    assert len({order.id for order in heard}) == 2
