"""A lane: what waits to be sent to one connection, bounded in events and bytes.

When it is full the oldest gives way, and is counted: a reader that has fallen behind gets what is new.
"""

from __future__ import annotations

from collections.abc import Sequence

Item = bytes | str


class Lane:
    """The queue of one connection. Not thread-safe; one event loop puts and takes.

    At most `max_events` wait, and at most `max_bytes`, except that one event always fits: one that is larger than the
    bound alone takes the whole lane.
    """

    __slots__ = ("_bytes", "_items", "dropped", "max_bytes", "max_events")

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.dropped = 0
        self._items: list[Item] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """How much waits, in bytes (text: in characters)."""
        return self._bytes

    def put(self, item: Item) -> int:
        """Append an event; return how many older ones gave way."""
        items = self._items
        items.append(item)
        self._bytes += len(item)
        drop = max(len(items) - self.max_events, 0)
        freed = sum(len(old) for old in items[:drop])
        while self._bytes - freed > self.max_bytes and drop < len(items) - 1:
            freed += len(items[drop])
            drop += 1
        if drop:
            del items[:drop]
            self._bytes -= freed
            self.dropped += drop
        return drop

    def take(self, max_bytes: int) -> Sequence[Item]:
        """Remove and return the oldest events: as many as fit into `max_bytes`, and one at least if there is any."""
        items = self._items
        if self._bytes <= max_bytes:
            self._items, self._bytes = [], 0
            return items
        count, size = 1, len(items[0])
        while count < len(items) and size + len(items[count]) <= max_bytes:
            size += len(items[count])
            count += 1
        taken = items[:count]
        del items[:count]
        self._bytes -= size
        return taken
