"""The slot rules by themselves: whatever is asked, and in whatever order, these hold."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sse_limits.core.slots import (
    DAMPER_EVICTIONS,
    DAMPER_HOLD_MS,
    DAMPER_WINDOW_MS,
    NO_LIMIT,
    Admitted,
    Claim,
    Demand,
    Full,
    Held,
    Renewed,
    Scope,
    SlotModel,
    Victim,
    first_full,
)

LEASE_MS = 3_000
START = 1_000_000
LIMITS = {"user:a": 2, "user:b": 3, "tenant": 4, "fleet": NO_LIMIT}

users = st.sampled_from(["a", "b"])
streams = st.integers(0, 9).map(lambda number: f"s{number}")
steps = st.lists(
    st.tuples(st.sampled_from(["acquire", "swap", "release", "renew", "expire", "wait"]), users, streams, streams),
    max_size=60,
)


def ask(stream: str, user: str = "a", *, evict: bool = False, own: int = 0, limit: int | None = None) -> Claim:
    """Write a claim; a stream belongs to one user for ever, as ids are never used twice."""
    user_limit = LIMITS[f"user:{user}"] if limit is None else limit
    demands = (
        Demand(Scope.USER, f"user:{user}", user_limit, own),
        Demand(Scope.TENANT, "tenant", LIMITS["tenant"], 0),
        Demand(Scope.FLEET, "fleet", NO_LIMIT, 0),
    )
    return Claim(f"{user}-{stream}", "n1", demands, f"age:{user}", evict)


def held(claim: Claim) -> Held:
    return Held(claim.stream, tuple(demand.key for demand in claim.demands), claim.age)


def counts(model: SlotModel, now: int) -> dict[str, int]:
    return {key: model.count(key, now) for key in LIMITS}


def run(model: SlotModel, steps: list[tuple[str, str, str, str]], now: int = START) -> int:
    """Carry out steps as a well-behaved node would: a stream that is held is not acquired again."""
    for what, user, stream, other in steps:
        claim = ask(stream, user, evict=True)
        is_held = claim.stream in model.members.get("fleet", {})
        match what:
            case "acquire" if not is_held:
                model.acquire(claim, now)
            case "swap" if not is_held and other != stream:
                model.swap(claim, f"{user}-{other}", now)
            case "release":
                model.release(held(claim))
            case "renew":
                model.renew([held(claim), held(ask(other, user))], now)
            case "expire":
                model.expire(now)
            case "wait":
                now += 1_100
    return now


@given(steps)
def test_no_count_ever_exceeds_its_limit(steps: list[tuple[str, str, str, str]]) -> None:
    model, now = SlotModel(LEASE_MS), START
    for step in steps:
        now = run(model, [step], now)
        assert all(model.count(key, now) <= limit for key, limit in LIMITS.items() if limit != NO_LIMIT)


@given(steps)
def test_a_stream_lives_in_all_its_scopes_or_in_none(steps: list[tuple[str, str, str, str]]) -> None:
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    alive = {key: {stream for stream, at in model.members.get(key, {}).items() if at > now} for key in LIMITS}
    assert alive["user:a"] | alive["user:b"] == alive["tenant"] == alive["fleet"]
    assert counts(model, now)["fleet"] == counts(model, now)["user:a"] + counts(model, now)["user:b"]


@given(steps, streams, users, st.booleans())
def test_an_acquire_changes_every_scope_or_nothing(
    steps: list[tuple[str, str, str, str]], stream: str, user: str, evict: bool
) -> None:
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    before, counted = copy.deepcopy(model), counts(model, now)
    claim = ask(f"new-{stream}", user, evict=evict)
    match model.acquire(claim, now):
        case Admitted(at, swapped, in_use):
            assert (at, swapped) == (now, False)
            mine = [demand.key for demand in claim.demands]
            assert counts(model, now) == {key: count + (key in mine) for key, count in counted.items()}
            assert in_use == tuple(model.count(key, now) for key in mine)
        case Full(at, position, in_use):
            assert model == before
            assert at == now
            assert in_use == counted[claim.demands[position].key] >= claim.demands[position].limit


@given(steps, streams, users)
def test_peek_answers_as_acquire_and_changes_nothing(
    steps: list[tuple[str, str, str, str]], stream: str, user: str
) -> None:
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    before = copy.deepcopy(model)
    claim = ask(f"new-{stream}", user)
    peeked = model.peek(claim, now)
    assert model == before
    acquired = model.acquire(claim, now)
    assert peeked == (acquired._replace(in_use=()) if isinstance(acquired, Admitted) else acquired)


@given(steps, streams, users)
def test_a_victim_that_is_offered_makes_room_and_its_swap_keeps_the_counts(
    steps: list[tuple[str, str, str, str]], stream: str, user: str
) -> None:
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    claim = ask(f"new-{stream}", user, evict=True)
    full = model.acquire(claim, now)
    if not isinstance(full, Full) or full.victim is None:
        return
    counted = counts(model, now)
    assert full.position == 0
    mine = tuple(counted[demand.key] for demand in claim.demands)
    assert model.swap(claim, full.victim.stream, now) == Admitted(now, swapped=True, in_use=mine)
    assert counts(model, now) == counted
    assert full.victim.stream not in model.members["user:" + user]
    assert full.victim.stream not in model.ages["age:" + user].acquired


@given(steps, streams, users)
def test_release_is_idempotent_and_touches_only_its_own(
    steps: list[tuple[str, str, str, str]], stream: str, user: str
) -> None:
    model = SlotModel(LEASE_MS)
    run(model, steps)
    others = {
        (key, name, at)
        for key, found in model.members.items()
        for name, at in found.items()
        if name != f"{user}-{stream}"
    }
    model.release(held(ask(stream, user)))
    once = copy.deepcopy(model)
    model.release(held(ask(stream, user)))
    assert model == once
    assert {(key, name, at) for key, found in model.members.items() for name, at in found.items()} == others


@given(steps)
def test_renewal_revives_nobody_and_reports_exactly_the_lost(steps: list[tuple[str, str, str, str]]) -> None:
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    leases = [held(ask(f"s{number}", user)) for user in "ab" for number in range(10)]
    alive = {stream for stream, at in model.members.get("fleet", {}).items() if at > now}
    counted = counts(model, now)
    renewed = model.renew(leases, now)
    assert renewed == Renewed(now, frozenset(lease.stream for lease in leases if lease.stream not in alive))
    assert counts(model, now) == counted == counts(model, now + LEASE_MS - 1)
    assert counts(model, now + LEASE_MS) == dict.fromkeys(LIMITS, 0)


@given(steps)
def test_after_a_lease_nothing_is_kept(steps: list[tuple[str, str, str, str]]) -> None:
    """Memory stays bounded: not even a user's age is kept once its damper has passed."""
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    assert counts(model, now + LEASE_MS) == dict.fromkeys(LIMITS, 0)
    model.expire(now + LEASE_MS)
    assert model.members == {}
    model.expire(now + LEASE_MS + DAMPER_HOLD_MS + DAMPER_WINDOW_MS)
    assert model == SlotModel(LEASE_MS)


