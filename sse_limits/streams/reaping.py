"""Taking back what provably dead nodes held, at this node's start and with each heartbeat, before their leases end.

Without proof of death nothing is touched: the lease does it. Two nodes may reap the same one at the same time: a slot
that is given back twice is given back once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sse_limits.core.slots import Held
from sse_limits.live import process
from sse_limits.live.death import Verdict, is_named, judge
from sse_limits.live.remains import Remains
from sse_limits.live.report import Sink
from sse_limits.live.rows import StreamRow
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.batches import chunked

if TYPE_CHECKING:
    from sse_limits.limiter import Limiter

log = logging.getLogger("sse_limits.streams.reaping")

RELEASED_AT_ONCE = 50


class Reaping:
    """Reaps for one node, on its event loop."""

    def __init__(self, limiter: Limiter, sink: Sink, remains: Remains) -> None:
        self._limiter = limiter
        self._sink = sink
        self._remains = remains
        self._me = process.incarnation()
        self._exclusive_name = limiter.conf.node_name if limiter.conf.node_exclusive else None
        self._out_of_sight: set[str] = set()
        self._is_promise_broken = False

    async def run(self) -> None:
        """Reap at once, then with every heartbeat."""
        while True:
            try:
                await self.reap()
            except StoreUnavailable as exc:
                log.debug("nothing was reaped: %s", exc)
            await asyncio.sleep(self._limiter.conf.heartbeat_seconds)

    async def reap(self) -> None:
        """Take back the slots of every node that is provably dead. Raises `StoreUnavailable`."""
        for node in await self._dead():
            count = await self._take_back(node)
            await self._sink.leave(node)
            log.log(logging.INFO if count else logging.DEBUG, "reaped %d slots of node %s", count, node)

    async def _dead(self) -> list[str]:
        found = await self._remains.nodes(without=self._out_of_sight | {self._limiter.node_id})
        verdicts = {
            node: judge(node, was, self._me, process.is_running, self._exclusive_name) for node, was in found.items()
        }
        self._out_of_sight |= {node for node, verdict in verdicts.items() if verdict is Verdict.UNKNOWN}
        for node, verdict in verdicts.items():
            if verdict is Verdict.ALIVE and found[node] != self._me and is_named(node, self._exclusive_name):
                self._tell_of_broken_promise(node)
        return [node for node, verdict in verdicts.items() if verdict is Verdict.DEAD]

    async def _take_back(self, node: str) -> int:
        """Give back what a dead node held, as its rows tell it and then as its name is found; returns how much."""
        count = 0
        ages: dict[str, str | None] = {keys.fleet(): None}
        async for rows in self._remains.streams(node):
            holds = [held_by(row) for row in rows]
            for held in holds:
                ages.update(dict.fromkeys(held.keys[1:]) | {held.keys[0]: held.age})
            count += await self._release(holds)
        async for key, streams in self._remains.members(list(ages), node.rpartition(":")[2]):
            count += await self._release([Held(stream, (key,), ages[key]) for stream in streams])
        return count

    async def _release(self, holds: Sequence[Held]) -> int:
        """Release some at a time, each time when those before are done: decisions go over the same connection."""
        store, journal = self._limiter.store, self._limiter.journal
        count = 0
        for part in chunked(holds, RELEASED_AT_ONCE):
            count += len(await self._remains.held([held.stream for held in part if keys.fleet() in held.keys]))
            for held in part:
                store.release(held)
            await store.usage(part[-1].keys)  # answered after them, by each server that they went to
            journal.touched.update(key for held in part for key in held.keys)
        journal.reaped += count
        return count

    def _tell_of_broken_promise(self, node: str) -> None:
        if not self._is_promise_broken:
            self._is_promise_broken = True
            log.warning(
                "NODE_EXCLUSIVE says that only one process at a time is called %s, but node %s runs too: "
                "its slots are left alone. Give each process a NODE_NAME of its own, or leave NODE_EXCLUSIVE out",
                self._exclusive_name,
                node,
            )


def held_by(row: StreamRow) -> Held:
    """All that a stream may have held, by its row; to give back what it did not hold changes nothing."""
    found = [keys.stream_class(row.tenant, row.stream_class), keys.fleet()]
    if row.tenant is not None:
        found.append(keys.tenant(row.tenant))
    if row.address is not None:
        found.append(keys.address(row.address))
    if row.user is None:
        return Held(row.id, tuple(found), None)
    return Held(row.id, (keys.user(row.tenant, row.user), *found), keys.age(row.tenant, row.user))
