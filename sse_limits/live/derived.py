"""What is worked out from rows, whatever the board is made of. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sse_limits.core.slots import Scope

from .board import TOP_ROWS
from .rows import DecisionRow, Holder, NodeRow


def sum_addresses(nodes: Sequence[NodeRow]) -> Counter[str]:
    """How much each address holds, as far as nodes report it."""
    total: Counter[str] = Counter()
    for node in nodes:
        total.update(node.addresses)
    return total


def top_addresses(nodes: Sequence[NodeRow]) -> list[Holder]:
    """The addresses that hold most."""
    found = sum_addresses(nodes).items()
    return most_first(Holder(Scope.ADDRESS, address, count) for address, count in found)[:TOP_ROWS]


def most_first(holders: Iterable[Holder]) -> list[Holder]:
    """Those that hold something, in the order of the tables."""
    return sorted((holder for holder in holders if holder.in_use), key=lambda holder: (-holder.in_use, holder.subject))


class AdmittedInSpan:
    """How many streams were admitted since the running span began, from a count since the node's start."""

    def __init__(self) -> None:
        self._start = 0
        self._before = 0
        self._latest = 0

    def count(self, start: int, admitted: int) -> int:
        """Those of the span that begins at `start`."""
        if start != self._start:
            self._start, self._before = start, self._latest
        self._latest = admitted
        return admitted - self._before


def latest_first(found: Iterable[DecisionRow], count: int) -> list[DecisionRow]:
    """A page of decisions, newest first. Those of one instant stay together, since the next page begins before it."""
    rows = sorted(found, key=lambda row: (-row.at, row.id))
    while count and count < len(rows) and rows[count].at == rows[count - 1].at:
        count += 1
    return rows[:count]
