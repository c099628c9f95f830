"""What readers that stop reading cost the server and the other readers.

Measured, on each server: the growth of the server's private memory (its peak) while 10,000 events of 2 kB are
published to 100 streams whose clients never read and 10 that do; how many events those ten miss; how long after the
first event the last of the 100 has lost its slot, which includes the time until their buffers are full; what the
kernel holds for all of them at its most, which is in no process's memory; how many of their connections are still open
in the end, and how many descriptors of the server that were not before they came. Against: a third as many events to
the ten alone, on the same server, just before. How: events come 16 at a time, and the next when the ten have them, so
that their lanes never fill; the write deadline is 3 s. What a start has left free inside a process is used up first,
and does not show as growth.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from sse_limits.core.frames import event
from sse_limits.publishing import RedisPublisher

from .client import WAIT_SECONDS, open_streams, request, token
from .figures import Figure
from .servers import PATIENT, SERVERS, AsgiServer, Valkey, valkey

EVENTS = 10_000
QUICK_EVENTS = 2_000
EVENT_BYTES = 2_000
BATCH = 16
STALLED = 100
FAST = 10
RECEIVE_BUFFER = 4096
WRITE_DEADLINE_SECONDS = 3
MOST_MB = 30
MOST_KERNEL_MB = 10  # 16 KiB not sent and what the client's kernel has not taken, of each
MOST_GONE_SECONDS = WRITE_DEADLINE_SECONDS + 1
GIVE_UP_SECONDS = 10.0
GONE_SECONDS = 2.0
SAMPLE_SECONDS = 0.1
NUMBER = re.compile(rb"data: (\d+) ")
ESTABLISHED = "01"
FLEET = "sl:1:slot:{fleet}"
APP = "bench.apps.guarded:application"


def run(*, quick: bool) -> list[Figure]:
    """Measure each server in turn."""
    events = QUICK_EVENTS if quick else EVENTS
    figures: list[Figure] = []
    for name, server in SERVERS.items():
        with valkey() as store:
            env = {"SSE_LIMITS_REDIS_URL": store.url, "SSE_LIMITS_WRITE_DEADLINE_SECONDS": str(WRITE_DEADLINE_SECONDS)}
            with (
                server(APP, {**env, **PATIENT}) as running,
                closing(RedisPublisher(store.url, 5.0)) as publisher,
            ):
                figures += Run(running, store, publisher).figures(name, events)
    return figures


@dataclass(slots=True)
class Fast:
    """A stream that is read: how many events it has brought, and the number of the last."""

    connection: socket.socket
    tail: bytes = b""
    count: int = 0
    last: int = -1

    def read(self) -> None:
        """Take what there is."""
        data = self.tail + self.connection.recv(1 << 20)
        if data == self.tail:
            raise ConnectionError("the server ended a stream whose client reads")
        end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self.tail = data[end:]
        numbers = NUMBER.findall(data, 0, end)
        if numbers:
            self.count += len(numbers)
            self.last = int(numbers[-1])


class Run:
    """One server's measurement."""

    def __init__(self, server: AsgiServer, store: Valkey, publisher: RedisPublisher) -> None:
        self._server = server
        self._store = store
        self._publisher = publisher
        self._published = 0
        self._peak = 0
        self._sampled_at = 0.0
        self._gone_at: float | None = None
        self._most_unsent = 0
        payloads = [request("/events/?topic=news", token(f"fast{number}", "ample")) for number in range(FAST)]
        self._fast = {each.fileno(): Fast(each) for each in open_streams(server.address, payloads)}
        self._poller = select.epoll()
        for fd in self._fast:
            self._poller.register(fd, select.EPOLLIN)

    def figures(self, name: str, events: int) -> list[Figure]:
        """The ten alone, then with the stalled ones."""
        alone_mb, alone_seconds = self._publish(events // 3, lambda: None)
        alone = f"{alone_mb:.1f} MB, {events // 3 / alone_seconds:,.0f} events/s without them"
        descriptors = self._server.descriptors()
        stalled = self._open_stalled()
        started = time.monotonic()
        growth, seconds = self._publish(events, self._look)
        self._wait(lambda: self._gone_at is not None, self._look)
        gone = (self._gone_at or float("inf")) - started
        missing = sum(self._published - each.count for each in self._fast.values())
        still_open = sum(not is_closed(each) for each in stalled) if self._gone_at is not None else STALLED
        self._wait(lambda: self._server.descriptors() <= descriptors, lambda: None, GONE_SECONDS)
        left = max(self._server.descriptors() - descriptors, 0)
        for each in [*stalled, *(fast.connection for fast in self._fast.values())]:
            each.close()
        self._poller.close()
        with_them = f"{events / seconds:,.0f} events/s"
        return [
            Figure(f"{STALLED} stalled on {name}: growth", "MB", [growth], MOST_MB, alone),
            Figure("  missed by those who read", "", [missing], 0, with_them, digits=0),
            Figure("  the last is gone after", "s", [gone], MOST_GONE_SECONDS, f"deadline {WRITE_DEADLINE_SECONDS} s"),
            Figure("  held by the kernel", "MB", [self._most_unsent / 1e6], MOST_KERNEL_MB),
            Figure("  connections still open", "", [still_open], 0, digits=0),
            Figure("  descriptors left behind", "", [left], 0, f"{descriptors} before", digits=0),
        ]

    def _open_stalled(self) -> list[socket.socket]:
        found = []
        for number in range(STALLED):
            each = socket.socket()
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)  # before the window is agreed on
            each.settimeout(WAIT_SECONDS)
            each.connect(self._server.address)
            each.sendall(request("/events/?topic=news", token(f"stalled{number}", "ample")))
            found.append(each)
        self._wait(lambda: self._held() == FAST + STALLED, lambda: None)
        assert self._held() == FAST + STALLED, "not every stream was admitted"
        return found

    def _publish(self, events: int, look: Callable[[], None]) -> tuple[float, float]:
        """Publish at the pace of those who read; the growth at its peak in MB, and the seconds."""
        before = self._peak = self._server.private_bytes()
        started = time.monotonic()
        for first in range(0, events, BATCH):
            numbers = range(self._published, self._published + min(BATCH, events - first))
            self._publisher.publish([("news", event(f"{number} ".ljust(EVENT_BYTES, "."))) for number in numbers])
            self._published += len(numbers)
            self._wait(self._have_all, self._sample)
            look()
        seconds = time.monotonic() - started
        return (self._peak - before) / 1e6, seconds

    def _have_all(self) -> bool:
        return all(each.last == self._published - 1 for each in self._fast.values())

    def _wait(
        self, is_done: Callable[[], bool], meanwhile: Callable[[], None], seconds: float = GIVE_UP_SECONDS
    ) -> None:
        """Read until something is so, or for some seconds."""
        deadline = time.monotonic() + seconds
        while not is_done() and time.monotonic() < deadline:
            for fd, _ in self._poller.poll(0.02):
                self._fast[fd].read()
            meanwhile()

    def _look(self) -> None:
        if self._gone_at is None and self._held() <= FAST:
            self._gone_at = time.monotonic()

    def _sample(self) -> None:
        if time.monotonic() - self._sampled_at >= SAMPLE_SECONDS:
            self._peak = max(self._peak, self._server.private_bytes())
            self._most_unsent = max(self._most_unsent, unsent_bytes(self._server.address[1]))
            self._sampled_at = time.monotonic()

    def _held(self) -> int:
        return int(self._store.client.zcard(FLEET))


def is_closed(connection: socket.socket) -> bool:
    """Whether a connection ends behind what its client has left unread."""
    connection.settimeout(1)
    with suppress(ConnectionResetError):
        try:
            while connection.recv(1 << 20):
                pass
        except TimeoutError:
            return False
    return True


def unsent_bytes(port: int) -> int:
    """What the kernel holds of all connections of a port of 127.0.0.1 and has not got acknowledged."""
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == ESTABLISHED and fields[1].endswith(f":{port:04X}"):
            found += int(fields[4].partition(":")[0], 16)
    return found
