"""What a rejection costs the server, in CPU time, over keep-alive connections.

Measured: the CPU of a uvicorn process (httptools, uvloop) per answered request, from /proc/<pid>/stat, for a 401 (a
forged token; no token) and for a 429 (a valid token at a limit of user, tenant and fleet): decided by the store, in one
call each (the tier evicts, so nobody is known to be full), and of a user who is known to be full. Against: the same
server with a bare ASGI app that answers a constant 429 of the same size. How: rounds of each in turn on 16 connections;
the figure is the median of the rounds' ratios. The guarded server's database path leads nowhere, so a query would show
as a 5xx; the store's own command statistics count its calls.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from .client import flood, open_streams, request, token
from .figures import Figure
from .machine import cpu_seconds
from .servers import PATIENT, AsgiServer, Valkey, uvicorn, valkey

CONNECTIONS = 16
ROUNDS = 7
REQUESTS = 10_000
QUICK_REQUESTS = 2_000
USER_LIMIT = 5
MOST_401 = 1.4
MOST_429 = 2.8
MOST_KNOWN_FULL = 1.7
REPORTS = 0.01  # the node tells the board what it does, once a second
NOWHERE = "/nonexistent/sse-limits-bench/db.sqlite3"
# No renewal among the store calls that are counted.
UNRENEWED = {"SSE_LIMITS_LEASE_SECONDS": "3600", "SSE_LIMITS_HEARTBEAT_SECONDS": "1200"}


class Case(NamedTuple):
    """One kind of request, and what must be answered."""

    name: str
    server: AsgiServer
    payload: bytes
    status: int


class Round(NamedTuple):
    """What one round of one case cost: server CPU µs and store calls per request; and how many answers were others."""

    cpu_us: float
    store_calls: float
    others: int


def run(*, quick: bool) -> list[Figure]:
    """Measure every case in turn, and compare."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    with valkey() as store:
        env = {"SSE_LIMITS_REDIS_URL": store.url, "DATABASE_PATH": NOWHERE, **PATIENT, **UNRENEWED}
        with (
            uvicorn("bench.apps.bare:application", {}) as bare,
            uvicorn("bench.apps.guarded:application", env) as guarded,
        ):
            bearer = token("flooder", "globex")
            payload = request("/idle/", bearer)
            decided = request("/idle/", token("flooder", "busy"))
            holding = open_streams(guarded.address, [payload, decided] * USER_LIMIT)
            forged = bearer[:-4] + ("AAAA" if bearer[-4:] != "AAAA" else "BBBB")
            cases = [
                Case("static 429", bare, request("/refuse/", bearer), 429),
                Case("401 forged token", guarded, request("/idle/", forged), 401),
                Case("401 no token", guarded, request("/idle/"), 401),
                Case("429 decided by the store", guarded, decided, 429),
                Case("429 known full", guarded, payload, 429),
            ]
            rounds = measure(cases, store, requests)
            for each in holding:
                each.close()
    return figures(rounds)


def measure(cases: list[Case], store: Valkey, requests: int) -> dict[str, list[Round]]:
    """Run the cases in turn, after a warm-up of each."""
    found: dict[str, list[Round]] = {case.name: [] for case in cases}
    for case in cases:
        measure_round(case, store, requests // 4)
    for _ in range(ROUNDS):
        for case in cases:
            found[case.name].append(measure_round(case, store, requests))
    return found


def measure_round(case: Case, store: Valkey, requests: int) -> Round:
    """Flood with one case."""
    calls, cpu = store.calls("evalsha"), cpu_seconds(case.server.pid)
    statuses = flood(case.server.address, case.payload, requests, CONNECTIONS)
    cpu, calls = cpu_seconds(case.server.pid) - cpu, store.calls("evalsha") - calls
    return Round(cpu * 1e6 / requests, calls / requests, requests - statuses[case.status])


def figures(rounds: dict[str, list[Round]]) -> list[Figure]:
    """The ratios to the static answer of the same turn, and the store calls."""
    static = next(iter(rounds.values()))
    found = [Figure("a static 429, uvicorn", "us CPU", [each.cpu_us for each in static])]
    for name, own in list(rounds.items())[1:]:
        ratios = [each.cpu_us / floor.cpu_us for each, floor in zip(own, static, strict=True)]
        most = MOST_401 if name.startswith("401") else MOST_KNOWN_FULL if "known" in name else MOST_429
        floor_us, own_us = median(each.cpu_us for each in static), median(each.cpu_us for each in own)
        baseline = f"{own_us:.1f} against {floor_us:.1f} us CPU"
        found.append(Figure(f"rejection: {name}", "x static", ratios, most, baseline, digits=2))
    for name, own in list(rounds.items())[1:]:
        most_calls = (0 if name.startswith("401") else 0.1 if "known" in name else 1) + REPORTS
        found.append(Figure(f"store calls: {name}", "", [each.store_calls for each in own], most_calls, digits=3))
    others = sum(each.others for own in rounds.values() for each in own)
    found.append(Figure("rejection: answers other than expected", "", [others], 0, "a database query", digits=0))
    return found
