"""Twelve kinds of fault under load: answers in time, no 5xx, no stream broken, right again at once, no noise."""

from __future__ import annotations

import pytest

from sse_limits.slots import keys

from .conftest import HEARTBEAT_SECONDS, Nodes, assert_calm, in_a_thread
from .history import Window
from .kinds import KINDS, Kind, Site
from .load import LEASE_SECONDS, Load, now
from .settings import TENANT, USER_LIMIT

FULL = (*(f"stayer{number}" for number in range(9)), "full")
CALM_SECONDS = 0.5
FAULT_SECONDS = 3.0
ANSWER_SECONDS = 1.0
KEEPALIVE_SECONDS = 1.0
RECOVERY_SECONDS = HEARTBEAT_SECONDS + 1.0


@pytest.mark.parametrize("name", KINDS)
async def test_a_fault_of_the_store_is_nothing_that_clients_notice(
    nodes: Nodes, site: Site, load: Load, name: str
) -> None:
    await under_fault(nodes, site, load, KINDS[name], FAULT_SECONDS)


def windows(load: Load, kind: Kind, began: float, ended: float) -> list[Window]:
    """What the fault allows: those who stay were spread over the nodes when it began, of others nobody knows."""
    even = frozenset(keys.user(TENANT, user) for user in FULL)
    others = frozenset(load.history.limits) - even
    return [
        Window("fault", began, ended, kind.overshoot(USER_LIMIT, len(load.nodes), is_even=scopes is even), scopes)
        for scopes in (even, others)
    ]


async def under_fault(nodes: Nodes, site: Site, load: Load, kind: Kind, seconds: float) -> float:
    """Fifty streams and twenty connects a second, before, during and after a fault; returns the time of recovery."""
    stayers = await load.fill(FULL)
    await load.run(CALM_SECONDS)
    began = now()
    async with in_a_thread(kind.fault(site)):
        await load.run(seconds)
    ended = now()
    took = await load.until_right(site.store, RECOVERY_SECONDS)
    load.history.windows += windows(load, kind, began, now())
    await load.run(CALM_SECONDS)
    await load.until_right(site.store, RECOVERY_SECONDS)

    assert load.faults == []
    assert set(load.statuses) <= {200, 429}
    assert max(load.answers) <= ANSWER_SECONDS
    assert load.broken() == []
    assert all(each.is_open for each in stayers)
    assert max(each.longest_silence for each in stayers) <= KEEPALIVE_SECONDS + ANSWER_SECONDS
    assert load.history.report() == ""
    for said in nodes.said():
        assert_calm(said)
        assert kind.is_outage or said == []
    assert ended - began < seconds + LEASE_SECONDS
    return took
