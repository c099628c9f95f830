"""What a decision id says, and what else is known of the decision."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from sse_limits.core import decisions
from sse_limits.slots.base import StoreUnavailable

from .board import Board
from .rows import DecisionRow


class Explained(NamedTuple):
    """A decision by its id alone, and its details where they were kept and can be read."""

    decision: decisions.Decision
    details: DecisionRow | None

    def facts(self) -> dict[str, Any]:
        """All that is known, flat; `details_kept` says whether more than the id's own is."""
        own = asdict(self.decision)
        own.pop("number")
        kept = asdict(self.details) if self.details is not None else {}
        return {**own, **kept, "details_kept": self.details is not None}


def explain(text: str, key: bytes, board: Board) -> Explained | None:
    """Explain an id; None when it is not one that `key` made. Needs no store for what the id itself says."""
    decision = decisions.explain(text, key)
    if decision is None:
        return None
    try:
        return Explained(decision, board.decision(text.lower(), decision.at))
    except StoreUnavailable:
        return Explained(decision, None)
