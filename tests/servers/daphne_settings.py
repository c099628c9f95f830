"""The demo's settings, with room for a hundred streams from one address."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - settings are made to be taken over whole
from project.settings import SSE_LIMITS

POLICY = SSE_LIMITS["POLICY"]
ANONYMOUS = {**POLICY["tiers"]["anonymous"], "address_limit": 500}
SSE_LIMITS = {**SSE_LIMITS, "POLICY": {**POLICY, "tiers": {**POLICY["tiers"], "anonymous": ANONYMOUS}}}
