"""How soon a slot is free after its stream has ended, in whatever way.

Measured: the time from the end (the client's close, or the app's own word just before it fails or is cancelled) to the
removal of the slot in the store, for mixed ends on uvicorn and on stock daphne: FIN, RST, a client that leaves a busy
app, one that leaves before the answer or before the WebSocket is accepted, an exception, a cancellation. Against: the
time the same client needs to notice a removal of its own. How: every stream is another user's, so the store's keyspace
events name it; the client reads them in the loop that closes the connections, and what it is late itself is included.
Nothing may be left to the lease.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median

import hiredis

from .client import Address, connect, request, token
from .figures import Figure, percentile
from .servers import PATIENT, Valkey, daphne, uvicorn, valkey

ROUNDS = 5
ENDS = 1_000
QUICK_ENDS = 210
AT_ONCE = 20
MOST_P99_MS = 100
GIVE_UP_SECONDS = 5.0
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
# name: path, what makes the client leave ("event": the stream's first event, "slot": its slot is held; None: the app
# ends by itself), whether by RST, further headers
KINDS: dict[str, tuple[str, str | None, bool, tuple[str, ...]]] = {
    "FIN": ("/ends/wait/", "event", False, ()),
    "RST": ("/ends/wait/", "event", True, ()),
    "busy app": ("/ends/busy/", "event", False, ()),
    "before the answer": ("/ends/late/", "slot", False, ()),
    "before the accept": ("/ends/late/", "slot", True, UPGRADE),
    "exception": ("/ends/fail/", None, False, ()),
    "cancelled": ("/ends/cancel/", None, False, ()),
}


@dataclass(slots=True)
class Stream:
    """One stream on its way: `ended_at` and `freed_at` in ns, None until known."""

    kind: str
    connection: socket.socket
    data: bytes = b""
    ended_at: int | None = None
    freed_at: int | None = None


@dataclass(slots=True)
class Results:
    """The delays of one round in ms, by kind, and how many slots were not freed in time."""

    delays: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    left: int = 0

    def p99(self, kind: str | None = None) -> float:
        """The 99th percentile of one kind, or of all."""
        return percentile([ms for name, found in self.delays.items() if kind in (None, name) for ms in found], 0.99)


def run(*, quick: bool) -> list[Figure]:
    """Run the rounds on each server."""
    figures: list[Figure] = []
    for name, server in (("uvicorn", uvicorn), ("daphne", daphne)):
        with valkey() as store:
            store.client.config_set("notify-keyspace-events", "Kz")
            with (
                server("bench.apps.guarded:application", {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}) as running,
                closing(Watcher(store)) as watcher,
            ):
                floor = watcher.floor_ms()
                rounds = [
                    Round(running.address, watcher, f"{name}{number}").run(QUICK_ENDS if quick else ENDS)
                    for number in range(ROUNDS)
                ]
                figures += summary(name, rounds, floor, int(store.client.zcard("sl:1:slot:{fleet}")))
    return figures


def summary(name: str, rounds: list[Results], floor: float, held: int) -> list[Figure]:
    """The figures of one server; without targets those of each kind."""
    baseline = f"{floor:.2f} ms for a removal of our own"
    ends = sum(len(found) for each in rounds for found in each.delays.values())
    figures = [Figure(f"ends on {name}: p99", "ms", [each.p99() for each in rounds], MOST_P99_MS, baseline)]
    left = sum(each.left for each in rounds) + held
    figures.append(Figure(f"ends on {name}: left to the lease of {ends:,}", "", [left], 0, digits=0))
    for kind in KINDS:
        middle = median(ms for each in rounds for ms in each.delays[kind])
        samples = [each.p99(kind) for each in rounds]
        figures.append(Figure(f"  {name}, {kind}: p99", "ms", samples, baseline=f"median {middle:.1f} ms"))
    return figures


class Watcher:
    """Keyspace events of users' slot sets, from a socket that the round's loop can wait for."""

    def __init__(self, store: Valkey) -> None:
        self._store = store
        self._parser = hiredis.Reader()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(store.socket))
        self.socket.sendall(b"PSUBSCRIBE __keyspace@0__:sl:1:slot:*:user:*\r\n")
        self.socket.settimeout(GIVE_UP_SECONDS)
        list(self.read())

    def read(self) -> Iterator[tuple[str, str]]:
        """What has come since the last call: user and event (`zadd`, `zrem`)."""
        self._parser.feed(self.socket.recv(1 << 20))
        while (message := self._parser.gets()) is not False:
            if message[0] == b"pmessage":
                yield message[2].rpartition(b":")[2].decode(), message[3].decode()

    def floor_ms(self) -> float:
        """How late a removal is seen that this client asks for itself (p99 of 200)."""
        delays = []
        for _ in range(200):
            self._store.client.zadd("sl:1:slot:{t:x}:user:x", {"x": 1})
            self.expect("zadd")
            started = time.time_ns()
            self._store.client.zrem("sl:1:slot:{t:x}:user:x", "x")
            self.expect("zrem")
            delays.append((time.time_ns() - started) / 1e6)
        return percentile(delays, 0.99)

    def expect(self, event: str) -> None:
        """Wait for an event of any key."""
        while all(found != event for _, found in self.read()):
            pass

    def close(self) -> None:
        """Stop watching."""
        self.socket.close()


class Round:
    """Some streams at a time, opened and ended until all are through."""

    def __init__(self, address: Address, watcher: Watcher, name: str) -> None:
        self._address = address
        self._watcher = watcher
        self._name = name
        self._results = Results()
        self._streams: dict[str, Stream] = {}
        self._users: dict[int, str] = {}
        self._poller = select.epoll()
        self._poller.register(watcher.socket.fileno(), select.EPOLLIN)

    def run(self, ends: int) -> Results:
        """Go through `ends` streams of every kind, mixed."""
        kinds = list(islice(cycle(KINDS), ends))
        random.shuffle(kinds)
        last = time.monotonic()
        while kinds or self._streams:
            while kinds and len(self._streams) < AT_ONCE:
                self._open(kinds.pop(), len(kinds))
            before = len(self._streams)
            for fd, _ in self._poller.poll(0.1):
                self._ready(fd)
            if len(self._streams) < before:
                last = time.monotonic()
            elif time.monotonic() - last > GIVE_UP_SECONDS:
                self._give_up()
        self._poller.close()
        return self._results

    def _open(self, kind: str, number: int) -> None:
        path, _, _, headers = KINDS[kind]
        user = f"{self._name}-{number}"
        connection = connect(self._address)
        self._streams[user] = Stream(kind, connection)
        self._users[connection.fileno()] = user
        self._poller.register(connection.fileno(), select.EPOLLIN)
        connection.sendall(request(path, token(user, "ample"), *headers))

    def _ready(self, fd: int) -> None:
        if fd == self._watcher.socket.fileno():
            now = time.time_ns()
            for user, event in self._watcher.read():
                if user in self._streams:
                    self._seen(user, event, now)
        elif fd in self._users:
            user = self._users[fd]
            self._heard(user, self._streams[user])

    def _seen(self, user: str, event: str, now: int) -> None:
        stream = self._streams[user]
        if event == "zrem":
            stream.freed_at = now
            self._finish(user, stream)
        elif KINDS[stream.kind][1] == "slot":
            self._leave(user, stream)

    def _heard(self, user: str, stream: Stream) -> None:
        got = stream.connection.recv(65536)
        stream.data += got
        body = stream.data.partition(b"\r\n\r\n")[2]
        if b"\n\n" in body and stream.ended_at is None:
            if KINDS[stream.kind][1] == "event":
                self._leave(user, stream)
            else:
                stream.ended_at = int(body.partition(b"data: ")[2].split(b"\n", 1)[0])
                self._finish(user, stream)
        elif not got:  # the server has closed: nothing more to hear
            self._poller.unregister(stream.connection.fileno())
            del self._users[stream.connection.fileno()]

    def _leave(self, user: str, stream: Stream) -> None:
        if KINDS[stream.kind][2]:
            stream.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.ended_at = time.time_ns()
        self._hang_up(stream)

    def _finish(self, user: str, stream: Stream) -> None:
        if stream.ended_at is not None and stream.freed_at is not None:
            self._results.delays[stream.kind].append((stream.freed_at - stream.ended_at) / 1e6)
            self._hang_up(stream)
            del self._streams[user]

    def _hang_up(self, stream: Stream) -> None:
        self._users.pop(stream.connection.fileno(), None)
        stream.connection.close()  # epoll forgets a closed descriptor by itself

    def _give_up(self) -> None:
        self._results.left += len(self._streams)
        for stream in self._streams.values():
            self._hang_up(stream)
        self._streams.clear()
