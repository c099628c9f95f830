"""One guarded request: a pass-through until a slot is admitted, then the owner of `receive`.

Only a pending `receive()` learns that a client has gone, on every server. So from admission on a pump always keeps one
pending: it gives the slot back the moment the disconnect comes, whatever the app is busy with, and hands the app its
messages through a bounded mailbox. The app then has CLEANUP_SECONDS before it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from sse_limits.core.frames import KEEPALIVE, event
from sse_limits.core.identity import Identity
from sse_limits.core.lane import Lane
from sse_limits.core.limits import Limits, StreamClass
from sse_limits.core.rejections import CAUSES, Answer, Reason, Reject
from sse_limits.limiter import Lease
from sse_limits.slots.base import Order

from . import servers
from .answers import (
    EVENT_STREAM,
    WEBSOCKET_DENIAL,
    Receive,
    Send,
    accept_and_say,
    can_deny,
    chosen_subprotocol,
    is_event_stream,
    linger,
    respond,
)
from .drain import Outlet
from .identification import TOKEN_SUBPROTOCOL, Request, Scope, Session, read
from .mailbox import Mailbox, Message, is_disconnect

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("sse_limits.streams.guarded")

HANDLE = "sse_limits"  # the key of the scope under which an app finds its guarded stream
GOODBYE_SECONDS = 1.0
SENDS_IN_A_ROW = 16
MUTED_SECONDS = 0.01
EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\n" + KEEPALIVE)


class GuardedStream:
    """What the guard knows of one request; the consumers and `@limited_stream` find it in the scope.

    Lives on one event loop, for one call of the guard.
    """

    __slots__ = (
        "_at_boundary",
        "_deadline",
        "_gone",
        "_is_event_stream",
        "_mailbox",
        "_node",
        "_passing",
        "_pump_task",
        "_receive",
        "_send",
        "_sent",
        "_who",
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

    def __init__(
        self,
        node: Node,
        scope: Scope,
        receive: Receive,
        send: Send,
        request: Request | None = None,
        who: Identity | Reject | Session | None = None,
    ) -> None:
        self._node = node
        self.scope = scope
        self._receive = receive
        self._send = send
        self.is_websocket = scope["type"] == "websocket"
        self.request = request
        self._who = who
        self.identity: Identity | None = None
        self.lease: Lease | None = None
        self.reason: Reason | None = None
        self.started = False
        self.finished = False
        self.outlet: Outlet | None = None
        self.writing_since: float | None = None
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
    def tenant(self) -> str | None:
        """The tenant in whose name the stream was admitted."""
        return self.limits.tenant if self.limits is not None else None

    @property
    def limits(self) -> Limits | None:
        """What holds for whom the stream was admitted."""
        return self._node.limiter.limits_of(self.identity) if self.identity is not None else None

    def outlet_for(self, emit: Callable[[Sequence[Any]], Awaitable[None]], keepalive: bytes | None) -> Outlet:
        """A bounded lane for this stream, which the node keeps alive, and which closes when the client has gone."""
        conf, limits = self._node.limiter.conf, self.limits
        events = limits.lane_events if limits is not None and limits.lane_events is not None else conf.lane_events
        self.outlet = Outlet(Lane(events, conf.lane_bytes), emit, keepalive, self._node.limiter.journal)
        if self._gone is not None:
            self.outlet.close()
        return self.outlet

    @property
    def is_gone(self) -> bool:
        """Whether the client has left, or the stream was ended."""
        return self._gone is not None

    # -- admission -----------------------------------------------------------------------------------------------

    async def identify(self, stream_class: StreamClass) -> Identity | Reject:
        """Say who is asking; a stream class that does not allow anonymous clients rejects them."""
        if self.identity is None:
            found = self._recognise(stream_class)
            if isinstance(found, Session):
                found = await self._node.identifier.by_session(found, anonymous=stream_class.anonymous)
            if isinstance(found, Reject):
                return found
            self.identity = found
        elif self.identity.user is None and not stream_class.anonymous:
            return Reject(Reason.MISSING_TOKEN)
        return self.identity

    def _recognise(self, stream_class: StreamClass) -> Identity | Reject | Session:
        if self._who is not None:
            found, self._who = self._who, None
            return found
        self.request = read(self.scope)
        return self._node.identifier.identify(self.scope, self.request, anonymous=stream_class.anonymous)

    async def admit(self, stream_class: StreamClass) -> Reject | None:
        """Take the slots and start the pump; None when admitted. HEAD is answered alike, and takes nothing."""
        if self.lease is not None:
            return None
        if self._gone is not None:  # left before it was asked for: nothing to take, and the app is told on receive()
            self._cancel_later()
            return None
        if stream_class.exempt:
            return self._admit_exempt(stream_class)
        identity = await self.identify(stream_class)
        if isinstance(identity, Reject):
            return identity
        if self._was_evicted(identity):
            return Reject(Reason.EVICTED)
        if self._node.is_draining:
            return Reject(Reason.DRAINING)
        if self.scope.get("method") == "HEAD":
            return await self._node.limiter.peek(identity, stream_class)
        found = await self._node.limiter.admit(identity, stream_class)
        if isinstance(found, Reject):
            return found
        self._take(found)
        return None

    def _admit_exempt(self, stream_class: StreamClass) -> Reject | None:
        """Admit without identity and slot; a node that is about to end takes nobody."""
        if self._node.is_draining:
            return Reject(Reason.DRAINING)
        if self.scope.get("method") != "HEAD":
            self._take(self._node.limiter.exempt(stream_class))
        return None

    def _take(self, lease: Lease) -> None:
        self.lease = lease
        self._node.add(self)
        servers.bound_buffers(self.scope, self._send)
        if not self._passing:
            self._start_pump()

    def _was_evicted(self, identity: Identity) -> bool:
        marker = self.request.last_event_id if self.request is not None else None
        return marker is not None and marker == self._node.limiter.evicted_marker(identity).encode()

    def answer(self, reject: Reject, stream_class: StreamClass) -> Answer:
        """What to tell the client; CORS headers included."""
        return self._node.answer(reject, self.scope, self.request, self.identity, stream_class.name)

    def cors_headers(self) -> list[tuple[bytes, bytes]]:
        """What lets a page of another origin read the answer, where the project allows it."""
        return self._node.readers.headers(self.request.origin if self.request is not None else None)

    async def reject(self, reject: Reject, stream_class: StreamClass) -> None:
        """Answer the client in the form that its transport, its server and the stream class allow."""
        found = self.answer(reject, stream_class)
        if stream_class.on_reject == "event" and reject.reason is not Reason.EVICTED:
            await accept_and_say(self.scope, self._send, found, self._stream_headers())
        elif not self.is_websocket:
            await respond(self.scope, self._send, found)
        elif can_deny(self.scope):
            await respond(self.scope, self._send, found, WEBSOCKET_DENIAL)
            if self._pump_task is None and not self._passing:
                await linger(self._receive)
        else:
            await self._send({"type": "websocket.close", "code": found.close_code, "reason": found.close_reason})

    async def start_event_stream(self) -> None:
        """Send the head of an event stream."""
        await self.send({"type": "http.response.start", "status": 200, "headers": self._stream_headers()})

    def _stream_headers(self) -> list[tuple[bytes, bytes]]:
        return [*EVENT_STREAM, *self.cors_headers()]

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
                self._gone = message
                if self.lease is not None:
                    self._disconnected(message)
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

    def inner_scope(self) -> Scope:
        """The scope for an app behind the guard: no compression of streams, no tokens among the subprotocols."""
        scope = {**self.scope, HANDLE: self}
        if self.request is not None and self.request.accept_encoding:
            scope["headers"] = [pair for pair in self.scope["headers"] if pair[0] != b"accept-encoding"]
        if self.is_websocket:
            offered = self.scope.get("subprotocols") or ()
            scope["subprotocols"] = [name for name in offered if not name.startswith(TOKEN_SUBPROTOCOL)]
        return scope

    # -- running and ending --------------------------------------------------------------------------------------

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
            log.info(
                "an app went on for %g s after its stream had ended: cancelled", self._node.limiter.conf.cleanup_seconds
            )
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

    def _give_back(self) -> None:
        if self.lease is not None:
            self._node.remove(self)
            self._node.limiter.release(self.lease)

    def _start_pump(self) -> None:
        self._mailbox = Mailbox(is_websocket=self.is_websocket)
        pumping = self._pump(self._mailbox)
        self._pump_task = asyncio.get_running_loop().create_task(pumping, context=contextvars.Context())

    async def _pump(self, mailbox: Mailbox) -> None:
        while self._gone is None:
            try:
                message = await self._receive()
            except Exception as exc:  # of whatever server: the slot must not wait for the app to notice
                log.debug("receive() failed, taken as a disconnect: %r", exc)
                message = self._disconnect(1006)
            if is_disconnect(message):
                self._disconnected(message)
            else:
                await mailbox.put(message)

    def _disconnected(self, message: Message) -> None:
        """The client has gone, or has all of its response: the slot is free from here on."""
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

    async def _say_goodbye(self, reason: Reason, note: str) -> None:
        if self.finished:
            return
        if not self.started:
            await self.reject(Reject(reason), StreamClass(""))
            return
        found = self._node.farewell(self, reason, note)
        if self.is_websocket:
            await self._send({"type": "websocket.close", "code": found.close_code, "reason": reason})
        else:
            body = self._last_event(reason, found) if self._is_event_stream and self._at_boundary else b""
            await self._send({"type": "http.response.body", "body": body})

    def _last_event(self, reason: Reason, found: Answer) -> bytes:
        marker = None
        if reason is Reason.EVICTED and self.identity is not None:
            marker = self._node.limiter.evicted_marker(self.identity)
        retry_ms = None if found.retry_after is None else found.retry_after * 1000
        return event(found.body.decode(), name=reason, event_id=marker, retry_ms=retry_ms)

    def _disconnect(self, code: int) -> Message:
        if self.is_websocket:
            return {"type": "websocket.disconnect", "code": code}
        return {"type": "http.disconnect"}
