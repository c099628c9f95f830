"""Channels consumers for streams: subclass, route, done. They need `StreamGuard` as the outermost ASGI app."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from channels.consumer import AsyncConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.exceptions import ImproperlyConfigured

from sse_limits.core.frames import KEEPALIVE, event
from sse_limits.core.identity import Identity
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Reason, Reject

from .answers import Receive, Send
from .guarded import HANDLE, GuardedStream
from .hub import Delivery
from .mailbox import Message

__all__ = ["EventStreamConsumer", "LimitedWebsocketConsumer", "StreamClass"]

MAX_TOPICS = 32
TOPIC = re.compile(r"[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")
READ_HEADERS = b"authorization, cache-control, last-event-id"


class EventStreamConsumer(AsyncConsumer):
    """A server-sent event stream over one or more topics: `GET /events/?topic=news`.

    `topics` lists the topics there are (None: any well-formed name); `default_topics` are read when the client names
    none. Override `authorize` to decide who may read what. A token's own list of topics always holds.
    """

    stream_class = StreamClass("events")
    topics: frozenset[str] | tuple[str, ...] | None = None
    default_topics: tuple[str, ...] = ()

    async def authorize(self, identity: Identity, topic: str) -> bool:
        """Whether `identity` may read `topic`. Called before a slot is taken; do no slow work here."""
        return True

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request.

        This replaces Channels' own loop, which keeps a task, a channel name and a layer's queue for each connection
        (3 kB more), and cannot see a disconnect while a handler runs (django/channels #1249, #1302).
        """
        self.scope, self.base_send = scope, send
        stream = guarded(scope)
        if scope["method"] == "OPTIONS":
            await self._allow(stream)
            return
        refused = await self._refusal(stream)
        if refused is not None:
            await stream.reject(refused, self.stream_class)
            return
        if scope["method"] == "HEAD":
            await stream.start_event_stream()
            await stream.send({"type": "http.response.body", "body": b""})
        else:
            await self._serve(stream)

    async def _refusal(self, stream: GuardedStream) -> Reject | None:
        if self.scope["method"] not in ("GET", "HEAD"):
            return Reject(Reason.BAD_METHOD)
        identity = await stream.identify(self.stream_class)
        if isinstance(identity, Reject):
            return identity
        asked = requested_topics(self.scope) or list(self.default_topics)
        if not 0 < len(asked) <= MAX_TOPICS or not all(TOPIC.fullmatch(topic) for topic in asked):
            return Reject(Reason.BAD_TOPIC)
        for topic in asked:
            if self.topics is not None and topic not in self.topics:
                return Reject(Reason.UNKNOWN_TOPIC)
            if not identity.allows_topic(topic) or not await self.authorize(identity, topic):
                return Reject(Reason.FORBIDDEN_TOPIC)
        return await stream.admit(self.stream_class)

    async def _serve(self, stream: GuardedStream) -> None:
        """Join the topics, send the first bytes, and then whatever the lane brings, until the client has gone."""
        topics = self._topic_names(stream)
        reading = _EventReader(stream, has_ids=len(topics) == 1)
        hub = stream.node.hub
        try:
            for topic in topics:
                await hub.join(topic, reading)
            await stream.start_event_stream()
            reading.outlet.put(self._greeting(stream))
            await reading.outlet.run()
        finally:
            for topic in topics:
                hub.leave(topic, reading)

    def _greeting(self, stream: GuardedStream) -> bytes:
        """The first byte at once; who this stream is; and, to a client that comes back, that it has missed events."""
        frames = [KEEPALIVE, event(json.dumps({"stream": stream.id}), name="hello")]
        if stream.request is not None and stream.request.last_event_id:
            frames.append(event(json.dumps({"reason": "not_kept"}), name="resync"))
        return b"".join(frames)

    def _topic_names(self, stream: GuardedStream) -> list[str]:
        asked = list(dict.fromkeys(requested_topics(self.scope) or self.default_topics))
        if not self.stream_class.tenant_topics:
            return asked
        return [f"{stream.tenant or ''}/{topic}" for topic in asked]

    async def _allow(self, stream: GuardedStream) -> None:
        headers = [(b"allow", b"GET, HEAD, OPTIONS"), *stream.cors_headers()]
        if len(headers) > 2:  # an origin that may read: answer its preflight
            headers += [
                (b"access-control-allow-methods", b"GET, HEAD"),
                (b"access-control-allow-headers", READ_HEADERS),
                (b"access-control-max-age", b"600"),
            ]
        await stream.send({"type": "http.response.start", "status": int(HTTPStatus.NO_CONTENT), "headers": headers})
        await stream.send({"type": "http.response.body", "body": b""})


