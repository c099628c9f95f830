"""The hub of a process: one subscription a topic, however many streams read it, and one frame for all of them.

It only puts events into lanes; it never waits for a reader. Before an event whose predecessor was not heard comes what
the topic's log holds in between. Who joins while the store is away is not held up: what is published from then on comes
from the log once the store is back.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from sse_limits.core.frames import read_event, with_id
from sse_limits.publishing import Published
from sse_limits.slots.base import StoreUnavailable

from .feeds import Feed

log = logging.getLogger("sse_limits.streams.hub")

GIVEN_IN_A_ROW = 16  # less than any lane holds


class Delivery:
    """One event on its way to many readers; what it looks like to each kind of reader is made once."""

    def __init__(self, published: Published) -> None:
        self.published = published

    @cached_property
    def published_ms(self) -> int:
        """When the event was published, in epoch ms of the store's clock."""
        return order(self.published.id)[0]

    @cached_property
    def frame(self) -> bytes:
        """The event stream frame with the event's id."""
        return with_id(self.published.id.encode(), self.published.frame)

    @cached_property
    def message(self) -> str:
        """The WebSocket message."""
        name, data = read_event(self.published.frame)
        fields = {"type": "event", "topic": self.published.topic, "id": self.published.id, "event": name, "data": data}
        return json.dumps(fields)


class Reader(Protocol):
    """A stream that reads topics."""

    def deliver(self, delivery: Delivery) -> None:
        """Take an event. Must not wait."""


@dataclass(slots=True)
class _Topic:
    """Who reads a topic, and the last event that they were given; `last` is None until that is known."""

    readers: set[Reader] = field(default_factory=set)
    last: str | None = None
    joining: asyncio.Task[None] | None = None


def order(event_id: str) -> tuple[int, int]:
    """What ids are compared by."""
    ms, _, number = event_id.partition("-")
    return int(ms), int(number)


class Hub:
    """Topics and their readers. Owned by one event loop; `run` is a task of the node."""

    def __init__(self, feed: Feed, now_ms: Callable[[], int], patience_seconds: Callable[[], float]) -> None:
        """`now_ms` is the store's time; `patience_seconds` says how long a reader may be kept waiting now."""
        self._feed = feed
        self._now_ms = now_ms
        self._patience_seconds = patience_seconds
        self._topics: dict[str, _Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._given = 0

    async def join(self, name: str, reader: Reader) -> None:
        """Read a topic: what is published after this returns is delivered, if need be once the store is back."""
        topic = self._topics.setdefault(name, _Topic())
        topic.readers.add(reader)
        if topic.joining is None:
            topic.joining = self._spawn(self._join(name, topic))
        await asyncio.wait([topic.joining], timeout=self._patience_seconds())

    def leave(self, name: str, reader: Reader) -> None:
        """Read a topic no longer; the last reader ends the subscription, and waits for nothing."""
        topic = self._topics.get(name)
        if topic is not None:
            topic.readers.discard(reader)
            if not topic.readers:
                del self._topics[name]
                self._spawn(self._leave(name))

    async def run(self) -> None:
        """Deliver what the feed brings, until cancelled."""
        async for event in self._feed.messages():
            try:
                if event is None:
                    await self._catch_up()
                else:
                    await self._deliver(event)
            except StoreUnavailable as exc:
                log.debug("topics: the log cannot be read: %s", exc)

    async def aclose(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._feed.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin something that no reader's end ends, in a context of its own."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _join(self, name: str, topic: _Topic) -> None:
        begins = f"{self._now_ms()}-0"
        try:
            latest = await self._feed.join(name)
        except StoreUnavailable as exc:
            log.debug("topics: joined when the store is back: %s", exc)
            latest = begins
        if topic.last is None or order(latest) > order(topic.last):
            topic.last = latest

    async def _leave(self, name: str) -> None:
        if name not in self._topics:  # else somebody has come meanwhile
            await self._feed.leave(name)

    async def _catch_up(self) -> None:
        """After a break: whatever the logs hold beyond what was delivered."""
        for name, topic in list(self._topics.items()):
            if topic.last is not None:
                for missed in await self._feed.after(name, topic.last):
                    await self._give(topic, missed)

    async def _deliver(self, event: Published) -> None:
        topic = self._topics.get(event.topic)
        if topic is None:
            return
        if topic.last is not None and order(event.previous) > order(topic.last):
            for missed in await self._feed.after(event.topic, topic.last):
                await self._give(topic, missed)
        await self._give(topic, event)

    async def _give(self, topic: _Topic, event: Published) -> None:
        if topic.last is not None and order(event.id) <= order(topic.last):
            return
        topic.last = event.id
        delivery = Delivery(event)
        for reader in topic.readers:
            reader.deliver(delivery)
        self._given += 1
        if self._given % GIVEN_IN_A_ROW == 0:
            # A feed hands over all that came in one read without a pause: lanes of clients that read would overflow.
            await asyncio.sleep(0)
