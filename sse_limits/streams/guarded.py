"""One guarded request: who asks, whether it is admitted, and what its client is told.

What happens to it from admission on, until its slot is given back, is in `running.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from sse_limits.core.frames import event
from sse_limits.core.identity import Identity
from sse_limits.core.lane import Lane
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Answer, Reason, Reject

from .answers import (
    EVENT_STREAM,
    WEBSOCKET_DENIAL,
    Receive,
    Send,
    accept_and_say,
    can_deny,
    linger,
    respond,
)
from .drain import Outlet
from .identification import TOKEN_SUBPROTOCOL, Request, Scope, Session, read
from .running import RunningStream

if TYPE_CHECKING:
    from .node import Node

HANDLE = "sse_limits"  # the key of the scope under which an app finds its guarded stream


class GuardedStream(RunningStream):
    """What the guard knows of one request; the consumers and `@limited_stream` find it in the scope.

    Lives on one event loop, for one call of the guard.
    """

    __slots__ = ("_who",)

    def __init__(
        self,
        node: Node,
        scope: Scope,
        receive: Receive,
        send: Send,
        request: Request | None = None,
        who: Identity | Reject | Session | None = None,
    ) -> None:
        super().__init__(node, scope, receive, send)
        self.request = request
        self._who = who

    @property
    def tenant(self) -> str | None:
        """The tenant in whose name the stream was admitted."""
        return self.limits.tenant if self.limits is not None else None

    def outlet_for(self, emit: Callable[[Sequence[Any]], Awaitable[None]], keepalive: bytes | None) -> Outlet:
        """A bounded lane for this stream, which the node keeps alive, and which closes when the client has gone."""
        conf, limits = self._node.limiter.conf, self.limits
        events = limits.lane_events if limits is not None and limits.lane_events is not None else conf.lane_events
        self.outlet = Outlet(Lane(events, conf.lane_bytes), emit, keepalive, self._node.limiter.journal)
        if self._gone is not None:
            self.outlet.close()
        return self.outlet

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
        self.hold(found)
        return None

    def _admit_exempt(self, stream_class: StreamClass) -> Reject | None:
        """Admit without identity and slot; a node that is about to end takes nobody."""
        if self._node.is_draining:
            return Reject(Reason.DRAINING)
        if self.scope.get("method") != "HEAD":
            self.hold(self._node.limiter.exempt(stream_class))
        return None

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

    def inner_scope(self) -> Scope:
        """The scope for an app behind the guard: no compression of streams, no tokens among the subprotocols."""
        scope = {**self.scope, HANDLE: self}
        if self.request is not None and self.request.accept_encoding:
            scope["headers"] = [pair for pair in self.scope["headers"] if pair[0] != b"accept-encoding"]
        if self.is_websocket:
            offered = self.scope.get("subprotocols") or ()
            scope["subprotocols"] = [name for name in offered if not name.startswith(TOKEN_SUBPROTOCOL)]
        return scope

    # -- what its client is told at the end ---------------------------------------------------------------------

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
