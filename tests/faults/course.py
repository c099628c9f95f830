"""The course of a fault: fifty streams and twenty connects a second before, during and after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager

from sse_limits.slots import keys

from .history import Window
from .kinds import Kind, Site
from .load import Load, now
from .settings import TENANT, USER_LIMIT

FULL = (*(f"stayer{number}" for number in range(9)), "full")
CALM_SECONDS = 0.5


async def go_through(site: Site, load: Load, kind: Kind, seconds: float, recovery_seconds: float) -> float:
    """Take the load through a fault; returns how long after its end the store counted the open streams again."""
    await load.fill(FULL)
    await load.run(CALM_SECONDS)
    began = now()
    async with in_a_thread(kind.fault(site)):
        await load.run(seconds)
    await load.settled()
    took = await load.until_right(site.store, recovery_seconds)
    load.history.windows += windows(load, kind, began, now())
    await load.run(CALM_SECONDS)
    await load.settled()
    await load.until_right(site.store, recovery_seconds)
    return took


def windows(load: Load, kind: Kind, began: float, ended: float) -> list[Window]:
    """What the fault allows: those who stay were spread over the nodes when it began, of others nobody knows."""
    even = frozenset(keys.user(TENANT, user) for user in FULL)
    others = frozenset(load.history.limits) - even
    return [
        Window("fault", began, ended, kind.overshoot(USER_LIMIT, len(load.nodes), is_even=scopes is even), scopes)
        for scopes in (even, others)
    ]


@asynccontextmanager
async def in_a_thread(context: AbstractContextManager[None]) -> AsyncIterator[None]:
    """A blocking context whose begin and end do not block the clients."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)
