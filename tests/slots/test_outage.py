"""A node that decides alone: its share of each limit, and who gives way."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.slots import DAMPER_EVICTIONS, DAMPER_HOLD_MS, NO_LIMIT, Full, Held, Victim
from sse_limits.slots import keys
from sse_limits.slots.outage import DAMPERS_AT_MOST, LocalTable

from .backends import ask, held

LEASE_MS = 3000


@dataclass
class Stream:
    held: Held
    since: int


def table(*streams: Stream, nodes: int = 1) -> LocalTable:
    found = LocalTable(LEASE_MS)
    found.count_nodes(nodes, 0)
    for stream in streams:
        found.hold(stream.held)
    return found


def streams(number: int, **claim: object) -> list[Stream]:
    return [Stream(held(ask(f"s{at}", **claim)), at) for at in range(number)]  # type: ignore[arg-type]


@given(
    limit=st.integers(0, 40),
    before=st.lists(st.integers(0, 10), min_size=1, max_size=8),
    attempts=st.lists(st.integers(0, 7), max_size=200),
)
def test_nodes_that_decide_alone_exceed_a_limit_by_less_than_their_number(
    limit: int, before: list[int], attempts: list[int]
) -> None:
    """Nobody holds more than its share, or than what it held when the store went away."""
    user = keys.user("t1", "u1")
    nodes = [table(*streams(number), nodes=len(before)) for number in before]
    share = math.ceil(limit / len(nodes))
    for number, attempt in enumerate(attempts):
        node = nodes[attempt % len(nodes)]
        claim = ask(f"new{number}", {"user": limit})
        if node.judge(node.shared(claim), [], 0) is None:
            node.hold(held(claim))
    for node, number in zip(nodes, before, strict=True):
        assert node.own[user] <= max(number, share)
    if max(before) <= share:
        assert sum(node.own[user] for node in nodes) <= max(0, limit + len(nodes) - 1)


def test_the_first_full_scope_is_named_with_this_nodes_share() -> None:
    found = table(*streams(3), nodes=2)
    claim = found.shared(ask("new", {"user": 9, "tenant": 6}))
    assert [demand.limit for demand in claim.demands] == [5, 3, NO_LIMIT]
    assert found.judge(claim, [], 7) == Full(7, 1, 3)


def test_who_holds_more_than_its_share_keeps_it() -> None:
    found = table(*streams(4), nodes=4)
    assert found.shared(ask("new", {"user": 4})).demands[0].limit == 4


def test_the_users_oldest_stream_here_gives_way() -> None:
    mine = [Stream(held(ask("young")), 30), Stream(held(ask("old")), 10)]
    others = [Stream(held(ask("older", user="u2")), 5)]
    found = table(*mine, *others)
    claim = found.shared(ask("new", {"user": 2}, evict=True))
    assert found.judge(claim, [*others, *mine], 0) == Full(0, 0, 2, Victim("old", "n1"))


def test_nobody_gives_way_where_that_makes_no_room_elsewhere() -> None:
    mine = streams(2)
    found = table(*mine, Stream(held(ask("other", user="u2")), 0))
    claim = found.shared(ask("new", {"user": 2, "tenant": 2}, evict=True))
    assert claim.demands[1].limit == 3, "what is held is never over the share"
    full = found.judge(claim._replace(demands=tuple(d._replace(limit=2) for d in claim.demands)), mine, 0)
    assert full == Full(0, 0, 2)


def test_after_three_evictions_a_user_is_rejected_for_a_while() -> None:
    mine = streams(2)
    found = table(*mine)
    claim = found.shared(ask("new", {"user": 2}, evict=True))
    for at in range(DAMPER_EVICTIONS):
        assert found.judge(claim, mine, at) is not None
        found.evicted(claim, at)
    assert found.judge(claim, mine, DAMPER_EVICTIONS) == Full(DAMPER_EVICTIONS, 0, 2)
    assert found.judge(claim, mine, DAMPER_EVICTIONS + DAMPER_HOLD_MS).victim is not None  # type: ignore[union-attr]


def test_what_is_remembered_is_bounded() -> None:
    found = LocalTable(LEASE_MS)
    for number in range(2 * DAMPERS_AT_MOST):
        found.evicted(ask("new", user=f"u{number}", evict=True), 0)
    assert len(found._dampers) == DAMPERS_AT_MOST
    for stream in streams(3):
        found.hold(stream.held)
        found.drop(stream.held)
    assert found.own == {}


def counted(*steps: tuple[int, int]) -> list[int]:
    found = LocalTable(LEASE_MS)
    assert found.nodes == 1
    shared = []
    for now, living in steps:
        found.count_nodes(living, now)
        shared.append(found.nodes)
    return shared


def test_fewer_nodes_are_believed_when_they_were_counted_for_a_lease() -> None:
    assert counted((0, 3), (1000, 4), (2000, 1), (3000, 2), (4000, 1), (5000, 1), (6000, 1)) == [3, 4, 4, 4, 4, 2, 2]


def test_more_nodes_are_believed_at_once() -> None:
    assert counted((0, 1), (1000, 3), (2000, 2), (3000, 3), (4000, 2), (5000, 2)) == [1, 3, 3, 3, 3, 3]


def test_behind_an_outage_a_store_that_knows_only_us_is_not_believed() -> None:
    """Also when fewer were counted before it: what was in between nobody knows."""
    assert counted((0, 3), (1000, 1), (60_000, 1), (61_000, 1), (62_000, 3)) == [3, 3, 3, 3, 3]
