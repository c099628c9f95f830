"""What the live room costs those who open streams, and its viewers.

Measured: the time from a connect to its answer (median and p99 of many connects a second, each of another user), with
5,000 streams open, first without a viewer and then with ten on the overview, in the same run and on the same server;
what a viewer gets a second; how long the first paint takes to come; and what the store was asked: slow commands, KEYS,
and snapshots a second. How: the viewers are logged-in operators with an event stream each, read by one loop.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from .client import Address, connect, open_streams, request, status, token
from .figures import Figure, percentile
from .servers import PATIENT, ROOT, SECRET_KEY, AsgiServer, uvicorn, valkey

ROUNDS = 3
STREAMS = 5_000
QUICK_STREAMS = 300
VIEWERS = 10
CONNECTS_A_SECOND = 200
QUICK_CONNECTS_A_SECOND = 50
ROUND_SECONDS = 10.0
MOST_TIMES = 2.0
MOST_KB = 60.0
MOST_PAINT_MS = 500.0
SLOW_MICROSECONDS = 10_000
WARM_UP_SECONDS = 3.0
SETTINGS = "bench.settings"
PAGE = "/admin/sse_limits/liveroom/overview/"


def run(*, quick: bool) -> list[Figure]:
    """Run the rounds: without viewers, with them, in turns."""
    streams = QUICK_STREAMS if quick else STREAMS
    rate = QUICK_CONNECTS_A_SECOND if quick else CONNECTS_A_SECOND
    alone, watched, kilobytes = [], [], []
    with database() as (env, session), valkey() as store:
        env |= {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}
        with uvicorn("project.asgi:application", env) as server, held(server, streams):
            paints = [paint_ms(server.address, session) for _ in range(5)]
            store.client.config_set("slowlog-log-slower-than", SLOW_MICROSECONDS)
            store.client.slowlog_reset()
            for _ in range(1 if quick else ROUNDS):
                alone.append(connects(server.address, rate, []))
                with viewers(server.address, session) as screens:
                    watched.append(connects(server.address, rate, screens))
                    kilobytes.append(sum(screen.taken for screen in screens) / VIEWERS / ROUND_SECONDS / 1000)
            slow = store.client.slowlog_len()
            keys = store.calls("keys")
    times = [
        percentile(with_them, 0.99) / percentile(without, 0.99)
        for without, with_them in zip(alone, watched, strict=True)
    ]
    without = f"{median(percentile(found, 0.99) for found in alone):.1f} ms without viewers"
    return [
        Figure(f"room: connect p99 with {VIEWERS} viewers, against none", "x", times, MOST_TIMES, without),
        Figure("room: what a viewer gets a second", "kB", kilobytes, MOST_KB),
        Figure("room: first paint of the overview, to its last byte", "ms", paints, MOST_PAINT_MS),
        Figure("room: store commands of 10 ms and more", "", [slow], 0, digits=0),
        Figure("room: KEYS", "", [keys], 0, digits=0),
    ]


class Screen:
    """One viewer's event stream."""

    def __init__(self, address: Address, session: str) -> None:
        self.connection = connect(address)
        self.connection.sendall(request(f"{PAGE}events/", None, f"Cookie: sessionid={session}"))
        self.connection.setblocking(False)  # noqa: FBT003 - a positional argument by its standard
        self.taken = 0

    def read(self) -> None:
        """Take what has come."""
        self.taken += len(self.connection.recv(1 << 20))


@contextmanager
def viewers(address: Address, session: str) -> Iterator[list[Screen]]:
    """Open the viewers' streams, and let the first pages pass."""
    screens = [Screen(address, session) for _ in range(VIEWERS)]
    ends_at = time.monotonic() + WARM_UP_SECONDS
    with selectors.DefaultSelector() as watching:
        for screen in screens:
            watching.register(screen.connection, selectors.EVENT_READ, screen)
        while time.monotonic() < ends_at:
            for key, _ in watching.select(0.1):
                key.data.read()
    assert all(screen.taken for screen in screens), "a viewer got nothing"
    for screen in screens:
        screen.taken = 0
    yield screens
    for screen in screens:
        screen.connection.close()


@contextmanager
def held(server: AsgiServer, streams: int) -> Iterator[None]:
    """Keep streams open, three a user."""
    payloads = [request("/events/?topic=quiet", token(f"holder{number // 3}", "ample")) for number in range(streams)]
    found = open_streams(server.address, payloads)
    yield
    for connection in found:
        connection.close()


def connects(address: Address, rate: int, screens: Sequence[Screen]) -> list[float]:
    """Open streams at a steady rate, each closed at its answer; how long the answers took, in ms."""
    took: list[float] = []
    count = round(rate * ROUND_SECONDS)
    started = time.monotonic()
    begun = 0
    with selectors.DefaultSelector() as watching:
        for screen in screens:
            watching.register(screen.connection, selectors.EVENT_READ, screen)
        while len(took) < count:
            if begun < count and time.monotonic() >= started + begun / rate:
                opened = connect(address)
                opened.sendall(request("/events/?topic=quiet", token(f"visitor{begun}", "ample")))
                watching.register(opened, selectors.EVENT_READ, time.perf_counter())
                begun += 1
            for key, _ in watching.select(1 / rate / 2):
                if isinstance(key.data, Screen):
                    key.data.read()
                elif isinstance(key.fileobj, socket.socket):
                    watching.unregister(key.fileobj)
                    took.append(answered_ms(key.fileobj, key.data))
    return took


def answered_ms(connection: socket.socket, since: float) -> float:
    """How long the answer that has come has taken; closes the connection."""
    ms = (time.perf_counter() - since) * 1000
    with connection:
        answer = connection.recv(4096)
    assert status(answer) == 200, answer
    return ms


def paint_ms(address: Address, session: str) -> float:
    """How long the page takes, from the connect to its last byte."""
    started = time.perf_counter()
    with closing(connect(address)) as found:
        found.sendall(request(PAGE, None, f"Cookie: sessionid={session}", "Connection: close"))
        data = b""
        while piece := found.recv(1 << 16):
            data += piece
    assert b"Live room" in data, data[:500]
    return (time.perf_counter() - started) * 1000


@contextmanager
def database() -> Iterator[tuple[dict[str, str], str]]:
    """A migrated SQLite file with an operator who is logged in: the servers' environment, and the session's key."""
    with tempfile.TemporaryDirectory(prefix="sl-room-") as directory:
        env = {"DATABASE_PATH": str(Path(directory) / "db.sqlite3"), "DJANGO_SETTINGS_MODULE": SETTINGS}
        environ = {**os.environ, **env, "SECRET_KEY": SECRET_KEY}
        made = subprocess.run(
            [sys.executable, "-m", "bench.apps.operator"],
            cwd=ROOT,
            env=environ,
            check=True,
            capture_output=True,
            text=True,
        )
        yield env, made.stdout.split()[-1]
