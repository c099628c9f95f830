"""What clients notice of a slot store that fails, in twelve ways.

Measured, for each kind of fault: how long an answer takes at the client (p99 of all connects before, during and after
it), and how long after its end the store counts the open streams again. Over all kinds: answers other than 200 and 429,
open streams that broke, the longest silence of a stream (its keepalive comes each second), violations that the history
checker finds. How: the clients, faults and checker of `tests/faults/`; two uvicorn processes, 50 open event streams, 20
connects a second, lease 3 s, heartbeat 1 s, policy `local`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sse_limits.slots.embedded import find_server
from tests.faults.course import go_through
from tests.faults.kinds import KINDS, Site
from tests.faults.load import Load
from tests.faults.proxy import Proxy
from tests.servers.harness import NOWHERE, ServerProcess
from tests.servers.slots import Store

from .client import token
from .figures import Figure, percentile
from .servers import SECRET_KEY

SECONDS = 10.0
QUICK_SECONDS = 3.0
HEARTBEAT_SECONDS = 1.0
PATIENCE_SECONDS = 30.0
MOST_MS = 400
MOST_RECOVERY_SECONDS = HEARTBEAT_SECONDS + 1
ENVIRONMENT = {
    "SECRET_KEY": SECRET_KEY,
    "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
    "DATABASE_PATH": NOWHERE,
    "SSE_LIMITS_LEASE_SECONDS": "3",
    "SSE_LIMITS_HEARTBEAT_SECONDS": f"{HEARTBEAT_SECONDS:g}",
    "SSE_LIMITS_KEEPALIVE_SECONDS": "1",
    "SSE_LIMITS_STORE_TIMEOUT_SECONDS": "0.25",
}
ANY_LINE = ""  # what the nodes log is for the tests to judge


@dataclass(frozen=True, slots=True)
class Course:
    """What came of one kind of fault."""

    answers_ms: Sequence[float]
    recovery_seconds: float
    refusals: int
    broken: int
    silence_seconds: float
    violations: Sequence[str]


def run(*, quick: bool) -> list[Figure]:
    """Go through every kind."""
    seconds = QUICK_SECONDS if quick else SECONDS
    courses = {name: asyncio.run(course(name, seconds)) for name in KINDS}
    figures: list[Figure] = []
    for name, each in courses.items():
        p99 = percentile(each.answers_ms, 0.99)
        longest = f"longest {max(each.answers_ms):.0f} ms of {len(each.answers_ms)}"
        figures += [
            Figure(f"fault {name}: answers, p99", "ms", [p99], MOST_MS, longest, digits=0),
            Figure("  right again after", "s", [each.recovery_seconds], MOST_RECOVERY_SECONDS),
        ]
    found = courses.values()
    late = sum(ms > 1000 for each in found for ms in each.answers_ms)
    violations = [text for each in found for text in each.violations]
    return [
        *figures,
        Figure("faults: answers longer than 1 s", "", [late], 0, digits=0),
        Figure("faults: answers other than 200 and 429", "", [sum(each.refusals for each in found)], 0, digits=0),
        Figure("faults: open streams broken", "", [sum(each.broken for each in found)], 0, digits=0),
        Figure("faults: longest silence of a stream", "s", [max(each.silence_seconds for each in found)], 2),
        Figure(
            "faults: violations of the limits", "", [len(violations)], 0, violations[0] if violations else "", digits=0
        ),
    ]


async def course(name: str, seconds: float) -> Course:
    """Two nodes and a store of their own, and one fault."""
    with ExitStack() as stack:
        store = Store("valkey", str(find_server()))
        stack.callback(store.end)
        proxy = stack.enter_context(Proxy(store.socket))
        site = Site(store, proxy)
        stack.callback(site.heal)
        env = {**ENVIRONMENT, "SSE_LIMITS_REDIS_URL": proxy.url}
        nodes = [ServerProcess("uvicorn", env) for _ in range(2)]
        for node in nodes:
            stack.callback(node.stop)
            node.expect(ANY_LINE)
        for node in nodes:
            node.wait_until_ready()
        await asyncio.sleep(2 * HEARTBEAT_SECONDS)  # each counts the nodes with its heartbeat, and its share follows
        load = Load(nodes, mint=token)
        took = await go_through(site, load, KINDS[name], seconds, PATIENCE_SECONDS)
        found = Course(
            [each * 1000 for each in load.answers],
            took,
            sum(count for status, count in load.statuses.items() if status not in (200, 429)),
            len(load.broken()),
            max(each.longest_silence for each in load.opened),
            [f"{name}: {each}" for each in load.history.violations()],
        )
        await load.aclose()
    return found
