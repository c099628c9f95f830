"""Nodes that die, freeze, or have clocks that are wrong: the slots are right again, by themselves."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shutil
import signal
import subprocess
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sse_limits.slots import keys
from tests.conftest import missing
from tests.servers.client import until
from tests.servers.harness import ServerProcess

from .conftest import HEARTBEAT_SECONDS, Nodes, Start
from .kinds import Site
from .load import LEASE_SECONDS, Load, Opened, now
from .room import told
from .settings import TENANT, USER_LIMIT

DOOMED = 200
AT_ONCE = 20
SHIFT_SECONDS = 120


async def open_on(load: Load, node: ServerProcess, users: list[str]) -> list[Opened]:
    """Five streams of each user on one node."""
    wanted = [user for user in users for _ in range(USER_LIMIT)]
    found: list[Opened | None] = []
    for start in range(0, len(wanted), AT_ONCE):
        found += await asyncio.gather(*(load.connect(user, node) for user in wanted[start : start + AT_ONCE]))
    assert all(found), load.statuses
    return [each for each in found if each is not None]


async def killed(load: Load, nodes: Nodes, site: Site, victim: ServerProcess, operator: str, users: list[str]) -> None:
    """Kill a node that holds 200 streams. Nobody acquires; a lease and a second later everybody tells the truth."""
    doomed = await open_on(load, victim, users)
    kept = sum(each.is_open for each in load.opened) - len(doomed)
    assert site.store.in_use()[keys.fleet()] == kept + len(doomed)
    site.store.hide(victim.pid)  # else its death is proved, and its slots are taken back with the next heartbeat
    died_at = now()
    victim.kill()
    right_at = died_at + LEASE_SECONDS + 1
    for each in doomed:
        each.attempt.leaving_at, each.attempt.free_by = died_at, right_at
    await asyncio.sleep(right_at - now())
    found = {server.address: await told(server, operator) for server in nodes.servers}
    right = {
        **dict.fromkeys(("api", "api users", "admin", "metrics", "metrics tenants"), kept),
        **dict.fromkeys(("api nodes", "metrics nodes"), len(nodes.servers)),
    }
    assert found == dict.fromkeys(found, right)
    await load.until_right(site.store, 0.5)


async def test_what_a_killed_node_held_is_free_everywhere_with_its_lease(
    nodes: Nodes, site: Site, load: Load, start: Start, operator: str
) -> None:
    await load.fill(["survivor"])
    await killed(load, nodes, site, start(), operator, [f"doomed{number}" for number in range(DOOMED // USER_LIMIT)])
    assert await load.connect("doomed0") is not None
    assert nodes.said() == [[], []]
    assert load.history.report() == ""


async def test_a_node_that_was_frozen_gives_up_what_others_have_taken_meanwhile(
    nodes: Nodes, site: Site, load: Load, start: Start
) -> None:
    """Its streams whose place is taken end with a reason; the others get their slots back through the gate."""
    frozen = start()
    taken = await open_on(load, frozen, ["taken"])
    free = await open_on(load, frozen, ["free"])
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        await until(lambda: site.store.in_use() == {}, LEASE_SECONDS + 1)
        await load.fill(["taken"])
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    await load.until_right(site.store, 2 * HEARTBEAT_SECONDS)
    assert [each.ended for each in taken] == ["hello lease_lost"] * USER_LIMIT
    assert all(each.is_open for each in free)
    found = site.store.in_use()
    assert (found[keys.user(TENANT, "taken")], found[keys.user(TENANT, "free")]) == (USER_LIMIT, USER_LIMIT)
    assert await load.connect("taken") is None
    assert await load.connect("free") is None


# -- clocks ----------------------------------------------------------------------------------------------------------


@functools.cache
def faketime() -> str:
    """The library that shifts a process's clock."""
    program = shutil.which("faketime")
    if program is None:
        missing("faketime (Debian faketime)")
    found = subprocess.run([program, "-f", "+0", "env"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^LD_PRELOAD=(.+)$", found, re.MULTILINE)[1]


def shifted(start: Start, *seconds: int) -> list[ServerProcess]:
    """Nodes whose clocks are wrong; how time passes is right."""
    clock = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "LD_PRELOAD": faketime()}
    found = [start(ready=False, FAKETIME=f"{each:+d}s", **clock) for each in seconds]
    for node in found:
        node.wait_until_ready()
    return found


def shift(stream: Opened) -> float:
    """How far the clock of a stream's node is from ours, in seconds."""
    return (parsedate_to_datetime(stream.stream.headers["date"]) - datetime.now(UTC)).total_seconds()


async def test_clocks_that_are_wrong_change_nothing(nodes: Nodes, site: Site, start: Start) -> None:
    """B28: the store's clock alone counts, for deadlines as for ages."""
    slow, fast = shifted(start, -SHIFT_SECONDS, SHIFT_SECONDS)
    load = Load([slow, fast])
    try:
        streams = await open_on(load, slow, ["u1"])
        for node in (fast, slow, fast):
            assert await load.connect("u1", node) is None, "exactly five"
        oldest = [await load.connect("u2", node, "evicting") for node in (slow, fast, slow, fast, slow)]
        assert [round(shift(each), -1) for each in oldest[:2]] == [-SHIFT_SECONDS, SHIFT_SECONDS]
        ends = time.monotonic() + LEASE_SECONDS + HEARTBEAT_SECONDS
        while time.monotonic() < ends:
            assert site.store.in_use() == load.expected(), "nothing is purged early"
            await asyncio.sleep(0.1)
        for number, node in enumerate((fast, slow)):
            assert await load.connect("u2", node, "evicting") is not None
            await until(lambda at=number: not oldest[at].is_open)
            assert [each.is_open for each in oldest] == [False] * (number + 1) + [True] * (4 - number)
        assert all(each.is_open for each in streams)
        await load.until_right(site.store, 1)
    finally:
        await load.aclose()