@given(steps)
def test_forgetting_what_has_expired_changes_no_count(steps: list[tuple[str, str, str, str]]) -> None:
    model = SlotModel(LEASE_MS)
    now = run(model, steps)
    before = counts(model, now)
    model.expire(now)
    assert counts(model, now) == before


@pytest.mark.parametrize(("own", "expected"), [(0, 1), (1, 1), (2, 2), (9, 9)])
def test_the_larger_of_counted_and_own_decides(own: int, expected: int) -> None:
    model = SlotModel(LEASE_MS)
    model.acquire(ask("s1"), START)
    full = model.acquire(ask("s2", own=own, limit=1), START)
    assert isinstance(full, Full)
    assert full.in_use == expected


def test_a_lease_ends_at_its_deadline() -> None:
    model = SlotModel(LEASE_MS)
    model.acquire(ask("s1"), START)
    assert model.count("fleet", START + LEASE_MS - 1) == 1
    assert model.count("fleet", START + LEASE_MS) == 0


def test_the_oldest_by_acquisition_gives_way_and_the_name_decides_a_tie() -> None:
    model = SlotModel(LEASE_MS)
    for stream, at in (("s9", START), ("s1", START + 1), ("s0", START + 1)):
        model.acquire(ask(stream, limit=3), at)
    model.renew([held(ask("s9"))], START + 2)
    for left, oldest in ((3, "s9"), (2, "s0"), (1, "s1")):
        full = model.acquire(ask("new", evict=True, limit=left), START + 3)
        assert isinstance(full, Full)
        assert full.victim == Victim(f"a-{oldest}", "n1")
        model.release(held(ask(oldest)))


