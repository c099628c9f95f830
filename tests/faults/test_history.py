"""The history checker finds what is wrong, and nothing in a history that an exact limiter has written."""

from __future__ import annotations

import heapq
import random

from hypothesis import assume, given
from hypothesis import strategies as st

from .history import NEVER, Attempt, History, Outcome, Quiet, Steps, Window

U = "user"
SEEDS = st.integers(0, 2**32)
LIMITS = st.integers(1, 8)


def admitted(name: str, sent: float, answered: float, leaving_at: float = 1e9, free_by: float | None = None) -> Attempt:
    left = leaving_at if free_by is None else free_by
    return Attempt(name, (U,), sent, answered, Outcome.ADMITTED, None, leaving_at, left)


def rejected(name: str, sent: float, answered: float) -> Attempt:
    return Attempt(name, (U,), sent, answered, Outcome.REJECTED, U)


def rules(history: History) -> list[str]:
    return [each.rule for each in history.violations()]


def simulated(seed: int, limit: int, number: int = 80) -> History:
    """What clients see of a limiter that decides and frees at one instant each, somewhere within their intervals."""
    chance = random.Random(seed)
    events: list[tuple[float, int, Attempt | None]] = []  # when, a number to order by, who is decided (None: one frees)
    history = History({U: limit})
    for count in range(number):
        sent = chance.uniform(0, 100)
        decided = sent + chance.expovariate(5)
        attempt = Attempt(f"a{count}", (U,), sent, decided + chance.expovariate(5))
        history.attempts.append(attempt)
        heapq.heappush(events, (decided, count, attempt))
    held = 0
    while events:
        _, count, attempt = heapq.heappop(events)
        if attempt is None:
            held -= 1
        elif held >= limit:
            attempt.outcome, attempt.full = Outcome.REJECTED, U
        else:
            held += 1
            leaving = attempt.answered + chance.expovariate(0.1)
            freed = leaving + chance.expovariate(5)
            attempt.free_by = freed + chance.expovariate(5)
            if chance.random() < 0.9:
                attempt.outcome, attempt.leaving_at = Outcome.ADMITTED, leaving
            else:
                attempt.answered = NEVER  # its client has given up, and the server frees the slot some time later
            heapq.heappush(events, (freed, number + count, None))
    return history


def full_at(history: History) -> float | None:
    """An instant at which a scope is definitely full; None if it never is."""
    holders = [each for each in history.attempts if each.outcome is Outcome.ADMITTED]
    held = Steps((each.answered, each.leaving_at) for each in holders)
    return next((at for at, count in held if count == history.limits[U]), None)


@given(SEEDS, LIMITS)
def test_an_exact_limiter_is_never_blamed(seed: int, limit: int) -> None:
    history = simulated(seed, limit)
    assert history.report() == ""
    assert history.highest(U) <= limit


@given(SEEDS, LIMITS)
def test_one_stream_too_many_is_found(seed: int, limit: int) -> None:
    history = simulated(seed, limit)
    at = full_at(history)
    assume(at is not None)
    history.attempts.append(admitted("extra", at - 1e-9, at, at + 1e-9))
    assert rules(history)[0] == "too many"


@given(SEEDS, LIMITS)
def test_a_rejection_before_anybody_came_is_found(seed: int, limit: int) -> None:
    history = simulated(seed, limit)
    history.attempts.append(rejected("early", -2, -1))
    assert rules(history) == ["false rejection"]


def test_who_has_begun_to_leave_or_is_not_answered_yet_does_not_count() -> None:
    history = History({U: 1}, [admitted("a", 0, 1, leaving_at=2, free_by=3), admitted("b", 0.5, 2)])
    assert history.report() == ""


def test_too_many_are_named_with_the_limit() -> None:
    history = History({U: 2}, [admitted(name, 0, at) for at, name in enumerate("abc")])
    assert history.report().splitlines() == [
        "    2.000 s  too many  user: 3 hold it, 2 may (a, b, c)",
    ]


def test_an_admission_is_wrong_only_if_the_scope_was_full_all_the_time() -> None:
    one = admitted("a", 0, 1, leaving_at=5, free_by=6)
    assert rules(History({U: 1}, [one, admitted("b", 2, 4)])) == ["too many", "admitted above the limit"]
    assert rules(History({U: 1}, [one, admitted("b", 2, 5.5)])) == []


def test_a_rejection_is_false_only_if_a_slot_was_free_all_the_time() -> None:
    one = admitted("a", 0, 1, leaving_at=5, free_by=6)
    assert rules(History({U: 1}, [one, rejected("b", 5.9, 7)])) == []
    assert rules(History({U: 1}, [one, rejected("b", 6.1, 7)])) == ["false rejection"]
    assert rules(History({U: 1}, [one, rejected("b", 6.1, 7)], remembered=0.2)) == []


def test_an_unanswered_attempt_may_hold_a_slot() -> None:
    lost = Attempt("a", (U,), 0, free_by=3)
    assert rules(History({U: 1}, [lost, rejected("b", 1, 2)])) == []
    assert rules(History({U: 1}, [lost, rejected("b", 4, 5)])) == ["false rejection"]


def test_a_window_allows_its_overshoot_from_its_begin_on_and_no_more_newcomers_behind_it() -> None:
    outage = Window("stall", 2, 4, overshoot=1)
    streams = [admitted("a", 0, 1), admitted("b", 2.5, 3)]
    assert rules(History({U: 1}, streams, [outage])) == []
    assert rules(History({U: 1}, [*streams, admitted("c", 3, 3.5)], [outage])) == ["too many"]
    late = History({U: 1}, [streams[0], admitted("c", 5, 6)], [outage])
    assert rules(late) == ["admitted above the limit"], "the overshoot is that of the fault, not of what comes later"
    assert rules(History({U: 1}, [streams[0], admitted("b", 1.2, 1.5)], [outage])) != []


def test_a_window_is_only_of_its_scopes() -> None:
    outage = Window("flush", 2, 4, overshoot=1, scopes=frozenset({"tenant"}))
    assert "too many" in rules(History({U: 1}, [admitted("a", 0, 1), admitted("b", 2.5, 3)], [outage]))


def test_rejections_in_a_window_and_its_grace_are_its_own() -> None:
    outage = Window("stall", 2, 4)
    found = {at: rules(History({U: 1}, [rejected("a", at, at + 0.5)], [outage], grace=2)) for at in (1, 3, 5, 6.5)}
    assert found == {1: ["false rejection"], 3: [], 5: [], 6.5: ["false rejection"]}


def test_at_a_quiet_moment_the_counts_are_the_open_streams() -> None:
    history = History({U: 5}, quiets=[Quiet(1, {U: 2}, {U: 2}), Quiet(2, {U: 1, "t": 1}, {U: 2})])
    assert [str(each) for each in history.violations()] == [
        "    2.000 s  miscounted  t: the store counts 1, 0 are open",
        "    2.000 s  miscounted  user: the store counts 1, 2 are open",
    ]


def test_a_long_history_is_checked_too() -> None:
    assert simulated(1, 5, 20_000).report() == ""
