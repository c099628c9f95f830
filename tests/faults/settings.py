"""The settings of the servers under faults: a tenant with room for crowds, whose users are held to five."""

from __future__ import annotations

from tests.servers.settings import *  # noqa: F403
from tests.servers.settings import POLICY
from tests.servers.settings import SSE_LIMITS as OTHERS

TENANT = "faulty"
USER_LIMIT = 5
TENANT_LIMIT = 1000

SSE_LIMITS = {
    **OTHERS,
    "POLICY": {
        **POLICY,
        "tenants": {
            **POLICY["tenants"],
            TENANT: {"name": "Faulty", "tier": "free", "user_limit": USER_LIMIT, "tenant_limit": TENANT_LIMIT},
            "addressed": {
                "name": "Addressed",
                "tier": "free",
                "tenant_limit": TENANT_LIMIT,
                "address_limit": USER_LIMIT,
            },
            "evicting": {"name": "Evicting", "tier": "pro", "user_limit": USER_LIMIT},
        },
    },
}