def test_a_victim_needs_an_age() -> None:
    """Where the age hash was lost there is nobody to offer."""
    model = SlotModel(LEASE_MS)
    model.acquire(ask("s1"), START)
    assert isinstance(model.acquire(ask("s2", evict=True, limit=2), START), Admitted)
    model.release(held(ask("s2")))
    model.ages.clear()
    full = model.acquire(ask("s2", evict=True, limit=1), START)
    assert isinstance(full, Full)
    assert full.victim is None


def test_an_anonymous_claim_swaps_without_an_age() -> None:
    model = SlotModel(LEASE_MS)
    claims = [ask(f"s{number}")._replace(age=None) for number in range(3)]
    model.acquire(claims[0], START)
    model.acquire(claims[1], START)
    assert model.swap(claims[2], claims[0].stream, START) == Admitted(START, swapped=True, in_use=(2, 2, 2))
    assert model.ages == {}


@pytest.mark.parametrize(
    ("gap_ms", "is_damped"), [(0, True), (DAMPER_WINDOW_MS // 2 - 1, True), (DAMPER_WINDOW_MS // 2, False)]
)
def test_three_evictions_within_the_window_close_eviction_for_a_while(gap_ms: int, is_damped: bool) -> None:
    model, now = SlotModel(600_000), START
    model.acquire(ask("s0"), now)
    for number in range(DAMPER_EVICTIONS):
        now = START + number * gap_ms
        swapped = model.swap(ask(f"s{number + 1}", limit=1), f"a-s{number}", now)
        assert isinstance(swapped, Admitted)
        assert swapped.swapped

    def victim(at: int) -> Victim | None:
        full = model.acquire(ask("new", evict=True, limit=1), at)
        assert isinstance(full, Full)
        return full.victim

    expected = Victim(f"a-s{DAMPER_EVICTIONS}", "n1")
    assert victim(now) == (None if is_damped else expected)
    assert victim(now + DAMPER_HOLD_MS - 1) == (None if is_damped else expected)
    assert victim(now + DAMPER_HOLD_MS) == expected


def test_first_full_passes_over_scopes_without_a_limit() -> None:
    demands = [Demand(Scope.FLEET, "a", NO_LIMIT, 0), Demand(Scope.TENANT, "b", 2, 0), Demand(Scope.USER, "c", 0, 0)]
    assert first_full(demands, [99, 1, 0]) == 2
    assert first_full(demands, [99, 2, 0]) == 1
    assert first_full(demands[:2], [99, 1]) is None


def test_a_damper_is_kept_until_nothing_in_it_can_matter() -> None:
    model = SlotModel(LEASE_MS)
    model.acquire(ask("s0"), START)
    model.swap(ask("s1"), "a-s0", START)
    model.release(held(ask("s1")))
    model.expire(START + DAMPER_WINDOW_MS - 1)
    assert model.ages["age:a"].damper is not None
    model.expire(START + DAMPER_WINDOW_MS)
    assert model == SlotModel(LEASE_MS)
