"""What a board promises: the one place between the nodes that write and the pages that read.

Reading blocks (pages are sync, or read in a thread) and never costs the decisions: no KEYS, nothing unbounded, and a
`snapshot` is at most one second old, however many people look. Every call has a deadline and raises `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sse_limits.core.slots import Scope

from .rows import Bucket, DecisionRow, Holder, NodeRow, StreamRow, TenantCauses

TOP_ROWS = 200
SNAPSHOT_SECONDS = 1.0
NOTE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Point:
    """Streams in use over time: one value of the fleet's history. `at` is epoch ms."""

    at: int
    sse: int
    websocket: int
    admitted: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the overview needs, read at once. `at` is the store's time in epoch ms."""

    at: int
    fleet_in_use: int
    nodes: Sequence[NodeRow]
    tops: Mapping[Scope, Sequence[Holder]]
    """By USER, TENANT, ADDRESS: at most 200, most first. The first 50 are verified against the slot sets."""
    rejections: Sequence[Bucket]
    """The last 15 minutes in spans of 10 s, oldest first, the running one last; spans without a rejection included."""
    tenant_causes: Sequence[TenantCauses]
    """The last 15 minutes, most first, at most 200."""
    latest: Sequence[DecisionRow]
    """The latest decisions, newest first, at most 50."""
    history: Sequence[Point]
    """The last 15 minutes, one point each 10 s, oldest first."""

    def top(self, scope: Scope) -> Sequence[Holder]:
        """Who holds most of a kind, most first; nodes are counted from their own rows."""
        if scope is Scope.NODE:
            rows = sorted(self.nodes, key=lambda node: -node.open)
            return [Holder(scope, node.id, node.open) for node in rows]
        return self.tops.get(scope, ())


class Board(Protocol):
    """The display's data, fleet-wide."""

    def snapshot(self) -> Snapshot:
        """The state of the fleet; shared within the process for one second."""

    def in_use(self, holders: Sequence[tuple[Scope, str]]) -> list[int]:
        """How much each subject holds now, counted in the slot sets (addresses: as nodes report them)."""

    def streams(self, scope: Scope, subject: str, *, offset: int = 0, count: int = 50) -> tuple[int, list[StreamRow]]:
        """How many streams a holder has (scope FLEET: all; NODE: a node's), and a page of their rows, oldest first.

        A stream whose node has not described it yet, or has died, has a row with an empty path.
        """

    def stream(self, stream: str) -> StreamRow | None:
        """One stream's row; None when nobody holds a slot under this id any more."""

    def is_held(self, streams: Sequence[StreamRow]) -> list[bool]:
        """Whether each stream still holds its slots: the proof that a disconnect was carried out."""

    def rejections(self, *, minutes: int) -> Sequence[Bucket]:
        """Rejections of the last minutes (up to 60 in spans of 10 s, up to 2,880 in spans of 60 s), oldest first."""

    def tenant_causes(self, *, minutes: int) -> Sequence[TenantCauses]:
        """Rejections by tenant over the last minutes, most first, at most 200."""

    def decisions(self, *, before: int | None = None, count: int = 50) -> list[DecisionRow]:
        """The latest decisions with details, newest first; `before` (epoch ms) pages on.

        A page may be longer than `count`: decisions of one instant are never parted.
        """

    def decision(self, id: str, at: int) -> DecisionRow | None:
        """The details of the decision that was taken `at` (epoch ms, from its id); None when they were not kept."""

    def revoke(self, streams: Sequence[str], reason: str, note: str = "") -> int:
        """Order the nodes to end streams; returns how many orders were sent. `note` is shown to the client."""

    def close(self) -> None:
        """Close the connections; the next question opens new ones."""
