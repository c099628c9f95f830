"""Whether the slot store is there: the circuit of one node, and what is said of it, once.

The first failure of a decision or a renewal opens the circuit. A probe closes it again, after the node has renewed and
adopted what it holds (`streams/renewal.py`).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from sse_limits.core.circuit import Circuit

from . import keys
from .base import SlotStore, StoreUnavailable
from .memory import epoch_ms
from .outage import LocalTable

log = logging.getLogger("sse_limits.slots.availability")

NEVER_REACHED = (
    ". Set REDIS_URL of SSE_LIMITS (in the demo: the variable SSE_LIMITS_REDIS_URL) to a running Redis >= 6.2 or Valkey"
)


class Availability:
    """Owned by one event loop. `went_away` is set while the circuit is open."""

    def __init__(self, store: SlotStore, local: LocalTable) -> None:
        self.circuit = Circuit()
        self.went_away = asyncio.Event()
        self._store = store
        self._local = local
        self._was_reached = False

    async def greet(self) -> None:
        """Look for the store before a stream needs it: a wrong address is told at the start."""
        try:
            (others,) = await self._store.usage([keys.nodes()])
        except StoreUnavailable as exc:
            self.failed(exc)
        else:
            self._was_reached = True
            await self._warn_of_eviction()
            self._local.count_nodes(others + 1, epoch_ms())  # this one has not told of itself yet

    async def _warn_of_eviction(self) -> None:
        with suppress(StoreUnavailable):  # not every provider lets us ask
            policy = await self._store.eviction_policy()
            if policy is not None:
                log.warning(
                    "the slot store drops keys when its memory is full (maxmemory-policy %s): slots would be lost "
                    "until the next heartbeat, and limits exceeded. Set it to noeviction, or give slots a server of "
                    "their own (sse_limits.W010)",
                    policy,
                )

    async def count_nodes(self) -> None:
        """Note how many nodes live: the shares of a node that is alone follow from it. Raises `StoreUnavailable`."""
        (living,) = await self._store.usage([keys.nodes()])
        self._local.count_nodes(max(1, living), epoch_ms())

    async def probe(self) -> bool:
        """Ask whether the store takes writes again."""
        try:
            await self._store.probe()
        except StoreUnavailable:
            self.circuit.probe_failed()
            return False
        return True

    def failed(self, exc: Exception) -> None:
        """Note that the store is away: from here on this node decides alone."""
        if self.circuit.fail(epoch_ms()):
            self.went_away.set()
            log.warning(
                "the slot store does not answer (%s): this node decides from its own table until it does, as each "
                "tier's outage policy says; open streams go on%s",
                str(exc) or "no answer in time",
                "" if self._was_reached else NEVER_REACHED,
            )

    def answered(self) -> None:
        """Note that the store was there; whoever finds it away later is not told how to set it up."""
        self._was_reached = True

    def came_back(self) -> None:
        """Note that the store answers, and knows again what this node holds."""
        since = self.circuit.since_ms
        if since is not None:
            self.circuit.close()
            self.went_away.clear()
            self._was_reached = True
            log.warning("the slot store answers again, after %.1f s", (epoch_ms() - since) / 1000)