def guarded(scope: dict[str, Any]) -> GuardedStream:
    """The guard's handle. Raises `ImproperlyConfigured` where no guard stands in front."""
    found = scope.get(HANDLE)
    if not isinstance(found, GuardedStream):
        raise ImproperlyConfigured(
            "This stream needs StreamGuard as the outermost ASGI app: "
            "application = StreamGuard(ProtocolTypeRouter({...})) in asgi.py."
        )
    return found


def requested_topics(scope: dict[str, Any]) -> list[str]:
    """The `topic` parameters of the query; bytes that are not UTF-8 become lone surrogates, which no topic holds."""
    query = scope["query_string"].decode("latin-1")
    return parse_qs(query, keep_blank_values=True, errors="surrogateescape").get("topic", [])


class _EventReader:
    """An event stream as a reader of topics: into its lane, as frames; only of a single topic do ids make sense."""

    __slots__ = ("_has_ids", "outlet")

    def __init__(self, stream: GuardedStream, *, has_ids: bool) -> None:
        self._has_ids = has_ids

        async def emit(frames: Sequence[bytes]) -> None:
            body = frames[0] if len(frames) == 1 else b"".join(frames)
            await stream.send({"type": "http.response.body", "body": body, "more_body": True})

        self.outlet = stream.outlet_for(emit, KEEPALIVE)

    def deliver(self, delivery: Delivery) -> None:
        self.outlet.put(delivery.frame if self._has_ids else delivery.published.frame, delivery.published_ms)


class LimitedWebsocketConsumer(AsyncWebsocketConsumer):
    """Channels' WebSocket consumer behind the guard.

    A slot is held from before the upgrade to the end. Whatever is sent goes through a bounded lane, groups included, so
    that a client that does not read holds up nobody, not even this consumer. A message over the tier's
    `max_message_bytes` closes the socket with 1009.
    """

    stream_class = StreamClass("sockets")

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection."""
        stream = self.stream = guarded(scope)
        refused = await stream.admit(self.stream_class)
        if refused is not None:
            await stream.reject(refused, self.stream_class)
            return
        self._topics: set[str] = set()
        self._outlet = stream.outlet_for(self._emit, None)
        self._send_to_client = send
        sending = asyncio.ensure_future(self._outlet.run())
        try:
            await super().__call__(scope, self._receive, self._enqueue)
        finally:
            self._outlet.close()
            sending.cancel()
            await asyncio.wait([sending])
            for topic in self._topics:
                stream.node.hub.leave(topic, self)

    async def join_topic(self, topic: str) -> None:
        """Receive the events of a topic, as messages `{"type": "event", ...}`."""
        if topic not in self._topics:
            await self.stream.node.hub.join(topic, self)
            self._topics.add(topic)

    async def leave_topic(self, topic: str) -> None:
        """Receive them no longer."""
        if topic in self._topics:
            self._topics.discard(topic)
            self.stream.node.hub.leave(topic, self)

    def deliver(self, delivery: Delivery) -> None:
        """Called by the hub."""
        self._outlet.put(delivery.message, delivery.published_ms)

    async def _receive(self) -> Message:
        message = await self.stream.receive()
        if message["type"] != "websocket.receive":
            return message
        text, data = message.get("text"), message.get("bytes")
        size = len(text.encode()) if text is not None else len(data or b"")
        limit = self.stream.limits.max_message_bytes if self.stream.limits is not None else None
        is_admitted = limit is None or size <= limit
        self.stream.node.limiter.journal.messages["admitted" if is_admitted else "too_big"] += 1
        if not is_admitted:
            await self._enqueue({"type": "websocket.close", "code": 1009, "reason": "message_too_big"})
            return {"type": "websocket.disconnect", "code": 1009}
        return message

    async def _enqueue(self, message: Message) -> None:
        if message["type"] == "websocket.send":
            text = message.get("text")
            self._outlet.put(text if text is not None else message.get("bytes") or b"")
        else:
            await self._send_to_client(message)

    async def _emit(self, items: Sequence[bytes | str]) -> None:
        for item in items:
            kind = "text" if isinstance(item, str) else "bytes"
            await self._send_to_client({"type": "websocket.send", kind: item})
