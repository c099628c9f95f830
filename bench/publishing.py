"""What `publish()` costs the synchronous code that calls it, and whether everybody hears events in one order.

Measured: the time of a call with a small JSON event (p50, 2,000 calls a round). Against: a PING of redis-py over a kept
connection, in turn with the calls. How: one thread, Valkey on a Unix socket, nobody subscribed.

Order: 20 threads publish to one topic while streams on two uvicorn processes read it. A violation is an event whose id
is not above the one before it, whose data is not what that id was returned for, or that overtook an earlier one of the
same thread. Missing is what a stream never got; threads wait for the streams after each turn, so that no lane is full.

Bursts: 400 small events in one `publish_many`, several times what a lane holds, to the same streams, which all read.
"""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from socket import socket

from django.conf import settings

from sse_limits.core.frames import event
from sse_limits.publishing import RedisPublisher, publish

from .client import connect, request, token
from .figures import Figure, percentile
from .servers import PATIENT, Valkey, uvicorn, valkey

ROUNDS = 5
CALLS = 2_000
QUICK_CALLS = 500
MOST_MS = 0.3
PUBLISHERS = 20
TURNS = 100
QUICK_TURNS = 25
SUBSCRIBERS = 3  # on each of two processes
GIVE_UP_SECONDS = 10.0
BURST = 400
BURSTS = 5
EVENT = re.compile(rb"id: (\S+)\ndata: (\d+) (\d+)\n\n")
APP = "bench.apps.guarded:application"


def run(*, quick: bool) -> list[Figure]:
    """Time the calls, then check the order."""
    with valkey() as store:
        settings.configure(SSE_LIMITS={"REDIS_URL": store.url, "STORE_TIMEOUT_SECONDS": 5.0})
        return [cost(store, QUICK_CALLS if quick else CALLS), *order(store, QUICK_TURNS if quick else TURNS)]


def cost(store: Valkey, calls: int) -> Figure:
    """Call and ping in turn."""
    own, floor = [], []
    for _ in range(ROUNDS):
        delays: list[float] = []
        pings: list[float] = []
        for number in range(calls):
            started = time.perf_counter()
            publish("cost", {"number": number, "text": "something has happened"})
            between = time.perf_counter()
            store.client.ping()
            delays.append((between - started) * 1000)
            pings.append((time.perf_counter() - between) * 1000)
        own.append(percentile(delays, 0.5))
        floor.append(percentile(pings, 0.5))
    baseline = f"{percentile(floor, 0.5):.3f} ms for a PING of redis-py"
    return Figure(f"publish(): p50 of {calls:,}", "ms", own, MOST_MS, baseline, digits=3)


@dataclass(slots=True)
class Subscriber:
    """One stream, and what it has brought: id, thread, number."""

    connection: socket
    tail: bytes = b""
    events: list[tuple[bytes, int, int]] = field(default_factory=list)
    last: tuple[int, int] = (0, 0)

    def read(self) -> None:
        """Take what there is."""
        data = self.tail + self.connection.recv(1 << 18)
        end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self.tail = data[end:]
        self.events += [(found[0], int(found[1]), int(found[2])) for found in EVENT.findall(data, 0, end)]
        if self.events:
            self.last = place(self.events[-1][0])


def order(store: Valkey, turns: int) -> list[Figure]:
    """Publish from many threads at once, and compare what every stream got with what was returned."""
    env = {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}
    with uvicorn(APP, env) as one, uvicorn(APP, env) as other:
        streams = []
        for server in (one, other):
            for number in range(SUBSCRIBERS):
                connection = connect(server.address)
                connection.sendall(request("/events/?topic=order", token(f"reader{number}", "ample")))
                streams.append(Subscriber(connection))
        for stream in streams:
            while b"hello" not in stream.connection.recv(65536):
                pass
        with closing(RedisPublisher(store.url, 5.0)) as publisher:
            returned = publish_at_once(publisher, streams, turns)
            in_turn = [list(stream.events) for stream in streams]
            lost = [burst(publisher, streams) for _ in range(BURSTS)]
        for stream in streams:
            stream.connection.close()
    wrong = sum(violations(events, returned) for events in in_turn)
    missing = sum(len(returned) - len({found[0] for found in events}) for events in in_turn)
    what = f"{len(returned):,} events, {PUBLISHERS} publishers, {len(streams)} streams on 2 processes"
    return [
        Figure("order: violations", "", [wrong], 0, what, digits=0),
        Figure("order: missing", "", [missing], 0, what, digits=0),
        Figure(
            f"{BURSTS} bursts of {BURST}: missing", "", [sum(lost)], 0, f"to {len(streams)} streams that read", digits=0
        ),
    ]


def publish_at_once(
    publisher: RedisPublisher, streams: Sequence[Subscriber], turns: int
) -> dict[bytes, tuple[int, int]]:
    """Let all threads publish one event a turn, all together; returns what each id was returned for."""
    together = threading.Barrier(PUBLISHERS)
    returned: dict[bytes, tuple[int, int]] = {}

    def publish_one(thread: int, number: int) -> None:
        together.wait(GIVE_UP_SECONDS)
        [event_id] = publisher.publish([("order", event(f"{thread} {number}"))])
        returned[event_id.encode()] = (thread, number)

    with ThreadPoolExecutor(PUBLISHERS) as pool:
        for number in range(turns):
            list(pool.map(publish_one, range(PUBLISHERS), [number] * PUBLISHERS))
            read_until(max(map(place, returned)), streams)
    return returned


def burst(publisher: RedisPublisher, streams: Sequence[Subscriber]) -> int:
    """Publish many events at once; how many of them the streams have not brought, once they have the last."""
    before = sum(len(stream.events) for stream in streams)
    ids = publisher.publish([("order", event(f"0 {number}")) for number in range(BURST)])
    read_until(place(ids[-1].encode()), streams)
    return BURST * len(streams) - (sum(len(stream.events) for stream in streams) - before)


def read_until(latest: tuple[int, int], streams: Sequence[Subscriber]) -> None:
    """Read until every stream has brought an event, or for some seconds."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    with closing(select.epoll()) as poller:
        by_fd = {stream.connection.fileno(): stream for stream in streams}
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        while any(stream.last < latest for stream in streams) and time.monotonic() < deadline:
            for fd, _ in poller.poll(0.1):
                by_fd[fd].read()


def violations(events: Sequence[tuple[bytes, int, int]], returned: dict[bytes, tuple[int, int]]) -> int:
    """How many events came out of order, or under another's id."""
    found, last, latest = 0, (0, 0), dict.fromkeys(range(PUBLISHERS), -1)
    for event_id, thread, number in events:
        is_right = place(event_id) > last and returned.get(event_id) == (thread, number) and number > latest[thread]
        found += not is_right
        last, latest[thread] = place(event_id), number
    return found


def place(event_id: bytes) -> tuple[int, int]:
    """Where an id stands in the log."""
    ms, _, number = event_id.partition(b"-")
    return int(ms), int(number)
