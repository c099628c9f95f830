"""Simulated clients of the demo: what a limiter meets in a day, in ten seconds.

Each kind is one coroutine per client. They talk to the server over real sockets and note what they were answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

TABS_AT_ONCE = 9
NEW_TAB_SECONDS = 4.0  # three evictions within ten seconds would close eviction for half a minute
RETRY_SECONDS = 1.0
VISITORS = 26
SOCKETS = 6
MESSAGES_A_SECOND = 40
TOO_LARGE = 65 * 1024  # bytes of a message; the demo's tiers allow 64 KiB
STALLED_BUFFER = 4096
STALL_SECONDS = 25.0  # beyond the write deadline
TICKER_TOPIC = "ticker"  # what the stalled reader asks for, and the publisher sends much of


@dataclass
class Tally:
    """What the clients saw: open streams by kind, answers by status, evictions, and the last waiting times."""

    open: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    evicted: int = 0
    first_byte_ms: list[float] = field(default_factory=list)


class Crowd:
    """All simulated clients of one server."""

    def __init__(self, base_url: str, token_of: Callable[[str, str], str]) -> None:
        self.tally = Tally()
        self._token_of = token_of
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        timeout = httpx.Timeout(5, read=None)
        self._client = httpx.AsyncClient(base_url=base_url, limits=limits, timeout=timeout, trust_env=False)

    async def run(self) -> None:
        """Run every client until cancelled."""
        async with self._client, asyncio.TaskGroup() as group:
            for number in range(18):
                tenant = ("acme", "globex", "initech")[number % 3]
                group.create_task(self._regular(tenant, f"user{number}"))
            group.create_task(self._tab_hoarder())
            group.create_task(self._leaking_client())
            group.create_task(self._forger())
            group.create_task(self._stalled_reader())
            group.create_task(self._flooder())
            for number in range(SOCKETS):
                group.create_task(self._websocket("initech", f"desk{number}"))
            for _ in range(VISITORS):
                group.create_task(self._visitor())

    async def _regular(self, tenant: str, user: str) -> None:
        """Opens a page, stays for a while, leaves, comes back."""
        while True:
            await asyncio.sleep(random.uniform(0, 4))
            await self._stream("regular", "/events/", (tenant, user), seconds=random.uniform(4, 20))

    async def _tab_hoarder(self) -> None:
        """acme evicts: with every new tab beyond ten, alice's oldest gives way."""
        async with asyncio.TaskGroup() as tabs:
            for number in itertools.count(1):
                tabs.create_task(self._stream("alice", "/events/", ("acme", "alice")))
                await asyncio.sleep(0.2 if number < TABS_AT_ONCE else NEW_TAB_SECONDS)

    async def _leaking_client(self) -> None:
        """globex rejects: gus never closes a stream, and from the sixth on is told so."""
        async with asyncio.TaskGroup() as streams:
            while True:
                streams.create_task(self._stream("gus", "/events/", ("globex", "gus")))
                await asyncio.sleep(0.4)

    async def _forger(self) -> None:
        """Tries tokens that nobody signed."""
        while True:
            await self._stream("forger", "/events/", None, token="sl1.0000.e30.forged")
            await asyncio.sleep(RETRY_SECONDS / 2)

    async def _stalled_reader(self) -> None:
        """Asks for much and reads nothing: its lane drops the oldest, the write deadline ends it, and it comes back."""
        while True:
            with contextlib.suppress(OSError):
                await self._stall()
            await asyncio.sleep(RETRY_SECONDS)

    async def _stall(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as found:
            found.setblocking(False)  # noqa: FBT003 - a positional argument by its standard
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_BUFFER)
            base = self._client.base_url
            await loop.sock_connect(found, (base.host, base.port or 80))
            token = self._token_of("initech", "stalled")
            asked = f"GET /events/?topic={TICKER_TOPIC} HTTP/1.1"
            lines = (asked, f"Host: {base.host}", f"Authorization: Bearer {token}")
            await loop.sock_sendall(found, "\r\n".join([*lines, "", ""]).encode())
            await asyncio.sleep(STALL_SECONDS)

    async def _flooder(self) -> None:
        """Sends as fast as it can; now and then a message beyond its size, for which its socket is closed."""
        while True:
            await self._talk(("globex", "flooder"), 1 / MESSAGES_A_SECOND, times=20 * MESSAGES_A_SECOND)
            await asyncio.sleep(RETRY_SECONDS)

    async def _websocket(self, tenant: str, user: str) -> None:
        """A desk that subscribes and says something now and then."""
        while True:
            await self._talk((tenant, user), 2, times=random.randint(5, 30))
            await asyncio.sleep(random.uniform(0, 4))

    async def _talk(self, who: tuple[str, str], pause_seconds: float, *, times: int) -> None:
        url = f"{str(self._client.base_url).replace('http', 'ws', 1).rstrip('/')}/ws/"
        headers = {"authorization": f"Bearer {self._token_of(*who)}"}
        with contextlib.suppress(OSError, WebSocketException, TimeoutError):
            async with connect(url, additional_headers=headers, proxy=None, compression=None, close_timeout=1) as found:
                reading = asyncio.create_task(drain(found))
                await found.send(json.dumps({"type": "subscribe", "topic": "news"}))
                for _ in range(times):
                    await found.send(json.dumps({"type": "echo", "data": "hello"}))
                    await asyncio.sleep(pause_seconds)
                await found.send(json.dumps({"type": "echo", "data": "x" * TOO_LARGE}))
                await reading

    async def _visitor(self) -> None:
        """One of a crowd behind one address, which has twenty streams."""
        while True:
            await asyncio.sleep(random.uniform(0, 3))
            await self._stream("visitors", "/public/events/", None, seconds=random.uniform(8, 30))
            await asyncio.sleep(RETRY_SECONDS)

    async def _stream(
        self,
        kind: str,
        path: str,
        who: tuple[str, str] | None,
        *,
        seconds: float | None = None,
        token: str | None = None,
    ) -> None:
        """Open a stream and read it until it ends, or for some seconds; note how it went."""
        if who is not None:
            token = self._token_of(*who)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        started = asyncio.get_running_loop().time()
        try:
            async with self._client.stream("GET", path, headers=headers) as response:
                self.tally.answers[response.status_code] += 1
                if response.status_code == httpx.codes.OK:
                    self.tally.first_byte_ms.append((asyncio.get_running_loop().time() - started) * 1000)
                    await self._read(kind, response, seconds)
        except httpx.HTTPError:
            self.tally.answers[0] += 1

    async def _read(self, kind: str, response: httpx.Response, seconds: float | None) -> None:
        self.tally.open[kind] += 1
        try:
            async with asyncio.timeout(seconds):
                async for line in response.aiter_lines():
                    self.tally.evicted += line == "event: evicted"
        except TimeoutError:
            pass
        finally:
            self.tally.open[kind] -= 1


async def drain(found: ClientConnection) -> None:
    """Read what a WebSocket brings until it ends."""
    with contextlib.suppress(WebSocketException):
        async for _ in found:
            pass
