"""What the room says while the store is away: for this process, for some nodes, for tiers that choose differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.http import QueryDict
from django.test import override_settings

from sse_limits.core.limits import NOTHING, Outage, Overrides, Policy, Tenant, Tier, UserLimit
from sse_limits.dashboard import outage
from sse_limits.dashboard.look import Asked, Look
from sse_limits.dashboard.pages import nodes, overview
from sse_limits.live.memory import MemoryBoard
from sse_limits.slots.memory import MemoryStore, epoch_ms
from tests.live.fleet import Station

from .reading import words

LEASE_SECONDS = 90


def policy(tenant: Overrides = NOTHING, user: Overrides = NOTHING, **tiers: Outage | None) -> Policy:
    return Policy(
        version=1,
        tiers={slug: Tier(slug, slug, Overrides(outage=choice)) for slug, choice in tiers.items()},
        tenants={"acme": Tenant("acme", "Acme", "free", overrides=tenant)},
        memberships={},
        users={("acme", "u1"): UserLimit(overrides=user)},
        default_tier="free",
        anonymous_tier="anonymous",
    )


class TestWords:
    def test_tiers_are_named_by_what_they_choose(self) -> None:
        found = policy(free=None, pro=Outage.LOCAL, internal=Outage.OPEN, anonymous=Outage.CLOSED)
        assert outage.choices(found) == (
            "free, pro: each node enforces its share of the limit (<i>local</i>). "
            "internal: everybody is admitted (<i>open</i>). anonymous: refused with 503 (<i>closed</i>)."
        )
        assert outage.decisions(found) == "local decisions"

    def test_what_tenants_and_users_choose_is_counted(self) -> None:
        own = Overrides(outage=Outage.OPEN)
        said = outage.choices(policy(tenant=own, free=None))
        assert said.endswith("(<i>local</i>). 1 tenant or user has a choice of its own.")
        said = outage.choices(policy(tenant=own, user=own, free=None))
        assert said.endswith("2 tenants and users have a choice of their own.")

    def test_of_many_tiers_some_are_named(self) -> None:
        found = outage.choices(policy(**{f"t{number}": None for number in range(10)}))
        assert "t6, t7 and 2 more: each node" in found

    def test_names_are_escaped(self) -> None:
        assert "<b>" not in outage.choices(policy(**{"<b>": None}))

    @pytest.mark.parametrize(
        ("tiers", "sentence", "short"),
        [
            ({"a": None, "b": Outage.CLOSED}, "Nodes decide from their own tables", "local decisions"),
            ({"a": Outage.OPEN}, "Everybody is admitted", "everybody is admitted"),
            ({"a": Outage.CLOSED}, "New streams are refused with 503", "refused with 503"),
            ({"a": Outage.CLOSED, "b": Outage.OPEN}, "The tier says who is admitted", "the tier decides"),
        ],
    )
    def test_the_sentence_says_what_happens_to_newcomers(
        self, tiers: dict[str, Outage | None], sentence: str, short: str
    ) -> None:
        assert outage.meanwhile(policy(**tiers)) == f"{sentence}; no open stream is affected."
        assert outage.decisions(policy(**tiers)) == short


class Room:
    """Nodes on a board of this process, whose clock the test sets."""

    def __init__(self) -> None:
        self.now = epoch_ms()
        self.board = MemoryBoard(snapshot_seconds=0, clock=lambda: self.now)
        self.store = MemoryStore(lease_seconds=LEASE_SECONDS)

    async def node(self, number: int, **own: Any) -> Station:
        station = Station(number, self.store, self.board.sink(self.store))
        station.own = {"policy_version": 1, **own}
        await station.write()
        return station

    def look(self) -> Look:
        return Look(Asked("admin", "overview", QueryDict()), self.board, replace(policy(free=None, anonymous=None)))

    def alerts(self) -> str:
        return words(str(overview.build(self.look()).parts["alerts"]))


@pytest.fixture
def room() -> Iterator[Room]:
    with override_settings(SSE_LIMITS={"STORE": "memory"}):
        yield Room()


async def test_a_node_that_cannot_use_the_store_is_an_alert(room: Room) -> None:
    await room.node(1)
    assert room.alerts() == ""
    await room.node(2, store_away_since=room.now - 60_000)
    assert "web:2 cannot use Redis since" in room.alerts()
    assert "it decides from its own table. Nodes" in room.alerts()


async def test_many_of_them_are_one_alert(room: Room) -> None:
    for number in range(1, 10):
        await room.node(number, store_away_since=room.now if number > 2 else None)
    assert room.alerts().startswith("7 of 9 nodes cannot use Redis since")
    assert room.alerts().count("cannot use Redis") == 1


async def test_the_page_of_nodes_marks_them_and_says_why(room: Room) -> None:
    await room.node(1, store_away_since=room.now)
    view = nodes.build(room.look())
    row = words(str(view.tables["nodes"].rows))
    assert "web:1 store away" in row
    opened = replace(room.look().asked, query=QueryDict(f"open={room.look().snapshot.nodes[0].id}"))
    view = nodes.build(Look(opened, room.board, policy(free=None)))
    assert "Why it decides from its own table" in words(str(view.tables["nodes"].rows))


async def test_nodes_that_have_not_reported_are_one_alert(room: Room) -> None:
    for number in range(1, 8):
        await room.node(number)
    room.now += 7_000
    assert "web:1, web:2, web:3, web:4, web:5 +2 have not reported since" in room.alerts()
    for number in range(2, 8):
        await room.node(number)
    assert room.alerts().startswith("web:1 has not reported since")
    assert "it cannot reach Redis, stands still, or has died." in room.alerts()
