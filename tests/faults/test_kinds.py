"""Twelve kinds of fault under load: answers in time, no 5xx, no stream broken, right again at once, no noise."""

from __future__ import annotations

import pytest

from .conftest import HEARTBEAT_SECONDS, Nodes, assert_calm, in_a_thread
from .history import Window
from .kinds import KINDS, Kind, Site
from .load import LEASE_SECONDS, Load, now

STAYING = [f"stayer{number}" for number in range(9)]
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


async def under_fault(nodes: Nodes, site: Site, load: Load, kind: Kind, seconds: float) -> float:
    """Fifty streams and twenty connects a second, before, during and after a fault; returns the time of recovery."""
    stayers = await load.fill([*STAYING, "full"])
    await load.run(CALM_SECONDS)
    began = now()
    async with in_a_thread(kind.fault(site)):
        await load.run(seconds)
    ended = now()
    took = await load.until_right(site.store, RECOVERY_SECONDS)
    load.history.windows.append(Window("fault", began, now(), kind.overshoot))
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
