"""What a node remembers is bounded, whatever happens, and nothing of it is told twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sse_limits.core.rejections import Layer, Reason
from sse_limits.live import journal as module
from sse_limits.live.journal import CAUSES_AT_MOST, DETAILS_BURST, ENFORCE, Journal
from sse_limits.live.rows import Cause, DecisionRow

ROW = DecisionRow(
    id="a",
    at=1,
    node="web:1:aaaaaaaa",
    reason=Reason.STORE,
    mode=ENFORCE,
    tenant=None,
    user=None,
    address=None,
    tier="",
    path="/",
    transport="sse",
    stream_class="events",
    scope=None,
    limit=None,
    in_use=None,
    policy_version=0,
    status=503,
    retry_after=2,
    body="",
)


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_counts_are_taken_once_and_counters_stay(journal: Journal) -> None:
    for _ in range(3):
        journal.reject(Reason.USER_LIMIT, "t1")
    journal.end(Reason.EVICTED, "t1")
    user_limit = Cause(Layer.SLOTS, Reason.USER_LIMIT, ENFORCE)
    evicted = Cause(Layer.SLOTS, Reason.EVICTED, ENFORCE)
    assert journal.take_counts() == {(user_limit, "t1"): 3, (evicted, "t1"): 1}
    assert journal.take_counts() == {}
    journal.reject(Reason.USER_LIMIT, None)
    journal.take_counts()
    counters = dict(journal.counters())
    assert counters['sse_rejected_total{layer="slots",reason="user_limit",mode="enforce"}'] == 4
    assert counters['sse_ended_total{reason="evicted"}'] == 1


def test_a_flood_over_countless_tenants_is_counted_in_full_and_in_bounded_room(journal: Journal) -> None:
    for number in range(2 * CAUSES_AT_MOST):
        journal.reject(Reason.BLOCKED, f"t{number}")
    taken = journal.take_counts()
    assert len(taken) <= CAUSES_AT_MOST + 1
    assert sum(taken.values()) == 2 * CAUSES_AT_MOST


def test_details_are_wanted_for_a_burst_and_then_twice_a_second(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    journal = Journal()
    assert sum(journal.reject(Reason.STORE, None) for _ in range(1000)) == DETAILS_BURST
    now += 5
    journal.take_details()
    assert sum(journal.reject(Reason.STORE, None) for _ in range(1000)) == 10
    now += 1_000_000
    journal.take_details()
    assert sum(journal.reject(Reason.STORE, None) for _ in range(1000)) == DETAILS_BURST


def test_a_flood_of_bad_tokens_leaves_room_for_the_decisions_at_limits(journal: Journal) -> None:
    assert sum(journal.reject(Reason.BAD_TOKEN, None) for _ in range(1000)) <= DETAILS_BURST // 2 + 1
    assert sum(journal.reject(Reason.USER_LIMIT, "t1") for _ in range(1000)) >= DETAILS_BURST // 2


def test_details_that_could_not_be_written_come_first_and_are_bounded(journal: Journal) -> None:
    old = [replace(ROW, id=f"old{number}") for number in range(DETAILS_BURST)]
    for row in old:
        journal.detail(row)
    taken = journal.take_details()
    assert taken == old
    new = [replace(ROW, id=f"new{number}") for number in range(3)]
    for row in new:
        journal.detail(row)
    journal.give_back(taken)
    assert journal.take_details() == [*old[3:], *new]
    for row in old:
        journal.detail(row)
    journal.give_back(new)
    assert journal.take_details() == old


def test_the_time_is_the_stores(journal: Journal) -> None:
    before = journal.now_ms()
    journal.clock_offset_ms = -3_600_000
    assert journal.now_ms() <= before - 3_600_000 + 60_000


def test_an_event_of_the_future_was_not_on_its_way(journal: Journal) -> None:
    journal.written(journal.now_ms() + 60_000)
    counters = dict(journal.counters())
    assert counters["sse_publish_to_write_seconds_sum"] == 0
    assert counters["sse_publish_to_write_seconds_count"] == 1


def test_a_flood_of_bad_tokens_leaves_details_for_what_an_operator_ends() -> None:
    journal = Journal()
    while journal.reject(Reason.BAD_TOKEN, None):
        pass
    assert journal.end(Reason.REVOKED, "t1")
    assert journal.reject(Reason.USER_LIMIT, "t1")
