"""Decision ids of this deployment: the key that makes them, and what one says to whoever asks later."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.utils.encoding import force_bytes

from .live.explain import Explained, explain
from .stores import get_board


def decision_key() -> bytes:
    """The key of the decision ids of this deployment."""
    return hmac.digest(force_bytes(settings.SECRET_KEY), b"sse_limits.decisions.v1", "sha256")


def explain_decision(text: str) -> Explained | None:
    """What a decision's id says, and its details where they were kept; None when it is none of this deployment's."""
    return explain(text, decision_key(), get_board())
