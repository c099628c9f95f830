"""A fleet on each kind of store, empty before each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import REDIS_KINDS
from tests.slots.servers import Server

from .fleet import Fleet, MemoryFleet, RedisFleet


@pytest.fixture(params=["memory", *REDIS_KINDS, pytest.param("cluster", marks=pytest.mark.redis)])
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    if request.param == "memory":
        yield MemoryFleet()
        return
    server = request.getfixturevalue(request.param)
    server.client.flushall()
    found = RedisFleet(server)
    yield found
    await found.aclose()


@pytest.fixture
async def redis_fleet(server: Server) -> AsyncIterator[RedisFleet]:
    found = RedisFleet(server)
    yield found
    await found.aclose()
