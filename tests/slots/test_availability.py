"""What a node says of its store: once when it goes, once when it is back, and what is wrong with its settings."""

from __future__ import annotations

import logging

import pytest

from sse_limits.slots.availability import Availability
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.outage import LocalTable

from .backends import RedisBackend
from .servers import Server

pytestmark = pytest.mark.redis
LEASE_MS = 60_000


@pytest.fixture
def availability(redis_backend: RedisBackend, caplog: pytest.LogCaptureFixture) -> Availability:
    caplog.set_level(logging.INFO, "sse_limits")
    return Availability(redis_backend.store(), LocalTable(LEASE_MS))


async def test_a_store_that_is_well_is_greeted_without_a_word(
    availability: Availability, caplog: pytest.LogCaptureFixture
) -> None:
    await availability.greet()
    assert caplog.messages == []
    assert await availability.probe()


async def test_a_server_that_drops_keys_is_warned_of(
    availability: Availability, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with server.evicting("allkeys-lru"):
        await availability.greet()
    (said,) = caplog.messages
    assert "maxmemory-policy allkeys-lru" in said
    assert "sse_limits.W010" in said


async def test_a_demoted_server_answers_and_is_away_all_the_same(
    availability: Availability, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads are answered: only a probe that writes knows."""
    await availability.greet()
    with server.demoted():
        for _ in range(3):
            availability.failed(StoreUnavailable("READONLY"))
        assert not await availability.probe()
        assert (availability.circuit.is_open, availability.went_away.is_set()) == (True, True)
    assert await availability.probe()
    for _ in range(2):
        availability.came_back()
    assert (availability.circuit.is_open, availability.went_away.is_set()) == (False, False)
    assert ["does not answer (READONLY)" in caplog.messages[0], "answers again" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2
