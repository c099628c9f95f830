"""What has changed since the last write, worked out from what is there: nothing on the hot path has to say so. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import ceil
from typing import NamedTuple

Load = tuple[int, int]
IDLE: Load = (0, 0)
"""A lane's load: how many events wait, how many were dropped."""
UNSURE: Load = (-1, -1)


class Change(NamedTuple):
    """The ids of streams to be written, and of those that have gone."""

    changed: list[str]
    gone: list[str]


class StreamDiff:
    """Remembers what the board knows of each stream. Nothing counts as known until `commit`.

    At most `at_most` streams are written at a time, the others next time; those that have gone are told at once.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._known: dict[str, Load] = {}

    def change(self, loads: Mapping[str, Load], again: Iterable[str] = ()) -> Change:
        """What to write: streams that are new, whose load has changed, or that are to be written again."""
        known = self._known
        changed = dict.fromkeys(stream for stream, load in loads.items() if known.get(stream) != load)
        changed.update(dict.fromkeys(stream for stream in again if stream in loads))
        gone = [stream for stream in known if stream not in loads]
        change = Change(list(changed)[: self._at_most], gone)
        known.update(dict.fromkeys([*change.changed, *gone], UNSURE))  # without an answer, it may have been carried out
        return change

    def commit(self, change: Change, loads: Mapping[str, Load]) -> None:
        """Remember that a change was written, with the loads of that moment."""
        for stream in change.changed:
            self._known[stream] = loads[stream]
        for stream in change.gone:
            self._known.pop(stream, None)


class Rotation:
    """Goes round a changing collection, once in so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps = max(1, steps)
        self._left: list[str] = []
        self._size = 0

    def take(self, items: Collection[str]) -> list[str]:
        """The next share. Some of it may have left the collection meanwhile."""
        if not self._left:
            self._left = list(items)
            self._size = ceil(len(self._left) / self._steps)
        taken, self._left = self._left[: self._size], self._left[self._size :]
        return taken
