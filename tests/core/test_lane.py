"""The lane: bounded in events and bytes, the oldest gives way, and every event is either taken or counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.lane import Lane

SIZES = st.lists(st.integers(1, 60), max_size=40)


@given(SIZES, st.integers(1, 8), st.integers(1, 100))
def test_what_was_put_is_taken_or_counted_as_dropped(sizes: list[int], max_events: int, max_bytes: int) -> None:
    lane = Lane(max_events, max_bytes)
    dropped = sum(lane.put(b"x" * size) for size in sizes)
    taken = 0
    while lane:
        taken += len(lane.take(10))
    assert taken + dropped == len(sizes)
    assert lane.dropped == dropped
    assert lane.size == 0


@given(SIZES, st.integers(1, 8), st.integers(1, 100))
def test_the_bounds_hold_after_every_put(sizes: list[int], max_events: int, max_bytes: int) -> None:
    lane = Lane(max_events, max_bytes)
    for size in sizes:
        lane.put(b"x" * size)
        assert len(lane) <= max_events
        assert lane.size <= max(max_bytes, size)


@given(st.lists(st.integers(0, 255), max_size=40), st.integers(1, 8))
def test_the_newest_stay_in_order(numbers: list[int], max_events: int) -> None:
    lane = Lane(max_events, 1000)
    for number in numbers:
        lane.put(bytes([number]))
    assert list(lane.take(1000)) == [bytes([number]) for number in numbers[-max_events:]]


@given(SIZES.filter(bool), st.integers(1, 100))
def test_taking_respects_the_size_but_always_makes_progress(sizes: list[int], max_bytes: int) -> None:
    lane = Lane(100, 10_000)
    for size in sizes:
        lane.put("x" * size)
    while lane:
        taken = lane.take(max_bytes)
        assert len(taken) == 1 or sum(len(item) for item in taken) <= max_bytes


def test_an_event_larger_than_the_lane_takes_it_alone() -> None:
    lane = Lane(10, 5)
    lane.put(b"aaa")
    assert lane.put(b"x" * 50) == 1
    assert list(lane.take(5)) == [b"x" * 50]
