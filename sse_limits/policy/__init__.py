"""From configuration to the immutable `Policy` snapshot that every decision reads, and to what was revoked.

Two sources fill the same snapshot, and nobody outside knows which: the `POLICY` dict of the settings, for limits
that are part of a deployment, or (when there is none) the models that the admin edits.
"""

from __future__ import annotations

from .current import Facts, PolicyUnavailable, Watch, get_policy, resolve_tenant, wake, watch
from .from_settings import BUILT_IN, problems

__all__ = [
    "BUILT_IN",
    "Facts",
    "PolicyUnavailable",
    "Watch",
    "get_policy",
    "problems",
    "resolve_tenant",
    "wake",
    "watch",
]
