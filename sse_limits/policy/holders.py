"""Who holds something, beside what they may hold: the row that API and command line tell alike."""

from __future__ import annotations

from typing import Any

from sse_limits.core.limits import Policy
from sse_limits.live.rows import Holder


def with_limit(holder: Holder, policy: Policy) -> dict[str, Any]:
    """A holder with its limit and, in words, where that comes from."""
    limit, source = policy.of_holder(holder.scope, holder.subject)
    return {**holder._asdict(), "limit": limit, "limit_source": str(source)}
