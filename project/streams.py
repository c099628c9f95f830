"""The demo's streams: ten lines each, and every limit of the policy holds for them."""

from __future__ import annotations

from sse_limits.streams.consumers import EventStreamConsumer, StreamClass


class Events(EventStreamConsumer):
    """Any topic, for whoever has a stream token or is logged in."""

    stream_class = StreamClass("events")
    default_topics = ("news",)


class PublicEvents(EventStreamConsumer):
    """The same for everybody; who names nobody is counted by address."""

    stream_class = StreamClass("public", anonymous=True)
    default_topics = ("news",)
