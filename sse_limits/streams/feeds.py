"""Feeds: how a process's hub hears of events, over Redis or within the process.

A message that was lost on the way shows by its `previous` id, and is fetched from the topic's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Protocol

from redis.asyncio import Redis

from sse_limits.conf import Conf
from sse_limits.limiter import store_url
from sse_limits.publishing import NO_ID, MemoryTopics, Published, memory_topics, patience_seconds
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.pipeline import LINK_FAULTS
from sse_limits.slots.servers import connect

LOG_READ_AT_ONCE = 1000
RETRY_SECONDS = 0.25
MEMORY_WAITING = 10_000

log = logging.getLogger("sse_limits.streams.feeds")


class Feed(Protocol):
    """The hearing end: what a hub listens to. Owned by one event loop."""

    async def join(self, topic: str) -> str:
        """Listen to a topic; from now on nothing is missed. Returns the id of its latest event.

        Raises `StoreUnavailable`: then it is listened to as soon as the store is back, which `messages` tells by None.
        """

    async def leave(self, topic: str) -> None:
        """Listen no longer."""

    def messages(self) -> AsyncIterator[Published | None]:
        """The events as they come; None after a break, when any may have been missed. Raises `StoreUnavailable`."""

    async def after(self, topic: str, event_id: str) -> list[Published]:
        """What the log holds after an id, oldest first."""

    async def aclose(self) -> None:
        """Stop listening."""


class RedisFeed:
    """Listens over one subscribed connection, and reads the logs over another."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._servers = connect(url)
        self._pipeline = self._servers.pipeline(timeout_seconds)
        self._client: Any = Redis(connection_pool=self._servers.subscriber(keys.channel("")))
        self._timeout_seconds = timeout_seconds
        self._listener = self._client.pubsub()
        self._topics: set[str] = set()
        self._talking = asyncio.Lock()  # redis-py connects in whichever call comes first, and two would race
        self._joining: dict[bytes, asyncio.Future[None]] = {}
        self._unheard: set[str] = set()  # topics whose subscription nobody has confirmed to us

    async def join(self, topic: str) -> str:
        """Listen to a topic; from now on nothing is missed."""
        channel = keys.channel(topic)
        joined = self._joining[channel.encode()] = asyncio.get_running_loop().create_future()
        self._topics.add(topic)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with self._talking:
                    await self._listener.subscribe(channel)
                await joined
            latest = await self._pipeline.call(("XREVRANGE", keys.log(topic), "+", "-", "COUNT", 1))
        except (*LINK_FAULTS, StoreUnavailable) as exc:
            self._unheard.add(topic)
            raise StoreUnavailable(str(exc)) from exc
        finally:
            self._joining.pop(channel.encode(), None)
        return latest[0][0].decode() if latest else NO_ID

    async def leave(self, topic: str) -> None:
        """Listen no longer; if that cannot be said, the next connection does without."""
        self._topics.discard(topic)
        self._unheard.discard(topic)
        with contextlib.suppress(*LINK_FAULTS):
            async with asyncio.timeout(self._timeout_seconds), self._talking:
                await self._listener.unsubscribe(keys.channel(topic))

    async def messages(self) -> AsyncIterator[Published | None]:
        """The events as they come, over as many connections as it takes."""
        while True:
            try:
                async with asyncio.timeout(self._timeout_seconds), self._talking:
                    self._unheard |= self._topics
                    await self._listener.subscribe(keys.channel(""), *map(keys.channel, self._topics))
                async for message in self._listener.listen():
                    if message["type"] == "subscribe":
                        if self._confirm(message["channel"]):
                            yield None
                    elif message["type"] == "message":
                        yield read(message["channel"], message["data"])
            except LINK_FAULTS as exc:
                log.debug("topics: listening again in %s s: %s", RETRY_SECONDS, exc)
            await self._listener.aclose()  # type: ignore[no-untyped-call] # redis-py leaves it so
            self._listener = self._client.pubsub()
            await asyncio.sleep(RETRY_SECONDS)

    async def after(self, topic: str, event_id: str) -> list[Published]:
        """What the log holds after an id, oldest first."""
        command = ("XRANGE", keys.log(topic), f"({event_id}", "+", "COUNT", LOG_READ_AT_ONCE)
        entries = await self._pipeline.call(command)
        ids = [event_id, *(entry_id.decode() for entry_id, _ in entries)]
        return [Published(topic, ids[at + 1], ids[at], fields[1]) for at, (_, fields) in enumerate(entries)]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._listener.aclose()  # type: ignore[no-untyped-call] # redis-py leaves it so
        await self._client.aclose()
        await self._pipeline.aclose()
        await self._servers.aclose()

    def _confirm(self, channel: bytes) -> bool:
        """Note that a channel is subscribed; whether it was the last of those that may have missed something."""
        joined = self._joining.get(channel)
        if joined is not None and not joined.done():
            joined.set_result(None)
        topic = channel.decode().removeprefix(keys.channel(""))
        if topic not in self._unheard:
            return False
        self._unheard.discard(topic)
        return not self._unheard


def read(channel: bytes, data: bytes) -> Published:
    """Take a message of the publish script apart."""
    head, _, frame = data.partition(b"\n")
    event_id, _, previous = head.decode().partition(" ")
    return Published(channel.decode().removeprefix(keys.channel("")), event_id, previous, frame)


class MemoryFeed:
    """Listens to `MemoryTopics` from one event loop."""

    def __init__(self, topics: MemoryTopics) -> None:
        self._source = topics
        self._topics: set[str] = set()
        self._waiting: asyncio.Queue[Published] = asyncio.Queue(MEMORY_WAITING)

    async def join(self, topic: str) -> str:
        """Listen to a topic."""
        self._topics.add(topic)
        entries = self._source.entries(topic)
        return entries[-1].id if entries else NO_ID

    async def leave(self, topic: str) -> None:
        """Listen no longer."""
        self._topics.discard(topic)

    async def messages(self) -> AsyncIterator[Published | None]:
        """The events as they come."""
        loop = asyncio.get_running_loop()
        self._source.listen(self, lambda event: loop.call_soon_threadsafe(self._put, event))
        yield None
        while True:
            yield await self._waiting.get()

    def _put(self, event: Published) -> None:
        if event.topic in self._topics and not self._waiting.full():  # what does not fit is fetched from the log
            self._waiting.put_nowait(event)

    async def after(self, topic: str, event_id: str) -> list[Published]:
        """What the log holds after an id."""
        entries = self._source.entries(topic)
        at = next((at for at, entry in enumerate(entries) if entry.id == event_id), None)
        return entries if at is None else entries[at + 1 :]

    async def aclose(self) -> None:
        """Stop listening."""
        self._source.forget(self)


def build_feed(conf: Conf) -> Feed:
    """A feed for the running event loop."""
    url = store_url(conf)
    return MemoryFeed(memory_topics()) if url is None else RedisFeed(url, patience_seconds(conf))
