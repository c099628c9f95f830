"""Every kind of fault under load: answers in time, no 5xx, no stream broken, right again at once, no noise."""

from __future__ import annotations

import pytest

from .conftest import HEARTBEAT_SECONDS, Nodes, assert_calm
from .course import go_through
from .kinds import KINDS, ONE_WAY, Kind, Site
from .load import Load

FAULT_SECONDS = 3.0
ANSWER_SECONDS = 1.0
KEEPALIVE_SECONDS = 1.0
RECOVERY_SECONDS = HEARTBEAT_SECONDS + 1.0


@pytest.mark.parametrize("name", [*KINDS, *ONE_WAY])
async def test_a_fault_of_the_store_is_nothing_that_clients_notice(
    nodes: Nodes, site: Site, load: Load, name: str
) -> None:
    kind = (KINDS | ONE_WAY)[name]
    await go_through(site, load, kind, FAULT_SECONDS, RECOVERY_SECONDS)
    assert_unnoticed(nodes, load, kind)


def assert_unnoticed(nodes: Nodes, load: Load, kind: Kind) -> None:
    """Clients were answered in time by the limits, streams went on, and the nodes have said little."""
    assert load.faults == []
    assert set(load.statuses) <= {200, 429}
    assert max(load.answers) <= ANSWER_SECONDS
    assert load.broken() == []
    assert max(each.longest_silence for each in load.opened) <= KEEPALIVE_SECONDS + ANSWER_SECONDS
    assert load.history.report() == ""
    for said in nodes.said():
        assert_calm(said, most=int(kind.is_outage))
