"""Whether a limit is exact when everybody comes at once, over several server processes.

Measured: violations. In each round 200 requests of one user (limit 5) are sent at the same moment over connections that
are open already, 50 to each of 4 uvicorn processes. Exactly 5 must be admitted and 195 get 429; the slot sets of user,
tenant, address and fleet and the age hash must hold those 5 stream ids and nothing else may be in the store; after
closing, nothing at all before the next round. The store's time-out is raised: 503s of a busy machine are not the point.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from http import HTTPStatus

from .client import answers, connect, request, status, token
from .figures import Figure
from .servers import PATIENT, AsgiServer, Valkey, uvicorn, valkey

PROCESSES = 4
ATTEMPTS = 200
USER_LIMIT = 5
ROUNDS = 200
QUICK_ROUNDS = 20
EMPTY_SECONDS = 5.0
USER, TENANT = "crowd", "counted"
SETS = {
    f"sl:1:slot:{{t:{TENANT}}}:user:{USER}",
    f"sl:1:slot:{{t:{TENANT}}}:tenant",
    "sl:1:slot:{a:127.0.0.1}:address",
    "sl:1:slot:{fleet}",
}
AGE = f"sl:1:age:{{t:{TENANT}}}:user:{USER}"
_ID = re.compile(rb"data: (\S+)\n")


def run(*, quick: bool) -> list[Figure]:
    """Run the rounds and count what went wrong."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    violations: Counter[str] = Counter()
    took: list[float] = []
    with valkey() as store, ExitStack() as running:
        env = {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}
        start = [uvicorn("bench.apps.guarded:application", env, core=None) for _ in range(PROCESSES)]
        servers = [running.enter_context(each) for each in start]
        for _ in range(rounds):
            took.append(storm(servers, store, violations))
    found = ", ".join(f"{name}: {count}" for name, count in violations.items()) or "none"
    name = f"exactness: violations in {rounds} x {ATTEMPTS} attempts"
    seconds = Figure("exactness: a round until all are answered", "ms", took, digits=0)
    return [Figure(name, "", [violations.total()], 0, found, digits=0), seconds]


def storm(servers: Sequence[AsgiServer], store: Valkey, violations: Counter[str]) -> float:
    """One round; returns how long the answers took, in ms."""
    payload = request("/ends/wait/", token(USER, TENANT))
    sockets = [connect(servers[number % PROCESSES].address) for number in range(ATTEMPTS)]
    started = time.perf_counter()
    for each in sockets:
        each.sendall(payload)
    answered = answers(sockets)
    took = (time.perf_counter() - started) * 1000
    check_answers(answered, violations)
    admitted = {found[1].decode() for answer in answered if (found := _ID.search(answer))}
    check_store(store, admitted, violations)
    for each in sockets:
        each.close()
    if not is_empty(store):
        violations["slots left after closing"] += 1
        store.client.flushall()
    return took


def check_answers(answered: Sequence[bytes], violations: Counter[str]) -> None:
    """Exactly as many are admitted as there are slots, and all others get 429."""
    statuses = Counter(status(answer) for answer in answered)
    if statuses != {HTTPStatus.OK: USER_LIMIT, HTTPStatus.TOO_MANY_REQUESTS: ATTEMPTS - USER_LIMIT}:
        violations[f"answers {dict(statuses)}"] += 1


def check_store(store: Valkey, admitted: set[str], violations: Counter[str]) -> None:
    """The store holds the admitted streams in every scope, and nothing of anybody else."""
    client = store.client
    if set(client.keys("*")) != {*SETS, AGE}:
        violations["other keys than those of the scopes"] += 1
    for key in SETS:
        if set(client.zrange(key, 0, -1)) != admitted:
            violations[f"{key} holds other streams than the admitted"] += 1
    if set(client.hkeys(AGE)) != admitted:
        violations["the age hash holds other streams than the admitted"] += 1


def is_empty(store: Valkey) -> bool:
    """Wait until nothing is left; False when something stays."""
    deadline = time.monotonic() + EMPTY_SECONDS
    while store.client.dbsize():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
