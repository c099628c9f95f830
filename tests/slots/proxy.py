"""A proxy between a store and its server that delays bytes, or cuts the link after so many of them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

CHUNK = 65536

Direction = Literal["request", "reply"]


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes bytes to a Unix socket."""

    def __init__(self, target: Path) -> None:
        self.delay_seconds: dict[Direction, float] = {"request": 0.0, "reply": 0.0}
        self.cuts = 0
        self._target = target
        self._left: dict[Direction, int | None] = {"request": None, "reply": None}
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut_after(self, count: int, direction: Direction) -> None:
        """Cut the link once, behind the `count`-th byte from now on; connections made later are let through."""
        self._left[direction] = count

    def pass_all(self) -> None:
        """Let everything through again."""
        self._left = {"request": None, "reply": None}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _link(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        # A task of its own: asyncio's server reports the cancellation of a handler as an error.
        link = asyncio.create_task(self._pass_both(client_reader, client_writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _pass_both(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(str(self._target))
        ways = {
            asyncio.create_task(self._pass(client_reader, server_writer, "request")),
            asyncio.create_task(self._pass(server_reader, client_writer, "reply")),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in (client_writer, server_writer):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay_seconds[direction]:
                    await asyncio.sleep(self.delay_seconds[direction])
                left = self._left[direction]
                if left is not None and len(data) >= left:
                    self._left[direction] = None
                    self.cuts += 1
                    writer.write(data[:left])
                    await writer.drain()
                    return
                if left is not None:
                    self._left[direction] = left - len(data)
                writer.write(data)
                await writer.drain()
