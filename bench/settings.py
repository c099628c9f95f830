"""The demo's settings with a policy of the benchmarks: `globex` as in the demo, and tenants that meet no limit."""

from __future__ import annotations

from typing import Any

from project.settings import *  # noqa: F403 - a variant of these settings
from project.settings import SSE_LIMITS as DEMO

AMPLE = 1_000_000

POLICY: dict[str, Any] = {
    "tiers": {
        "anonymous": {"address_limit": 20},
        "free": {"user_limit": 5, "tenant_limit": 50},
        "ample": {"user_limit": AMPLE, "tenant_limit": AMPLE},
        "evicting": {"user_limit": AMPLE, "tenant_limit": 5, "at_user_limit": "evict"},
    },
    "tenants": {
        "globex": {"tier": "free"},
        "single": {"tier": "free", "user_limit": 1},
        "counted": {"tier": "free", "address_limit": AMPLE},
        "ample": {"tier": "ample"},
        "busy": {"tier": "evicting"},
    },
}

SSE_LIMITS = {**DEMO, "POLICY": POLICY}
