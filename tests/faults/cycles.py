"""Users and addresses that come once and leave: whether anything of them stays in the store or in the process."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from tests.servers.client import Stream, request_bytes, until
from tests.servers.harness import ServerProcess

from .conftest import HEARTBEAT_SECONDS, Start
from .kinds import Site
from .load import LEASE_SECONDS, Load

AT_ONCE = 20
# One key each some seconds, whoever comes: they say when, and go with their age.
BY_TIME = re.compile(r"sl:1:(history|rejected|decisions)")


@dataclass(frozen=True)
class Footprint:
    """What one node takes, and what it keeps in the store."""

    keys: int
    descriptors: int
    tasks: int
    resident_bytes: int

    @classmethod
    async def of(cls, node: ServerProcess, site: Site) -> Footprint:
        """Measure it."""
        keys = [key for key in site.store.client.scan_iter("*", count=1000) if not BY_TIME.match(key)]
        answer = await Stream.open(node, request_bytes("GET", "/tasks/", [("Connection", "close")]))
        await answer.head()
        tasks = int(await answer.rest())
        await answer.closed()
        found = Path(f"/proc/{node.pid}")
        resident = re.search(r"VmRSS:\s+(\d+) kB", (found / "status").read_text())
        return cls(len(keys), len(list((found / "fd").iterdir())), tasks, int(resident[1]) * 1024)

    def is_back_at(self, before: Footprint) -> bool:
        """Whether it takes no more than before, memory aside."""
        return all(getattr(self, name) <= getattr(before, name) for name in ("keys", "descriptors", "tasks"))


async def come_and_go(site: Site, start: Start, warm_up: int, number: int) -> tuple[Footprint, Footprint]:
    """Have so many users open one stream and leave, after some others; returns what the node took before and after."""
    site.first.client.flushall()
    node = start(SSE_LIMITS_TRUSTED_PROXIES="127.0.0.1")
    load = Load([node])

    async def visit(user: int) -> None:
        address = f"10.{user >> 16}.{user >> 8 & 255}.{user & 255}"
        found = await load.connect(f"once{user}", tenant="addressed", headers=[("X-Forwarded-For", address)])
        assert found is not None, load.faults
        await found.close()

    async def visits(first: int, last: int) -> None:
        for begin in range(first, last, AT_ONCE):
            await asyncio.gather(*map(visit, range(begin, min(begin + AT_ONCE, last))))
            load.opened.clear()
            load.history.attempts.clear()
        await load.until_right(site.store, 1)

    await visits(0, warm_up)
    await settled(node, site)
    before = await Footprint.of(node, site)
    await visits(warm_up, warm_up + number)
    after = before

    async def is_back() -> bool:
        nonlocal after
        after = await Footprint.of(node, site)
        return after.is_back_at(before)

    await until(is_back, LEASE_SECONDS + 1)
    return before, after


async def settled(node: ServerProcess, site: Site) -> None:
    """Wait until a node that holds nothing takes the same for a heartbeat."""
    last = None
    async with asyncio.timeout(10 * LEASE_SECONDS):
        while True:
            found = await Footprint.of(node, site)
            counts = (found.keys, found.descriptors, found.tasks)
            if counts == last:
                return
            last = counts
            await asyncio.sleep(HEARTBEAT_SECONDS)
