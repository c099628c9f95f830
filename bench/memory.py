"""What an idle stream costs in memory behind the guard, above what it costs the server alone.

Measured: the private memory of a uvicorn process per open stream, after a garbage collection, from
/proc/<pid>/smaps_rollup: a raw ASGI stream; the same app behind `StreamGuard`; an `EventStreamConsumer` routed as in
the demo. Every stream is another user's, with a token. Against: the first of the three. How: fresh processes in each
round, each warmed up with streams that are closed again; the second half of the streams counts, since the first fills
what the start has left free. What the kernel holds for a socket is not in it.
"""

from __future__ import annotations

import time
from functools import cache
from typing import NamedTuple

from .client import get, open_streams, request, token
from .figures import Figure
from .machine import private_bytes
from .servers import PATIENT, AsgiServer, uvicorn, valkey

ROUNDS = 5
STREAMS = 4_000
QUICK_STREAMS = 2_000
WARM_UP = 200
SETTLE_SECONDS = 1.0
MOST_RAW_KB = 6.0
MOST_CONSUMER_KB = 9.0


class Kind(NamedTuple):
    """A way to serve an idle stream."""

    name: str
    app: str
    path: str
    most_kb: float | None


KINDS = (
    Kind("a raw stream, no guard", "bench.apps.bare:application", "/idle/", None),
    Kind("a raw stream behind the guard", "bench.apps.guarded:application", "/idle/", MOST_RAW_KB),
    Kind("EventStreamConsumer", "bench.apps.guarded:application", "/events/", MOST_CONSUMER_KB),
)


def run(*, quick: bool) -> list[Figure]:
    """Measure every kind in turn, in fresh processes."""
    streams = QUICK_STREAMS if quick else STREAMS
    found: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind in KINDS:
            with valkey() as store, uvicorn(kind.app, {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}) as server:
                found[kind].append(kb_per_stream(server, kind.path, streams))
    floor, *guarded = found.items()
    figures = [Figure(f"memory: {floor[0].name}", "kB", floor[1])]
    for kind, own in guarded:
        above = [each - bare for each, bare in zip(own, floor[1], strict=True)]
        baseline = f"above {figures[0].median:.1f} kB without it, {streams:,} streams"
        figures.append(Figure(f"memory: {kind.name}", "kB", above, kind.most_kb, baseline))
    return figures


def kb_per_stream(server: AsgiServer, path: str, streams: int) -> float:
    """The private memory that each further stream adds to a process, in kB.

    The first half of the streams is not measured: it uses up what the start has left free inside the process.
    """
    for each in open_streams(server.address, payloads(path, WARM_UP)):
        each.close()
    asked = payloads(path, streams)
    opened = open_streams(server.address, asked[: streams // 2])
    before = settled(server)
    opened += open_streams(server.address, asked[streams // 2 :])
    after = settled(server)
    for each in opened:
        each.close()
    return (after - before) / (streams - streams // 2) / 1000


@cache
def payloads(path: str, streams: int) -> list[bytes]:
    """A request for each stream, every one with another user's token."""
    return [request(path, token(f"user{number}", "ample")) for number in range(streams)]


def settled(server: AsgiServer) -> int:
    """The private bytes of a process once it has nothing to do and nothing to collect."""
    time.sleep(SETTLE_SECONDS)
    get(server.address, "/collect/")
    return private_bytes(server.pid)
