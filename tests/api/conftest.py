"""A fleet of two nodes on a real Valkey, which the settings name: what API, metrics and commands read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest

from sse_limits.core.decisions import DecisionMint
from sse_limits.limiter import decision_key
from sse_limits.live.rows import DecisionRow
from tests.live.fleet import RedisFleet, Station
from tests.slots.servers import Server

POLICY = {
    "tiers": {"anonymous": {"address_limit": 20}, "free": {"user_limit": 2, "tenant_limit": 50}, "pro": {}},
    "tenants": {"acme": {"name": "Acme", "tier": "pro"}, "globex": {"name": "Globex", "tier": "free", "user_limit": 3}},
}


class Scene(NamedTuple):
    """What is held: gina of globex 3 on two nodes, alice of acme 1; one rejection of gina, with its details."""

    stations: tuple[Station, Station]
    streams: list[str]
    refused: DecisionRow


@pytest.fixture
async def scene(valkey: Server, settings: Any) -> AsyncIterator[Scene]:
    valkey.client.flushall()
    settings.SSE_LIMITS = {"REDIS_URL": valkey.url, "POLICY": POLICY}
    fleet = RedisFleet(valkey)
    stations = (fleet.station(), fleet.station())
    for station in stations:
        station._mint = DecisionMint(decision_key(), station.name)
    limits = {"user": 3}
    opened = [await stations[number % 2].open("gina", "globex", limits=limits) for number in range(3)]
    opened.append(await stations[0].open("alice", "acme"))
    refused = await stations[1].open("gina", "globex", limits=limits)
    assert isinstance(refused, DecisionRow)
    for station in stations:
        await station.write()
    yield Scene(stations, [stream for stream in opened if isinstance(stream, str)], refused)
    await fleet.aclose()
