"""A stream that runs: a pass-through until a slot is admitted, then the owner of `receive`; its end, and its slot back.

Only a pending `receive()` learns that a client has gone, on every server. So from admission on a pump always keeps one
pending: it gives the slot back the moment the disconnect comes, whatever the app is busy with, and hands the app its
messages through a bounded mailbox. The app then has CLEANUP_SECONDS before it is cancelled.

Who the client is and what it is told is not decided here, but in `guarded.py`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sse_limits.core.frames import KEEPALIVE
from sse_limits.core.identity import Identity
from sse_limits.core.limits import Limits
from sse_limits.core.rejections import CAUSES, Reason
from sse_limits.limiter import Lease
from sse_limits.slots.base import Order

from . import servers
from .answers import Receive, Send, chosen_subprotocol, is_event_stream
from .drain import Outlet
from .identification import Request, Scope
from .mailbox import Mailbox, Message, is_disconnect

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("sse_limits.streams.running")

GOODBYE_SECONDS = 1.0
SENDS_IN_A_ROW = 16
MUTED_SECONDS = 0.01
EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\n" + KEEPALIVE)


class RunningStream(ABC):
    """The app's `receive` and `send`, and everything that may end between them.

    Lives on one event loop, for one call of the guard.
    """

    __slots__ = (
        "_at_boundary",
        "_deadline",
        "_gone",
        "_is_aborted",
        "_is_event_stream",
        "_mailbox",
        "_node",
        "_passing",
        "_pump_task",
        "_receive",
        "_send",
        "_sent",
        "finished",
        "identity",
        "is_websocket",
        "lease",
        "outlet",
        "reason",
        "request",
        "scope",
        "started",
        "writing_since",
    )

    def __init__(self, node: Node, scope: Scope, receive: Receive, send: Send) -> None:
        self._node = node
        self.scope = scope
        self._receive = receive
        self._send = send
        self.is_websocket = scope["type"] == "websocket"
        self.request: Request | None = None
        self.identity: Identity | None = None
        self.lease: Lease | None = None
        self.reason: Reason | None = None
        self.started = False
        self.finished = False
        self.outlet: Outlet | None = None
        self.writing_since: float | None = None
        self._is_aborted = False
        self._is_event_stream = False
        self._at_boundary = True
        self._deadline: asyncio.Timeout | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._passing = 0
        self._sent = 0
        self._mailbox: Mailbox | None = None
        self._gone: Message | None = None

    @property
    def node(self) -> Node:
        """The node that this stream is on."""
        return self._node

    @property
    def id(self) -> str:
        """The stream's id, under which its slots are held; empty before admission."""
        return self.lease.held.stream if self.lease is not None else ""

    @property
    def limits(self) -> Limits | None:
        """What holds for whom the stream was admitted."""
        return self._node.limiter.limits_of(self.identity) if self.identity is not None else None

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, or the stream was ended."""
        return self._gone is not None

    # -- what the app sees ---------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """The app's `receive`."""
        return await self._pass_through() if self._mailbox is None else await self._mailbox.take()

    async def _pass_through(self) -> Message:
        """Before admission. A call that is still pending then stands in for the pump until it ends."""
        if self._gone is not None:
            return self._gone
        message: Message | None = None
        self._passing += 1
        try:
            message = await self._receive()
        finally:
            self._passing -= 1
            if message is not None and is_disconnect(message):
                if self.lease is not None:
                    self._disconnected(message)
                else:
                    self._gone = message
            elif self.lease is not None and not self._passing and self._pump_task is None:
                self._start_pump()
        return message

    async def send(self, message: Message) -> None:
        """The app's `send`: notes how far the response is. After an end it swallows what the app still says."""
        if self.reason is not None or self._gone is not None:
            await asyncio.sleep(MUTED_SECONDS)  # never at once: an app that only sends would stop the event loop
            return
        match message["type"]:
            case "http.response.body":
                body = message.get("body", b"")
                if body and body != KEEPALIVE:
                    self._at_boundary = body.endswith(EVENT_ENDS)
                self.finished = not message.get("more_body", False)
            case "http.response.start":
                self.started = True
                self._is_event_stream = is_event_stream(message)
            case "websocket.accept":
                self.started = True
                message = {**message, "subprotocol": message.get("subprotocol") or chosen_subprotocol(self.scope)}
            case "websocket.close":
                self.finished = True
        self.writing_since = asyncio.get_running_loop().time()
        try:
            await self._send(message)
        finally:
            self.writing_since = None
        self._sent += 1
        if self._sent % SENDS_IN_A_ROW == 0:
            # While its client reads, a server never makes an app wait: one that only sends would stop the event loop.
            await asyncio.sleep(0)

    # -- running and ending --------------------------------------------------------------------------------------

    def hold(self, lease: Lease) -> None:
        """A slot is admitted: from here on the client is watched, and the slot given back when it goes."""
        self.lease = lease
        self._node.add(self)
        servers.bound_buffers(self.scope, self._send)
        if not self._passing:
            self._start_pump()

    async def run(self, app: Callable[[Any, Any, Any], Awaitable[None]], scope: Scope) -> None:
        """Run the app; whatever happens, the slot is given back and nothing of ours goes on."""
        try:
            async with asyncio.timeout(None) as self._deadline:
                if self._gone is not None:  # left between admission and now
                    self._cancel_later()
                await app(scope, self.receive, self.send)
        except TimeoutError:
            if self._deadline is None or not self._deadline.expired():
                raise
        except (OSError, RuntimeError) as exc:
            # To a client that has left, or after our goodbye, a server may refuse to send: nobody's fault.
            if not (self.reason is not None or (self.is_gone and isinstance(exc, OSError))):
                raise
            log.debug("the app's last words failed: %r", exc)
        finally:
            self._close()

    def _close(self) -> None:
        self._leave(self._disconnect(1000))  # a lease that is being won again at this moment is given back too
        if self._pump_task is not None:
            self._pump_task.cancel()
        if self._deadline is not None and self._deadline.expired() and not self._is_aborted:
            seconds = self._node.limiter.conf.cleanup_seconds
            log.info("an app went on for %g s after its stream had ended: cancelled", seconds)

    def _give_back(self) -> None:
        if self.lease is not None:
            self._node.remove(self)
            self._node.limiter.release(self.lease)

    def _start_pump(self) -> None:
        self._mailbox = Mailbox(is_websocket=self.is_websocket)
        pumping = self._pump(self._mailbox)
        self._pump_task = asyncio.get_running_loop().create_task(pumping, context=contextvars.Context())

    async def _pump(self, mailbox: Mailbox) -> None:
        """Receive until the client has gone; what it still says after our goodbye is dropped, to come to its close."""
        patience_seconds = self._node.limiter.conf.keepalive_seconds
        while not is_disconnect(message := await self._next_message()):
            if not await mailbox.put(message, patience_seconds):
                log.info("ended: %s", Reason.SLOW_CONSUMER)
                mailbox.close(self._disconnect(CAUSES[Reason.SLOW_CONSUMER].close_code))
                self._give_back()
                self.end(Reason.SLOW_CONSUMER)
        self._disconnected(message)

    async def _next_message(self) -> Message:
        try:
            return await self._receive()
        except Exception as exc:  # of whatever server: the slot must not wait for the app to notice
            log.debug("receive() failed, taken as a disconnect: %r", exc)
            return self._disconnect(1006)

    def _disconnected(self, message: Message) -> None:
        """The client has gone, or has all of its response: the slot is free from here on."""
        if self._gone is None:
            self._leave(message)
            if not self.finished:
                self._cancel_later()

    def _cancel_later(self) -> None:
        if self._deadline is not None:
            loop = asyncio.get_running_loop()
            self._deadline.reschedule(loop.time() + self._node.limiter.conf.cleanup_seconds)

    def _leave(self, message: Message) -> None:
        """Nothing more comes from the client, and nothing goes to it."""
        if self._gone is None:
            self._gone = message
        self._give_back()
        if self._mailbox is not None:
            self._mailbox.close(self._gone)
        if self.outlet is not None:
            self.outlet.close()

    def end(self, reason: Reason, order: Order | None = None) -> None:
        """End the stream from our side: say goodbye, give the slot back, stop the app, confirm the order."""
        if self.reason is None and self._gone is None:
            self.reason = reason
            self._node.spawn(self._end(reason, order))
        elif order is not None:
            self._node.limiter.store.confirm(order)

    def abort(self, reason: Reason) -> None:
        """End a stream whose client takes nothing: no goodbye, no waiting, and its memory is free."""
        if self._gone is None:
            if self.reason is None:
                self.reason = reason
                self._node.farewell(self, reason)
            is_ended = servers.abort(self.scope, self._send)
            log.info("ended: %s%s", reason, "" if is_ended else "; its connection could not be")
            self._is_aborted = True
            self._disconnected(self._disconnect(CAUSES[reason].close_code))
            if self._deadline is not None:  # it waits for the client, not for cleaning up
                self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _end(self, reason: Reason, order: Order | None) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._say_goodbye(reason, order.note if order is not None else "")
        except (TimeoutError, OSError, RuntimeError) as exc:  # stalled, gone, or the server says that it is over
            log.debug("no goodbye: %r", exc)
        self._disconnected(self._disconnect(CAUSES[reason].close_code))
        if order is not None:
            self._node.limiter.store.confirm(order)

    @abstractmethod
    async def _say_goodbye(self, reason: Reason, note: str) -> None:
        """Tell the client, as far as its response allows, why its stream ends."""

    def _disconnect(self, code: int) -> Message:
        if self.is_websocket:
            return {"type": "websocket.disconnect", "code": code}
        return {"type": "http.disconnect"}
