"""What a decision id says, and what else is known of the decision."""

from __future__ import annotations

from typing import NamedTuple

from sse_limits.core import decisions
from sse_limits.slots.base import StoreUnavailable

from .board import Board
from .rows import DecisionRow


class Explained(NamedTuple):
    """A decision by its id alone, and its details where they were kept and can be read."""

    decision: decisions.Decision
    details: DecisionRow | None


def explain(text: str, key: bytes, board: Board) -> Explained | None:
    """Explain an id; None when it is not one that `key` made. Needs no store for what the id itself says."""
    decision = decisions.explain(text, key)
    if decision is None:
        return None
    try:
        return Explained(decision, board.decision(text.lower(), decision.at))
    except StoreUnavailable:
        return Explained(decision, None)
