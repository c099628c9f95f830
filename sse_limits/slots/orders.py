"""Orders between nodes over Redis: to end a stream, and to confirm that it has ended.

A node's stream of orders is the truth, read on each heartbeat; a message on the channel of that name is the fast path.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from dataclasses import asdict
from typing import Any

from redis.asyncio import Redis

from . import keys, scripts
from .base import OnOrder, Order
from .pipeline import LINK_FAULTS
from .servers import AnyPipeline, Servers

log = logging.getLogger("sse_limits.slots.orders")

ORDERS_KEPT = 10_000
ORDERS_PER_READ = 500
LISTEN_RETRY_SECONDS = 0.25


class OrderDesk:
    """Sends orders to other nodes and receives those to this one. Owned by one event loop."""

    def __init__(self, servers: Servers, decisions: AnyPipeline, upkeep: AnyPipeline, lease_ms: int) -> None:
        self._servers = servers
        self._decisions = decisions
        self._upkeep = upkeep
        self._lease_ms = lease_ms
        self._script = scripts.load("order")
        self._acks: dict[str, asyncio.Future[None]] = {}
        self._node: str | None = None
        self._last_read = "0-0"
        self._listener: asyncio.Task[None] | None = None

    def order(self, order: Order, ack_seconds: float) -> asyncio.Future[bool]:
        """Send an order with the next exchange; the result says whether it was confirmed in time."""
        ack = self._acks[order.id] = asyncio.get_running_loop().create_future()
        sent = self._decisions.run(self._script, *call(order, self._lease_ms))
        confirmed = asyncio.ensure_future(self._confirmed(sent, ack, ack_seconds))
        confirmed.add_done_callback(lambda _: self._acks.pop(order.id, None))
        return confirmed

    async def _confirmed(self, sent: asyncio.Future[Any], ack: asyncio.Future[None], ack_seconds: float) -> bool:
        _, receivers = await sent
        if not receivers:
            return False
        try:
            async with asyncio.timeout(ack_seconds):
                await ack
        except TimeoutError:
            return False
        return True

    async def unread(self) -> list[Order]:
        """The orders to the listening node since the last call, as many as one read may bring."""
        if self._node is None:
            return []
        key = keys.orders(self._node)
        entries = await self._upkeep.call(("XRANGE", key, f"({self._last_read}", "+", "COUNT", ORDERS_PER_READ))
        if entries:
            self._last_read = entries[-1][0].decode()
        found = (parse(fields[1]) for _, fields in entries)
        return [order for order in found if order is not None]

    def confirm(self, order: Order) -> None:
        """Publish that the order has been carried out; if that fails, the asking node has waited in vain."""
        reply = self._decisions.call(("PUBLISH", keys.ack(order.id), ""))
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())

    def listen(self, node: str, on_order: OnOrder) -> None:
        """Subscribe to the orders to `node` and to the confirmations of its own."""
        self._node = node
        loop = asyncio.get_running_loop()
        self._listener = loop.create_task(self._listen(node, on_order), context=contextvars.Context())

    async def aclose(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    async def _listen(self, node: str, on_order: OnOrder) -> None:
        while True:
            try:
                await self._subscribe(node, on_order)
            except LINK_FAULTS as exc:
                log.debug("orders: listening again in %s s: %s", LISTEN_RETRY_SECONDS, exc)
            await asyncio.sleep(LISTEN_RETRY_SECONDS)

    async def _subscribe(self, node: str, on_order: OnOrder) -> None:
        pool = self._servers.subscriber(keys.orders(node))
        async with Redis(connection_pool=pool).pubsub() as messages:
            await messages.subscribe(keys.orders(node))
            await messages.psubscribe(keys.ack(f"{node}-*"))
            async for message in messages.listen():
                self._dispatch(message, on_order)

    def _dispatch(self, message: dict[str, Any], on_order: OnOrder) -> None:
        if message["type"] == "message":
            order = parse(message["data"])
            if order is not None:  # by way of the loop: a fault in the callback must not end the listening
                asyncio.get_running_loop().call_soon(on_order, order)
        elif message["type"] == "pmessage":
            ack = self._acks.get(message["channel"].decode().removeprefix(keys.ack("")))
            if ack is not None and not ack.done():
                ack.set_result(None)


def call(order: Order, lease_ms: int) -> tuple[list[str], tuple[str | int, ...]]:
    """The keys and arguments of the script that leaves an order."""
    channel = keys.orders(order.node)
    return [channel], (channel, json.dumps(asdict(order)), lease_ms, ORDERS_KEPT)


def parse(data: bytes) -> Order | None:
    """Read an order; None for what a later version may have written."""
    try:
        return Order(**json.loads(data))
    except (ValueError, TypeError):
        log.warning("orders: one cannot be read by this version and is passed over")
        return None
