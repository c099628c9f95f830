"""Replies of the server in one form: RESP2 sends flat lists, RESP3 pairs and maps, and redis-py speaks either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def fields_of(reply: Any) -> dict[str, str]:
    """A hash."""
    return reply if isinstance(reply, dict) else dict(pairs(reply))


def scores_of(reply: Sequence[Any]) -> list[tuple[str, int]]:
    """Members with whole scores."""
    found = reply if reply and isinstance(reply[0], (tuple, list)) else pairs(reply)
    return [(member.decode() if isinstance(member, bytes) else member, int(float(score))) for member, score in found]


def pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The pairs of a flat list."""
    return list(zip(flat[::2], flat[1::2], strict=True))
