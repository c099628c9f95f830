"""The demo's settings, with room for a hundred streams from one address."""

from __future__ import annotations

from project.demo_policy import POLICY
from project.settings import *  # noqa: F403 - settings are made to be taken over whole
from project.settings import SSE_LIMITS as DEMO

ANONYMOUS = {**POLICY["tiers"]["anonymous"], "address_limit": 500}
SSE_LIMITS = {**DEMO, "POLICY": {**POLICY, "tiers": {**POLICY["tiers"], "anonymous": ANONYMOUS}}}
