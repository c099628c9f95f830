"""A proxy between a store and its server that does what bad networks do. One in the tree, for every test.

It runs in a thread with a loop of its own, so that a test whose loop is busy does not delay the store as well. Every
method returns when what it says is in force, for connections that exist as for those to come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

CHUNK = 65536
CHUNKS_UNDER_WAY = 64
CALL_SECONDS = 10
CLOSE_SECONDS = 0.2

Direction = Literal["request", "reply"]
Target = Path | tuple[str, int]
DIRECTIONS: tuple[Direction, Direction] = ("request", "reply")


class _Way:
    """What happens to the bytes of one direction. Belongs to the proxy's loop."""

    def __init__(self) -> None:
        self.latency = 0.0
        self.left: int | None = None  # bytes until the link breaks
        self.again: int | None = None  # and then, until the next one does
        self.resets = False  # whether it breaks with a reset
        self.passes = asyncio.Event()
        self.passes.set()


class Proxy:
    """Listens on a port of 127.0.0.1 and passes bytes to a Unix socket or a TCP address."""

    def __init__(self, target: Target) -> None:
        self.counts: Counter[str] = Counter()  # links, cuts, resets, lost (no target), request and reply (bytes)
        self._target = target
        self._links: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._ways: dict[Direction, _Way] = {}
        self._port = 0

    @property
    def url(self) -> str:
        """Where a client of Redis finds it; the same for its whole life."""
        return f"redis://127.0.0.1:{self._port}"

    @property
    def links(self) -> int:
        """The connections that exist now."""
        return len(self._links)

    # -- faults ----------------------------------------------------------------------------------------------------

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Add latency, in both directions unless told otherwise; bytes stay in order."""
        self._each(directions, lambda way: setattr(way, "latency", seconds))

    def black_hole(self, *directions: Direction) -> None:
        """Keep every connection and pass nothing. What is held back comes through in the end, as TCP would have it."""
        self._each(directions, lambda way: way.passes.clear())

    def cut_after(self, count: int, direction: Direction) -> None:
        """Cut the link once, behind the `count`-th byte from now on; connections made later are let through."""
        self._each((direction,), lambda way: self._break_after(way, count, None, resets=False))

    def reset_after(self, count: int, direction: Direction, *, always: bool = False) -> None:
        """The same with a reset (RST) for the client; or each time that so many bytes have passed."""
        self._each((direction,), lambda way: self._break_after(way, count, count if always else None, resets=True))

    def refuse(self, *, drop: bool = True) -> None:
        """Refuse new connections, as a closed port does; drop those that exist, or let them live."""
        self._call(self._refuse(drop=drop))

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._call(self._accept())

    def point_to(self, target: Target, *, drop: bool) -> None:
        """Send new connections elsewhere; drop those that exist, or let them stay where they are."""
        self._call(self._point_to(target, drop=drop))

    def drop(self) -> None:
        """Close every connection that exists."""
        self._call(self._drop())

    def pass_all(self) -> None:
        """Let everything through again, at once."""
        self._each((), self._heal)

    # -- its life --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._call(self._refuse(drop=True))
        self._listener.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    async def _start(self) -> None:
        self._ways = {direction: _Way() for direction in DIRECTIONS}
        self._listener = bound(0)
        self._port = self._listener.getsockname()[1]
        await self._accept()

    # -- in its loop -----------------------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)

    def _each(self, directions: tuple[Direction, ...], change: Callable[[_Way], object]) -> None:
        async def apply() -> None:
            for direction in directions or DIRECTIONS:
                change(self._ways[direction])

        self._call(apply())

    @staticmethod
    def _break_after(way: _Way, count: int, again: int | None, *, resets: bool) -> None:
        way.left, way.again, way.resets = count, again, resets

    @staticmethod
    def _heal(way: _Way) -> None:
        way.latency, way.left, way.again = 0.0, None, None
        way.passes.set()

    async def _accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._link, sock=self._listener)

    async def _refuse(self, *, drop: bool) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            # Bound, not listening: refused by the kernel, and nobody else can take the port meanwhile.
            self._listener = bound(self._port)
        if drop:
            await self._drop()

    async def _point_to(self, target: Target, *, drop: bool) -> None:
        self._target = target
        if drop:
            await self._drop()

    async def _drop(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _link(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        # A task of its own: asyncio's server reports the cancellation of a handler as an error.
        self.counts["links"] += 1
        link = asyncio.create_task(self._pass_both(client_reader, client_writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _pass_both(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await self._open()
        except OSError:
            self.counts["lost"] += 1
            client_writer.transport.abort()
            return
        pairs = {"request": (client_reader, server_writer), "reply": (server_reader, client_writer)}
        ways = {
            asyncio.create_task(self._pass(*pairs[direction], direction, client_writer)) for direction in DIRECTIONS
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await asyncio.gather(closed(client_writer), closed(server_writer))

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(str(self._target))
        return await asyncio.open_connection(*self._target)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
        client: asyncio.StreamWriter,
    ) -> None:
        """Pass one direction of a link until it ends or is broken; what is delayed does not hold up the reading."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY)
        reading = asyncio.create_task(self._read(reader, under_way, direction))
        try:
            with contextlib.suppress(OSError):
                while await self._deliver(*await under_way.get(), writer, direction, client):
                    pass
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]], direction: Direction
    ) -> None:
        data = b"?"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            await under_way.put((self._loop.time() + self._ways[direction].latency, data))

    async def _deliver(
        self, due: float, data: bytes, writer: asyncio.StreamWriter, direction: Direction, client: asyncio.StreamWriter
    ) -> bool:
        """Hand on one chunk; False when it was the last one of the link."""
        way = self._ways[direction]
        if (wait := due - self._loop.time()) > 0:
            await asyncio.sleep(wait)
        await way.passes.wait()
        is_broken = way.left is not None and 0 < len(data) >= way.left
        if way.left is not None:
            data, way.left = (data[: way.left], way.again) if is_broken else (data, way.left - len(data))
        self.counts[direction] += len(data)
        writer.write(data)
        await writer.drain()
        if is_broken:
            self.counts["resets" if way.resets else "cuts"] += 1
            if way.resets:
                reset(client)
        return bool(data) and not is_broken


def bound(port: int) -> socket.socket:
    """A socket that has a port of 127.0.0.1 and does not listen yet."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    return found


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection; who takes nothing any more loses what is left for it."""
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection: RST."""
    found: socket.socket = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
