"""Two processes of each ASGI server on one Valkey for the whole run; what a test leaves behind fails it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from sse_limits.slots.embedded import find_server

from .client import Clients, until
from .harness import KINDS, NOWHERE, ROOT, ServerProcess
from .slots import Store

CORS_ORIGIN = "https://app.example"
HERE = Path(__file__).parent

Start = Callable[..., ServerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.servers)


class People(NamedTuple):
    """Users of the demo who are logged in: their session keys, and the SQLite file that knows them."""

    database: str
    sessions: dict[str, str]


@pytest.fixture(scope="session")
def valkey() -> Iterator[Store]:
    binary = find_server()
    if binary is None:
        if os.environ.get("CI"):
            pytest.fail("no valkey-server or redis-server, and CI is set")
        pytest.skip("not run: no valkey-server or redis-server")
    store = Store("valkey", str(binary))
    yield store
    store.end()


@pytest.fixture(scope="session")
def people() -> Iterator[People]:
    directory = tempfile.mkdtemp(prefix="sl-db-")
    database = f"{directory}/db.sqlite3"
    environ = {**os.environ, "DATABASE_PATH": database, "DJANGO_SETTINGS_MODULE": "tests.servers.settings"}
    made = subprocess.run(
        [sys.executable, "-m", "tests.servers.people"], cwd=ROOT, env=environ, check=True, capture_output=True
    )
    yield People(database, json.loads(made.stdout))
    shutil.rmtree(directory)


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each server's name; a test that needs no row of its own uses the fixtures below."""
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def running(kind: str, valkey: Store, people: People) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with two_nodes(kind, valkey, people) as pair:
        yield pair


@contextlib.contextmanager
def two_nodes(kind: str, valkey: Store, people: People) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two processes of one server, ready."""
    env = {
        "SSE_LIMITS_REDIS_URL": valkey.url,
        "SSE_LIMITS_CORS_ORIGINS": CORS_ORIGIN,
        "DATABASE_PATH": people.database,
    }
    with contextlib.ExitStack() as stack:
        pair = tuple(started(stack, ServerProcess(kind, env)) for _ in range(2))
        for server in pair:
            server.wait_until_ready()
        yield pair


@pytest.fixture(scope="session")
def running_behind_proxy(kind: str, valkey: Store) -> Iterator[ServerProcess]:
    """One process with the other settings: a trusted proxy, tokens in the query, and no database at all."""
    env = {
        "SSE_LIMITS_REDIS_URL": valkey.url,
        "SSE_LIMITS_TRUSTED_PROXIES": "127.0.0.1",
        "SSE_LIMITS_QUERY_TOKEN": "true",
        "DATABASE_PATH": NOWHERE,
    }
    with contextlib.ExitStack() as stack:
        server = started(stack, ServerProcess(kind, env))
        server.expect("clients come without an address")
        server.wait_until_ready()
        yield server


def started(stack: contextlib.ExitStack, server: ServerProcess) -> ServerProcess:
    stack.callback(server.stop)
    return server


@pytest.fixture
def slots(valkey: Store) -> Iterator[Store]:
    """The store, empty. Afterwards every slot must be free (I2), and no key may live for ever (I3)."""
    valkey.client.flushall()
    yield valkey
    assert valkey.in_use() == {}
    assert valkey.immortal_keys() == []


@pytest.fixture
def pair(running: tuple[ServerProcess, ServerProcess], slots: Store) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two nodes of one deployment."""
    yield running
    for server in running:
        server.check_log()


@pytest.fixture
def server(pair: tuple[ServerProcess, ServerProcess]) -> ServerProcess:
    return pair[0]


@pytest.fixture
def behind_proxy(running_behind_proxy: ServerProcess, slots: Store) -> Iterator[ServerProcess]:
    yield running_behind_proxy
    running_behind_proxy.check_log()


@pytest.fixture
def start(slots: Store) -> Iterator[Start]:
    """Start a server of the test's own; ready unless `ready=False`."""
    with contextlib.ExitStack() as stack:

        def start(
            name: str, *, ready: bool = True, uds: bool = False, workers: int | None = None, **env: str
        ) -> ServerProcess:
            environ = {"SSE_LIMITS_REDIS_URL": slots.url, "DATABASE_PATH": NOWHERE, **env}
            server = started(stack, ServerProcess(name, environ, uds=uds, workers=workers))
            if ready:
                server.wait_until_ready()
            return server

        yield start


@pytest.fixture
async def clients(slots: Store) -> AsyncIterator[Clients]:
    """Clients that all hang up in the end; their slots must be back within a second."""
    found = Clients()
    yield found
    await found.aclose()
    with contextlib.suppress(AssertionError):  # `slots` says what is left
        await until(lambda: slots.in_use() == {}, 1)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        yield client


@pytest.fixture
def journal(http: httpx.AsyncClient) -> Callable[[ServerProcess, str], Any]:
    """Read what an app has noted under a `run`: a list of (what, epoch seconds)."""

    async def read(server: ServerProcess, run: str) -> list[tuple[str, float]]:
        answer = await http.get(f"{server.url}/journal/", params={"run": run})
        return [tuple(entry) for entry in answer.json()]

    return read
