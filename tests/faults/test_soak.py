"""The long runs, which CI has no time for: `make soak`."""

from __future__ import annotations

import pytest

from tests.servers.client import until

from .conftest import CAME, Nodes, Start, assert_calm
from .course import FULL, go_through, in_a_thread, windows
from .cycles import come_and_go
from .kinds import KINDS, ONE_WAY, Site
from .load import LEASE_SECONDS, Load, now
from .settings import USER_LIMIT
from .test_kinds import RECOVERY_SECONDS, assert_unnoticed
from .test_nodes import DOOMED, killed

pytestmark = pytest.mark.soak

KILLS = 20
FAULT_SECONDS = 20.0
VISITS = 20_000
WARM_UP = 1_000
MOST_BYTES = 20 * 1024 * 1024
TURNS = 4
SHARE = 3  # of a user's limit of five, on two nodes
CONNECTS = 2_000
CONNECTS_A_SECOND = 100.0


@pytest.mark.parametrize("turn", range(KILLS))
async def test_a_node_is_killed_again_and_again(
    nodes: Nodes, site: Site, load: Load, start: Start, operator: str, turn: int
) -> None:
    await load.fill(["survivor"])
    users = [f"doomed{turn}-{number}" for number in range(DOOMED // USER_LIMIT)]
    await killed(load, nodes, site, start(), operator, users)
    assert load.history.report() == ""


@pytest.mark.parametrize("name", [*KINDS, *ONE_WAY])
async def test_a_long_fault_is_nothing_that_clients_notice(nodes: Nodes, site: Site, load: Load, name: str) -> None:
    kind = (KINDS | ONE_WAY)[name]
    await go_through(site, load, kind, FAULT_SECONDS, RECOVERY_SECONDS)
    assert_unnoticed(nodes, load, kind)


async def test_a_store_that_comes_and_goes_is_no_way_past_the_limits(nodes: Nodes, site: Site, load: Load) -> None:
    """Away for longer than a lease, and away again as soon as both nodes have found it: their shares stay halves."""
    await load.fill(FULL)
    began = now()
    for turn in range(1, TURNS + 1):
        async with in_a_thread(KINDS["stall"].fault(site)):
            await load.run(LEASE_SECONDS + 1)
            found = [await load.connect(f"fresh{turn}", node) for node in nodes.servers for _ in range(USER_LIMIT)]
            await load.settled()
            assert sum(each is not None for each in found) == 2 * SHARE
        await until(lambda turn=turn: all(len(CAME.findall("\n".join(said))) >= turn for said in nodes.said()))
    await load.until_right(site.store, 2 * LEASE_SECONDS)
    load.history.windows += windows(load, KINDS["stall"], began, now())
    assert load.history.report() == ""
    assert load.broken() == []


async def test_scripts_that_are_forgotten_all_the_time_cost_no_answer(nodes: Nodes, site: Site, load: Load) -> None:
    """B35: 2,000 connects and several heartbeats, SCRIPT FLUSH every 50 ms."""
    await load.fill(FULL)
    async with in_a_thread(KINDS["noscript"].fault(site)):
        await load.run(CONNECTS / CONNECTS_A_SECOND, rate=CONNECTS_A_SECOND)
        await load.settled()
        await load.until_right(site.store, RECOVERY_SECONDS)
    assert load.faults == []
    assert set(load.statuses) == {200, 429}
    assert load.broken() == []
    assert load.history.report() == ""
    for said in nodes.said():
        assert_calm(said, most=0)


async def test_twenty_thousand_users_come_and_go(site: Site, start: Start) -> None:
    before, after = await come_and_go(site, start, WARM_UP, VISITS)
    print(before, after)
    assert after.resident_bytes - before.resident_bytes <= MOST_BYTES
