"""Two nodes whose Redis is behind the fault proxy, and clients that write down what they see."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from sse_limits.slots import keys
from sse_limits.slots.embedded import find_server
from tests.conftest import missing
from tests.servers.client import until
from tests.servers.conftest import People, people, started
from tests.servers.harness import ServerProcess
from tests.servers.slots import Store

from .kinds import Site
from .load import Load
from .proxy import Proxy

__all__ = ["people"]

HERE = Path(__file__).parent
HEARTBEAT_SECONDS = 1.0
CALM_SECONDS = 5.0
WITNESS = "witness"  # a key that is there as long as the store remembers; how often the nodes have found it again
SETTINGS = {
    "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
    "SSE_LIMITS_LEASE_SECONDS": "3",
    "SSE_LIMITS_HEARTBEAT_SECONDS": "1",
    "SSE_LIMITS_KEEPALIVE_SECONDS": "1",
    "SSE_LIMITS_STORE_TIMEOUT_SECONDS": "0.25",
}
SERIOUS = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|Traceback|\bException\b")
WENT = re.compile(r"WARNING \S+: the slot store does not answer")
CAME = re.compile(r"WARNING \S+: the slot store answers again")

Start = Callable[..., ServerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.stem not in ("test_proxy", "test_history"):
            item.add_marker(pytest.mark.servers)


class Nodes(NamedTuple):
    """Two processes of one deployment, and what each of them has logged since the test began."""

    servers: tuple[ServerProcess, ...]
    marks: tuple[int, ...]

    def said(self) -> list[list[str]]:
        """The serious lines of each."""
        found = [server.log()[mark:].splitlines() for server, mark in zip(self.servers, self.marks, strict=True)]
        return [[line for line in lines if SERIOUS.search(line)] for lines in found]


def assert_calm(said: list[str], *, most: int = 1) -> None:
    """At most one line for a store that goes, one for a store that comes back, and nothing else."""
    went = [line for line in said if WENT.search(line)]
    came = [line for line in said if CAME.search(line)]
    assert [line for line in said if line not in went and line not in came] == []
    assert len(went) <= most, said
    assert len(came) <= most, said


def until_calm(server: ServerProcess) -> None:
    """Wait until a node has found its store again, after what the last test did to it."""
    deadline = time.monotonic() + CALM_SECONDS
    while len(WENT.findall(server.log())) > len(CAME.findall(server.log())):
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


def empty(store: Store) -> None:
    """Take away what a test that failed has left, and nothing that nodes tell of themselves."""
    for pattern in ("sl:1:slot:*", "sl:1:age:*"):
        for key in store.client.scan_iter(pattern, count=1000):
            store.client.delete(key)


def until_acquainted(store: Store, both: Sequence[ServerProcess]) -> None:
    """Wait until each node knows again how many there are, since its share follows; both tell of themselves anew where
    the store has lost its memory, or was away for a lease."""
    came = sum(len(CAME.findall(server.log())) for server in both)
    if store.client.get(WITNESS) != str(came):
        deadline = time.monotonic() + CALM_SECONDS
        while store.client.zcard(keys.nodes()) < len(both):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(HEARTBEAT_SECONDS + 0.2)  # each counts them with its heartbeat
    store.client.set(WITNESS, came, ex=3600)


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    binary = find_server()
    if binary is None:
        missing("valkey-server or redis-server")
    store = Store("valkey", str(binary))
    with Proxy(store.socket) as proxy:
        found = Site(store, proxy)
        yield found
        found.heal()
    store.end()


@pytest.fixture(scope="session")
def both(site: Site, people: People) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two nodes for the whole run."""
    with contextlib.ExitStack() as stack:
        env = {**SETTINGS, "SSE_LIMITS_REDIS_URL": site.proxy.url, "DATABASE_PATH": people.database}
        servers = tuple(started(stack, ServerProcess("uvicorn", env)) for _ in range(2))
        for server in servers:
            server.expect("the slot store")
            server.wait_until_ready()
        yield servers


@pytest.fixture
def nodes(both: tuple[ServerProcess, ServerProcess], site: Site) -> Iterator[Nodes]:
    """The two nodes, holding nothing. Afterwards every slot must be free (I2), and no key may live for ever (I3)."""
    for server in both:
        until_calm(server)
    empty(site.first)
    until_acquainted(site.first, both)
    yield Nodes(both, tuple(len(server.log()) for server in both))
    assert site.store.immortal_keys() == []
    is_moved = site.store is not site.first
    site.heal()
    if is_moved:  # its links were dropped: each is used within a heartbeat, and what that finds out is over, too
        time.sleep(HEARTBEAT_SECONDS + 0.2)
    for server in both:
        server.check_log()


@pytest.fixture
def start(site: Site, people: People) -> Iterator[Start]:
    """Start a node of the test's own, patient with the store on a busy machine; settings come by name."""
    with contextlib.ExitStack() as stack:

        def start(*, ready: bool = True, **env: str) -> ServerProcess:
            environ = {
                **SETTINGS,
                "SSE_LIMITS_REDIS_URL": site.proxy.url,
                "DATABASE_PATH": people.database,
                "SSE_LIMITS_STORE_TIMEOUT_SECONDS": "2",
                **env,
            }
            server = started(stack, ServerProcess("uvicorn", environ))
            if ready:
                server.wait_until_ready()
            return server

        yield start


@pytest.fixture
async def load(nodes: Nodes, site: Site) -> AsyncIterator[Load]:
    """Clients of the two nodes. In the end they all hang up, and nothing may be left behind."""
    found = Load(nodes.servers)
    yield found
    await found.aclose()
    await until(lambda: site.store.in_use() == {}, 2 * HEARTBEAT_SECONDS)


@pytest.fixture
async def patient(nodes: Nodes, site: Site, start: Start) -> AsyncIterator[Load]:
    """Clients of one node that waits for the store as long as a busy machine needs: where nothing is to be away."""
    found = Load([start()])
    yield found
    await found.aclose()
    await until(lambda: site.store.in_use() == {}, 2 * HEARTBEAT_SECONDS)


@pytest.fixture
def operator(people: People) -> str:
    """The session of somebody who may see the live room."""
    return people.sessions["ops"]
