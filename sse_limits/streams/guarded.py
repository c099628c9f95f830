"""One guarded request: a pass-through until a slot is admitted, then the owner of `receive`.

Only a pending `receive()` learns that a client has gone, on every server. So from admission on a pump always keeps one
pending: it gives the slot back the moment the disconnect comes, whatever the app is busy with, and hands the app its
messages through a bounded mailbox. The app then has CLEANUP_SECONDS before it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sse_limits.core.frames import event
from sse_limits.core.identity import Identity
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import CAUSES, Answer, Reason, Reject, rejected_event
from sse_limits.limiter import Lease
from sse_limits.slots.base import Order

from .identification import SUBPROTOCOL, TOKEN_SUBPROTOCOL, Request, Scope, Session, read

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger("sse_limits.streams.guarded")

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HANDLE = "sse_limits"  # the key of the scope under which an app finds its guarded stream
MAILBOX_MESSAGES = 64
MAILBOX_BYTES = 1 << 20
GOODBYE_SECONDS = 1.0
SENDS_IN_A_ROW = 16
HTTP_RESPONSE = ("http.response.start", "http.response.body")
WEBSOCKET_DENIAL = ("websocket.http.response.start", "websocket.http.response.body")
NO_CONTENT = int(HTTPStatus.NO_CONTENT)
LINGER_SECONDS = 0.1
MUTED_SECONDS = 0.01
EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
EVENT_STREAM = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class GuardedStream:
    """What the guard knows of one request; the consumers and `@limited_stream` find it in the scope.

    Lives on one event loop, for one call of the guard.
    """

    __slots__ = (
        "_at_boundary",
        "_bytes",
        "_deadline",
        "_gone",
        "_is_event_stream",
        "_mailbox",
        "_node",
        "_passing",
        "_pump_task",
        "_receive",
        "_room",
        "_send",
        "_sent",
        "_waiters",
        "_who",
        "finished",
        "identity",
        "is_websocket",
        "lease",
        "reason",
        "request",
        "scope",
        "started",
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
        self._is_event_stream = False
        self._at_boundary = True
        self._deadline: asyncio.Timeout | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._passing = 0
        self._sent = 0
        self._mailbox: list[Message] = []
        self._bytes = 0
        self._gone: Message | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None

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
        identity = await self.identify(stream_class)
        if isinstance(identity, Reject):
            return identity
        if self._was_evicted(identity):
            return Reject(Reason.EVICTED)
        if self.scope.get("method") == "HEAD":
            return await self._node.limiter.peek(identity, stream_class)
        found = await self._node.limiter.admit(identity, stream_class)
        if isinstance(found, Reject):
            return found
        self.lease = found
        self._node.add(self)
        if not self._passing:
            self._start_pump()
        return None

    def _was_evicted(self, identity: Identity) -> bool:
        marker = self.request.last_event_id if self.request is not None else None
        return marker is not None and marker == self._node.limiter.evicted_marker(identity).encode()

    def answer(self, reject: Reject) -> Answer:
        """What to tell the client; CORS headers included."""
        return self._node.answer(reject, self.scope, self.request)

    def cors_headers(self) -> list[tuple[bytes, bytes]]:
        """What lets a page of another origin read the answer, where the project allows it."""
        return self._node.readers.headers(self.request.origin if self.request is not None else None)

    async def reject(self, reject: Reject, stream_class: StreamClass) -> None:
        """Answer the client in the form that its transport, its server and the stream class allow."""
        found = self.answer(reject)
        if stream_class.on_reject == "event" and reject.reason is not Reason.EVICTED:
            await self._reject_by_event(found)
        elif not self.is_websocket:
            await respond(self.scope, self._send, found)
        elif "websocket.http.response" in (self.scope.get("extensions") or {}):
            await respond(self.scope, self._send, found, WEBSOCKET_DENIAL)
            await self._linger()
        else:
            await self._send({"type": "websocket.close", "code": found.close_code, "reason": found.close_reason})

    async def _linger(self) -> None:
        """After a denial, wait until the server says that the connection is closed, or says nothing more.

        Uvicorn (0.54) logs an error for each app that returns earlier; its second disconnect is the closed connection.
        """
        if self._pump_task is not None or self._passing:
            return
        disconnects = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while disconnects < 2:
                    disconnects += is_disconnect(await self._receive())
        except TimeoutError:
            pass

    async def _reject_by_event(self, found: Answer) -> None:
        if self.is_websocket:
            await self._send({"type": "websocket.accept", "subprotocol": self._subprotocol()})
            await self._send({"type": "websocket.close", "code": found.close_code, "reason": found.close_reason})
            return
        await self.start_event_stream()
        body = b"" if self.scope["method"] == "HEAD" else rejected_event(found)
        await self._send({"type": "http.response.body", "body": body})

    async def start_event_stream(self) -> None:
        """Send the head of an event stream."""
        headers = [*EVENT_STREAM, *self.cors_headers()]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    # -- what the app sees ---------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """The app's `receive`."""
        if self._pump_task is None:
            return await self._pass_through()
        while not self._mailbox:
            if self._gone is not None:
                return self._gone
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)  # more than one: apps ask again before a call that they gave up has ended
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        message = self._mailbox.pop(0)
        self._bytes -= size(message)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return message

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
                if body:
                    self._at_boundary = body.endswith(EVENT_ENDS)
                self.finished = not message.get("more_body", False)
            case "http.response.start":
                self.started = True
                self._is_event_stream = is_event_stream(message)
            case "websocket.accept":
                self.started = True
                message = {**message, "subprotocol": message.get("subprotocol") or self._subprotocol()}
            case "websocket.close":
                self.finished = True
        await self._send(message)
        self._sent += 1
        if self._sent % SENDS_IN_A_ROW == 0:
            # While its client reads, a server never makes an app wait: one that only sends would stop the event loop.
            await asyncio.sleep(0)

    def _subprotocol(self) -> str | None:
        return SUBPROTOCOL if SUBPROTOCOL in (self.scope.get("subprotocols") or ()) else None

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
        if self._gone is None:  # so that a lease that is being won again at this moment is given back too
            self._gone = self._disconnect(1000)
        self._give_back()
        if self._pump_task is not None:
            self._pump_task.cancel()

    def _give_back(self) -> None:
        if self.lease is not None:
            self._node.remove(self)
            self._node.limiter.release(self.lease)

    def _start_pump(self) -> None:
        loop = asyncio.get_running_loop()
        self._pump_task = loop.create_task(self._pump(), context=contextvars.Context())

    async def _pump(self) -> None:
        while self._gone is None:
            try:
                message = await self._receive()
            except Exception as exc:  # of whatever server: the slot must not wait for the app to notice
                log.debug("receive() failed, taken as a disconnect: %r", exc)
                message = self._disconnect(1006)
            if is_disconnect(message):
                self._disconnected(message)
                return
            self._mailbox.append(message)
            self._bytes += size(message)
            self._wake()
            while self._is_full(message):
                self._room = asyncio.get_running_loop().create_future()
                await self._room

    def _is_full(self, last: Message) -> bool:
        """HTTP: one message, unless it ends the request. WebSocket: bounded in messages and bytes."""
        if not self.is_websocket:
            return bool(self._mailbox) and last.get("more_body", False)
        return len(self._mailbox) >= MAILBOX_MESSAGES or self._bytes >= MAILBOX_BYTES

    def _disconnected(self, message: Message) -> None:
        """The client has gone, or has all of its response: the slot is free from here on."""
        if self._gone is None:
            self._gone = message
        self._give_back()
        self._wake()
        if not self.finished:
            self._cancel_later()

    def _cancel_later(self) -> None:
        if self._deadline is not None:
            loop = asyncio.get_running_loop()
            self._deadline.reschedule(loop.time() + self._node.limiter.conf.cleanup_seconds)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def end(self, reason: Reason, order: Order | None = None) -> None:
        """End the stream from our side: say goodbye, give the slot back, stop the app, confirm the order."""
        if self.reason is None and self._gone is None:
            self.reason = reason
            self._node.spawn(self._end(reason, order))
        elif order is not None:
            self._node.limiter.store.confirm(order)

    async def _end(self, reason: Reason, order: Order | None) -> None:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._say_goodbye(reason)
        except (TimeoutError, OSError, RuntimeError) as exc:  # stalled, gone, or the server says that it is over
            log.debug("no goodbye: %r", exc)
        self._disconnected(self._disconnect(CAUSES[reason].close_code))
        if order is not None:
            self._node.limiter.store.confirm(order)

    async def _say_goodbye(self, reason: Reason) -> None:
        if self.finished:
            return
        if not self.started:
            await self.reject(Reject(reason), StreamClass(""))
        elif self.is_websocket:
            await self._send({"type": "websocket.close", "code": CAUSES[reason].close_code, "reason": reason})
        else:
            body = self._last_event(reason) if self._is_event_stream and self._at_boundary else b""
            await self._send({"type": "http.response.body", "body": body})

    def _last_event(self, reason: Reason) -> bytes:
        marker = None
        if reason is Reason.EVICTED and self.identity is not None:
            marker = self._node.limiter.evicted_marker(self.identity)
        found = self._node.limiter.answer(Reject(reason))
        retry_ms = None if found.retry_after is None else found.retry_after * 1000
        return event(reason, found.body.decode(), event_id=marker, retry_ms=retry_ms)

    def _disconnect(self, code: int) -> Message:
        if self.is_websocket:
            return {"type": "websocket.disconnect", "code": code}
        return {"type": "http.disconnect"}


async def respond(scope: Scope, send: Send, found: Answer, kind: tuple[str, str] = HTTP_RESPONSE) -> None:
    """Send a refusal as an HTTP response, or as the denial of a WebSocket handshake."""
    start, body = kind
    is_bodiless = found.status == NO_CONTENT or scope.get("method") == "HEAD"
    await send({"type": start, "status": found.status, "headers": found.headers})
    await send({"type": body, "body": b"" if is_bodiless else found.body})


def is_disconnect(message: Message) -> bool:
    """Whether a message says that the client has gone."""
    return bool(message["type"] in ("http.disconnect", "websocket.disconnect"))


def is_event_stream(start: Message) -> bool:
    """Whether a response is an event stream, by its content type."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )


def size(message: Message) -> int:
    """How much of the mailbox's room a message takes, in bytes."""
    return len(message.get("bytes") or message.get("text") or message.get("body") or b"")
