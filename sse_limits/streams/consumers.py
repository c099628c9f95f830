"""Channels consumers for streams: subclass, route, done. They need `StreamGuard` as the outermost ASGI app."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from channels.consumer import AsyncConsumer
from django.core.exceptions import ImproperlyConfigured

from sse_limits.conf import get_conf
from sse_limits.core.frames import KEEPALIVE
from sse_limits.core.identity import Identity
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Reason, Reject

from .guarded import HANDLE, GuardedStream, Message, Receive, Send

__all__ = ["EventStreamConsumer", "StreamClass"]

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
        await stream.start_event_stream()
        if scope["method"] == "HEAD":
            await stream.send({"type": "http.response.body", "body": b""})
        else:
            await self._keep_alive(stream)

    async def _refusal(self, stream: GuardedStream) -> Reject | None:
        if self.scope["method"] not in ("GET", "HEAD"):
            return Reject(Reason.BAD_METHOD)
        identity = await stream.identify(self.stream_class)
        if isinstance(identity, Reject):
            return identity
        asked = requested_topics(self.scope) or list(self.default_topics)
        if not asked or not all(TOPIC.fullmatch(topic) for topic in asked):
            return Reject(Reason.BAD_TOPIC)
        for topic in asked:
            if self.topics is not None and topic not in self.topics:
                return Reject(Reason.UNKNOWN_TOPIC)
            if not identity.allows_topic(topic) or not await self.authorize(identity, topic):
                return Reject(Reason.FORBIDDEN_TOPIC)
        return await stream.admit(self.stream_class)

    async def _keep_alive(self, stream: GuardedStream) -> None:
        """The first byte at once, then a comment whenever nothing else was sent for a while."""
        comment: Message = {"type": "http.response.body", "body": KEEPALIVE, "more_body": True}
        keepalive_seconds = get_conf().keepalive_seconds
        while True:
            await stream.send(comment)
            while (message := await receive_within(stream, keepalive_seconds)) is not None:
                if message["type"] == "http.disconnect":
                    return

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


async def receive_within(stream: GuardedStream, seconds: float) -> Message | None:
    """The next message, or None when none came in time."""
    try:
        async with asyncio.timeout(seconds):
            return await stream.receive()
    except TimeoutError:
        return None
