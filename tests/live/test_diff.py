"""Whatever changes and whatever fails, the board ends up with what is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sse_limits.live.diff import Load, Rotation, StreamDiff

streams = st.dictionaries(
    st.sampled_from([f"n-{number}" for number in range(12)]), st.tuples(st.integers(0, 2), st.integers(0, 1))
)
seconds = st.lists(st.tuples(streams, st.booleans()), max_size=12)


def apply(board: dict[str, Load], changed: list[str], gone: list[str], loads: dict[str, Load]) -> None:
    board.update({stream: loads[stream] for stream in changed})
    for stream in gone:
        board.pop(stream, None)


@given(seconds, streams, st.integers(1, 5))
def test_the_board_knows_all_streams_and_no_others_in_the_end(
    seconds: list[tuple[dict[str, Load], bool]], last: dict[str, Load], at_most: int
) -> None:
    """A write that failed may have been carried out all the same, in part or in whole: the next ones repeat it."""
    diff, board = StreamDiff(at_most), {}
    for loads, is_answered in seconds:
        change = diff.change(loads)
        assert len(change.changed) <= at_most
        apply(board, change.changed, change.gone, loads)
        if is_answered:
            diff.commit(change, loads)
    for _ in range(len(last) + 13):
        change = diff.change(last)
        apply(board, change.changed, change.gone, last)
        diff.commit(change, last)
    assert board == last
    assert diff.change(last) == ([], [])


@given(st.sets(st.text(min_size=1), max_size=40), st.integers(0, 9))
def test_a_rotation_takes_everything_once_in_its_steps(items: set[str], steps: int) -> None:
    rotation = Rotation(steps)
    taken: list[str] = []
    for _ in range(max(1, steps)):
        if len(taken) < len(items):
            taken += rotation.take(items)
    assert sorted(taken) == sorted(items)


def test_nothing_that_has_gone_is_written_again() -> None:
    diff = StreamDiff(10)
    loads = {"a": (0, 0)}
    diff.commit(diff.change(loads), loads)
    assert diff.change(loads, ["a", "b"]) == (["a"], [])
    assert diff.change({}, ["a", "b"]) == ([], ["a"])
