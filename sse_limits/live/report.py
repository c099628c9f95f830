"""What a node hands to the board once a second: one value, whatever the board is made of.

A report is made without waiting; who takes it (`Sink`) may wait, and says with `StoreUnavailable` that it could not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .remains import Remains
from .rows import Cause, DecisionRow, NodeRow, StreamRow


class Batch(NamedTuple):
    """Rejections and ends since the batch before, by cause and tenant; a batch that comes twice counts once."""

    number: int
    counts: Mapping[tuple[Cause, str | None], int]


@dataclass(frozen=True, slots=True)
class Report:
    """One second of one node. The board writes its own time into `row.seen_at`."""

    row: NodeRow
    rows: Sequence[StreamRow] = ()
    """The streams that are new or have changed, and some others again: a board that lost its memory is healed."""
    gone: Sequence[str] = ()
    touched: Sequence[str] = ()
    """The slot sets of users and tenants that are to be counted now."""
    batch: Batch | None = None
    decisions: Sequence[DecisionRow] = field(default=())
    admitted: int = 0
    """How many streams this node has admitted since its start."""


class Sink(Protocol):
    """Where reports go."""

    @property
    def remains(self) -> Remains | None:
        """What dead nodes have left there; None where everything goes with its process."""

    async def write(self, report: Report) -> int:
        """Take a report; returns the store's time in epoch ms. Raises `StoreUnavailable`."""

    async def leave(self, node: str) -> None:
        """Forget a node that ends. Raises `StoreUnavailable`."""

    async def aclose(self) -> None:
        """Close what is open."""
