"""What is remembered of the latest rejections."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.known_full import ANSWERS, IDENTITIES_AT_MOST, REJECTIONS, REMEMBERED_MS, WITHIN_MS, KnownFull
from sse_limits.core.rejections import CAUSES, Reason, Reject, answer

FULL = Reject(Reason.USER_LIMIT, None, 5, 5)


def found(known: KnownFull, who: str, now: int) -> Reject | None:
    refusal = known.find(who, now)
    return refusal.reject if refusal is not None else None


def test_the_third_rejection_within_a_second_is_remembered_for_a_tenth_of_one() -> None:
    known = KnownFull()
    for at in (0, 400, 900):
        assert known.find("a", at) is None
        known.note("a", "k", FULL, at)
    assert found(known, "a", 900) == FULL == found(known, "a", 900 + REMEMBERED_MS - 1)
    assert known.find("a", 900 + REMEMBERED_MS) is None
    assert known.find("b", 900) is None


def test_slow_retries_are_always_asked_for() -> None:
    known = KnownFull()
    for at in range(0, 10 * WITHIN_MS, WITHIN_MS // 2 + 1):
        known.note("a", "k", FULL, at)
        assert known.find("a", at) is None


def test_a_slot_given_back_is_seen_at_once_by_all_who_wait_for_it() -> None:
    known = KnownFull()
    for who, key in (("a", "k"), ("b", "k"), ("c", "other")):
        for _ in range(REJECTIONS):
            known.note(who, key, FULL, 0)
    known.freed(["k", "never"])
    assert [found(known, who, 1) for who in "abc"] == [None, None, FULL]


def test_answers_are_repeated_once_their_waiting_times_are_spread() -> None:
    known = KnownFull()
    for _ in range(REJECTIONS):
        known.note("a", "k", FULL, 0)
    refusal = known.find("a", 1)
    assert refusal is not None
    given = []
    for number in range(ANSWERS):
        assert refusal.again() is None
        given.append(answer(FULL, f"decision{number}", number))
        refusal.keep(given[-1])
    again = [refusal.again() for _ in range(2 * ANSWERS)]
    assert sorted(map(id, again)) == sorted([*map(id, given)] * 2)
    assert CAUSES[FULL.reason].retry_seconds == (5, ANSWERS)
    assert {each.retry_after for each in given} == set(range(5, 5 + ANSWERS))
    known.note("a", "k", FULL, 2)
    decided_anew = known.find("a", 3)
    assert decided_anew is not None
    assert decided_anew.again() is None


def test_it_is_bounded() -> None:
    known = KnownFull()
    for number in range(IDENTITIES_AT_MOST + 10):
        for _ in range(REJECTIONS):
            known.note(number, f"k{number}", FULL, 0)
    assert len(known) == IDENTITIES_AT_MOST == len(known._by_key)
    assert known.find(0, 0) is None
    known.clear()
    assert (len(known), known._by_key) == (0, {})


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("note"), st.sampled_from("ab"), st.sampled_from("kl"), st.integers(0, 400)),
            st.tuples(st.just("freed"), st.just(""), st.sampled_from("kl"), st.integers(0, 400)),
        ),
        max_size=40,
    )
)
def test_what_is_known_was_said_three_times_lately_and_nothing_was_freed_since(
    steps: list[tuple[str, str, str, int]],
) -> None:
    known, now = KnownFull(), 0
    said: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}
    for kind, who, key, wait in steps:
        now += wait
        if kind == "note":
            known.note(who, key, FULL, now)
            said[who] = [*(each for each in said[who] if each[1] == key), (now, key)]
        else:
            known.freed([key])
            said = {name: [each for each in found if each[1] != key] for name, found in said.items()}
        for name, found in said.items():
            latest = [at for at, _ in found][-REJECTIONS:]
            is_known = (
                len(latest) == REJECTIONS and latest[-1] - latest[0] < WITHIN_MS and now < latest[-1] + REMEMBERED_MS
            )
            assert (known.find(name, now) is not None) == is_known
