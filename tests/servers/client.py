"""Clients that can do what browsers and bad networks do: read as it comes, hang up politely, reset, or say half."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from websockets import InvalidStatus
from websockets.asyncio.client import ClientConnection, connect

from .harness import ServerProcess

ANSWER_SECONDS = 5
Headers = Iterable[tuple[str, str]]


class Stream:
    """One HTTP request on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_chunked = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.fields: list[tuple[str, str]] = []

    @classmethod
    async def open(cls, server: ServerProcess, request: bytes) -> Self:
        """Send a request, and read nothing."""
        if server.address.startswith("/"):
            return cls(*await opened(asyncio.open_unix_connection(server.address), request))
        host, _, port = server.address.rpartition(":")
        return cls(*await opened(asyncio.open_connection(host, int(port)), request))

    async def head(self) -> Self:
        """Read the status and the headers; of a repeated one `headers` has the last."""
        async with asyncio.timeout(ANSWER_SECONDS):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.fields = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:-2])
        ]
        self.headers = dict(self.fields)
        self._is_chunked = self.headers.get("transfer-encoding") == "chunked"
        return self

    async def chunk(self) -> bytes:
        """The next piece of the body; empty at its end."""
        if not self._is_chunked:
            return await self._reader.read(65536)
        try:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            return (await self._reader.readexactly(size + 2))[:-2]
        except asyncio.IncompleteReadError:
            raise ConnectionError("the connection broke within the body") from None

    async def until(self, wanted: bytes, seconds: float = ANSWER_SECONDS) -> bytes:
        """Read until `wanted` has come, and return everything up to there."""
        found = b""
        async with asyncio.timeout(seconds):
            while wanted not in found:
                chunk = await self.chunk()
                assert chunk, f"the body ended with {found!r}, without {wanted!r}"
                found += chunk
        return found

    async def rest(self, seconds: float = ANSWER_SECONDS) -> bytes:
        """Read to the end of the body."""
        if (length := self.headers.get("content-length")) is not None:
            return await self._reader.readexactly(int(length))
        found = b""
        async with asyncio.timeout(seconds):
            while chunk := await self.chunk():
                found += chunk
        return found

    async def is_closed(self, seconds: float = ANSWER_SECONDS) -> bool:
        """Whether the server closes the connection within that time; what it says before is dropped."""
        try:
            async with asyncio.timeout(seconds):
                while await self._reader.read(65536):
                    pass
        except (TimeoutError, ConnectionError):
            return False
        return True

    async def again(self, request: bytes) -> Self:
        """Send another request on the connection; the answer to the last one has been read to its end."""
        self._writer.write(request)
        await self._writer.drain()
        return self

    def stop_reading(self) -> None:
        """From here on the kernel's buffers fill up."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Hang up: FIN."""
        self._writer.close()

    def reset(self) -> None:
        """Break the connection: RST."""
        found: socket.socket = self._writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until nothing of the connection is left here."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def opened(connecting: Any, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await connecting
    writer.write(request)
    await writer.drain()
    return reader, writer


def request_bytes(method: str, path: str, headers: Headers = (), body: bytes = b"") -> bytes:
    """Write a request as it goes over the wire."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def handshake_bytes(path: str, headers: Headers = ()) -> bytes:
    """Write a WebSocket handshake, for clients that do not wait for its answer."""
    upgrade = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", "13"),
    ]
    return request_bytes("GET", path, [*upgrade, *headers])


class Clients:
    """Opens streams and sockets, and leaves none behind."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._sockets: list[ClientConnection] = []

    async def send(self, server: ServerProcess, request: bytes) -> Stream:
        """Send a request, and read nothing."""
        stream = await Stream.open(server, request)
        self._streams.append(stream)
        return stream

    async def get(
        self,
        server: ServerProcess,
        path: str,
        token: str | None = None,
        *,
        method: str = "GET",
        headers: Headers = (),
        body: bytes = b"",
    ) -> Stream:
        """Send a request, and read the head of the answer."""
        stream = await self.send(server, request_bytes(method, path, [*bearer(token), *headers], body))
        return await stream.head()

    async def status(self, server: ServerProcess, path: str, token: str | None = None, **options: Any) -> int:
        """Send a request; the stream, if there is one, stays open."""
        return (await self.get(server, path, token, **options)).status

    async def websocket(
        self, server: ServerProcess, path: str, token: str | None = None, *, headers: Headers = (), **options: Any
    ) -> ClientConnection:
        """Open a WebSocket. Raises `websockets.InvalidStatus` where it is refused."""
        found = await connect(
            f"ws://{server.address}{path}",
            additional_headers=[*bearer(token), *headers],
            proxy=None,
            **{"open_timeout": ANSWER_SECONDS, "close_timeout": 1, "compression": None, **options},
        )
        self._sockets.append(found)
        return found

    async def websocket_status(self, server: ServerProcess, path: str, token: str | None = None, **options: Any) -> int:
        """Open a WebSocket, and return the status of the handshake: 101 if it is open now."""
        try:
            await self.websocket(server, path, token, **options)
        except InvalidStatus as refused:
            return refused.response.status_code
        return 101

    async def aclose(self) -> None:
        """Hang up everywhere."""
        for websocket in self._sockets:
            websocket.transport.abort()
        for stream in self._streams:
            await stream.closed()
        for websocket in self._sockets:
            await websocket.wait_closed()


def bearer(token: str | None) -> list[tuple[str, str]]:
    return [] if token is None else [("Authorization", f"Bearer {token}")]


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> float:
    """Wait until the condition, which may be awaitable, holds, and return how long that took; fail after `seconds`."""
    started = time.monotonic()
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - started
