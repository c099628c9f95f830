"""Publishing: `publish()` from anywhere.

One script appends to the topic's bounded log and publishes, so that the order in the log is the order on the wire. With
the memory store the log is in this process. Who hears of it: `streams/feeds.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple, Protocol

from django.core.serializers.json import DjangoJSONEncoder
from django.core.signals import setting_changed

from .conf import SETTING, Conf, get_conf
from .core import frames
from .limiter import store_url
from .slots import keys, scripts
from .slots.blocking import Blocking
from .slots.memory import epoch_ms

LOG_EVENTS = 1000
LOG_SECONDS = 3600
MAX_EVENT_BYTES = 16 << 20
NO_ID = "0-0"


_TOPIC = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,400}")


class Event(NamedTuple):
    """What is to be published: `data` is text, or anything that Django can write as JSON."""

    topic: str
    data: object
    event: str | None = None
    tenant: str | None = None


class Published(NamedTuple):
    """An event with its place: `id` and the id of the one before it in the topic's log; `frame` without an id line."""

    topic: str
    id: str
    previous: str
    frame: bytes


def publish(topic: str, data: object, *, event: str | None = None, tenant: str | None = None) -> str:
    """Publish one event from synchronous code and return its id.

    With `tenant` the topic is that tenant's. Raises `ValueError` for a topic or event name that cannot be sent, and
    `StoreUnavailable` when nobody knows whether it was published.
    """
    return publish_many([Event(topic, data, event, tenant)])[0]


def publish_many(events: Iterable[Event]) -> list[str]:
    """Publish several events in one round trip, in this order; return their ids."""
    return get_publisher().publish([encode(event) for event in events])


async def apublish(topic: str, data: object, *, event: str | None = None, tenant: str | None = None) -> str:
    """Publish one event from asynchronous code and return its id."""
    return (await asyncio.to_thread(get_publisher().publish, [encode(Event(topic, data, event, tenant))]))[0]


def encode(event: Event) -> tuple[str, bytes]:
    """The full topic and the frame of an event. Raises `ValueError`."""
    topic = event.topic if event.tenant is None else f"{event.tenant}/{event.topic}"
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"topic is {topic!r}; it has 1 to 400 characters, none of them a control character")
    text = event.data if isinstance(event.data, str) else json.dumps(event.data, cls=DjangoJSONEncoder)
    frame = frames.event(text, name=event.event)
    if len(frame) > MAX_EVENT_BYTES:
        raise ValueError(f"the event has {len(frame)} bytes; at most {MAX_EVENT_BYTES} can be published")
    return topic, frame


class Publisher(Protocol):
    """The sending end."""

    def publish(self, events: list[tuple[str, bytes]]) -> list[str]:
        """Append and send frames, in order; blocks."""


class RedisPublisher:
    """Publishes over blocking connections; thread-safe. On a Cluster the order holds within each topic."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._servers = Blocking(url, timeout_seconds)
        self._script = scripts.load("publish")
        self._scripts = {self._script.sha: self._script}

    def publish(self, events: list[tuple[str, bytes]]) -> list[str]:
        """Append and send frames, in order."""
        calls = [
            self._script.evalsha([keys.log(topic)], (keys.channel(topic), frame, LOG_EVENTS, LOG_SECONDS * 1000))
            for topic, frame in events
        ]
        return [reply.decode() for reply in self._servers.exchange(calls, self._scripts)]

    def close(self) -> None:
        """Close the connections."""
        self._servers.close()


class MemoryTopics:
    """Logs and subscribers of one process: both ends, for the memory store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, deque[Published]] = {}
        self._numbers = itertools.count(1)
        self._hear: dict[object, Callable[[Published], object]] = {}

    def publish(self, events: list[tuple[str, bytes]]) -> list[str]:
        """Append and hand over frames, in order."""
        with self._lock:
            return [self._append(topic, frame) for topic, frame in events]

    def _append(self, topic: str, frame: bytes) -> str:
        entries = self._logs.setdefault(topic, deque(maxlen=LOG_EVENTS))
        previous = entries[-1].id if entries else NO_ID
        event = Published(topic, f"{epoch_ms()}-{next(self._numbers)}", previous, frame)
        entries.append(event)
        for hear in self._hear.values():
            hear(event)
        return event.id

    def listen(self, feed: object, hear: Callable[[Published], object]) -> None:
        """Hand every event to a feed from now on."""
        with self._lock:
            self._hear[feed] = hear

    def forget(self, feed: object) -> None:
        """Hand nothing more to a feed."""
        with self._lock:
            self._hear.pop(feed, None)

    def entries(self, topic: str) -> list[Published]:
        """A topic's log."""
        with self._lock:
            return list(self._logs.get(topic, ()))


@lru_cache(maxsize=1)
def get_publisher() -> Publisher:
    """This process's publisher; made at the first use."""
    conf = get_conf()
    url = store_url(conf)
    return memory_topics() if url is None else RedisPublisher(url, patience_seconds(conf))


def patience_seconds(conf: Conf) -> float:
    """How long publishing and listening wait for the store: no client's admission depends on it."""
    return max(1.0, conf.store_timeout_seconds)


@lru_cache(maxsize=1)
def memory_topics() -> MemoryTopics:
    """The logs of this process, where the store is its memory."""
    return MemoryTopics()


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        get_publisher.cache_clear()
        memory_topics.cache_clear()


setting_changed.connect(_forget, dispatch_uid="sse_limits.publishing")
