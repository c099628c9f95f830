"""The demo's streams: ten lines each, and every limit of the policy holds for them."""

from __future__ import annotations

import json
from typing import Any

from sse_limits.publishing import apublish
from sse_limits.slots.base import StoreUnavailable
from sse_limits.streams.consumers import TOPIC, EventStreamConsumer, LimitedWebsocketConsumer, StreamClass


class Events(EventStreamConsumer):
    """Any topic, for whoever has a stream token or is logged in."""

    stream_class = StreamClass("events")
    default_topics = ("news",)


class PublicEvents(EventStreamConsumer):
    """The same for everybody; who names nobody is counted by address."""

    stream_class = StreamClass("public", anonymous=True)
    default_topics = ("news",)


class Sockets(LimitedWebsocketConsumer):
    """JSON messages: subscribe, unsubscribe, echo, publish."""

    stream_class = StreamClass("sockets")

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Answer one message."""
        try:
            message = json.loads(text_data or bytes_data or "")
            kind, topic = message["type"], message.get("topic", "news")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            await self._answer({"type": "error", "error": "bad_message"})
            return
        if not isinstance(topic, str) or not TOPIC.fullmatch(topic):
            await self._answer({"type": "error", "error": "bad_topic"})
            return
        try:
            await self._answer(await self._reply(kind, topic, message.get("data")))
        except StoreUnavailable:
            await self._answer({"type": "error", "error": "store_unavailable", "retry_after_ms": 2000})

    async def _reply(self, kind: object, topic: str, data: object) -> dict[str, Any]:
        match kind:
            case "subscribe":
                await self.join_topic(topic)
                return {"type": "subscribed", "topic": topic}
            case "unsubscribe":
                await self.leave_topic(topic)
                return {"type": "unsubscribed", "topic": topic}
            case "publish":
                return {"type": "published", "topic": topic, "id": await apublish(topic, data)}
            case "echo":
                return {"type": "echo", "data": data}
        return {"type": "error", "error": "unknown_type"}

    async def _answer(self, message: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(message))
