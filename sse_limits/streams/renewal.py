"""The heartbeat of a node: it renews the leases of its streams, and looks what became of those that are lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from sse_limits.core.rejections import Reason, Reject
from sse_limits.slots.base import StoreUnavailable

from .running import RunningStream

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("sse_limits.streams.renewal")

READMIT_AT_ONCE = 100


class Renewal:
    """Renews a node's leases. One per node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def run(self) -> None:
        """Look for the store, then renew with every heartbeat."""
        limiter = self._node.limiter
        await limiter.greet()
        while True:
            await asyncio.sleep(limiter.conf.heartbeat_seconds)
            try:
                await self._renew()
            except StoreUnavailable as exc:
                log.debug("leases were not renewed: %s", exc)

    async def _renew(self) -> None:
        """Renew every lease. A lost one that nobody ordered to end goes through the gate again."""
        node, limiter = self._node, self._node.limiter
        streams = [stream for stream in node.streams() if stream.lease is not None]
        held = [stream.lease.held for stream in streams if stream.lease is not None]
        renewed = await limiter.store.renew(held)
        limiter.journal.renewals += len(held) - len(renewed.lost)
        limiter.journal.leases_lost += len(renewed.lost)
        while orders := await limiter.store.orders():
            for order in orders:
                node.carry_out(order)
        lost = [
            streams[position]
            for position in renewed.lost
            if node.holds(streams[position], held[position].stream) and streams[position].reason is None
        ]
        for stream in lost:  # all at once, before any of them asks again: what is lost does not count as held
            if stream.lease is not None:
                limiter.release(stream.lease)
        for start in range(0, len(lost), READMIT_AT_ONCE):
            await asyncio.gather(*(self._readmit(stream) for stream in lost[start : start + READMIT_AT_ONCE]))

    async def _readmit(self, stream: RunningStream) -> None:
        if stream.lease is None or stream.is_gone or stream.reason is not None:
            return
        node = self._node
        node.remove(stream)
        refused = await node.limiter.readmit(stream.lease)
        if isinstance(refused, Reject) and refused.reason is Reason.STORE:
            node.add(stream)  # nobody knows: the stream goes on, and the next heartbeat asks again
        elif isinstance(refused, Reject):
            log.info("a lease was lost and its limit is full: %s", refused.reason)
            stream.end(Reason.LEASE_LOST)
        elif stream.is_gone:
            node.limiter.release(stream.lease)
        else:
            node.add(stream)
