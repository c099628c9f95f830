"""The demo's tiers, tenants and memberships: the main ways in which limits differ."""

from __future__ import annotations

from typing import Any

MESSAGES = {"max_message_bytes": 64 * 1024}

POLICY: dict[str, Any] = {
    "tiers": {
        "anonymous": {"name": "Anonymous", "address_limit": 20, "outage": "closed"},
        "free": {**MESSAGES, "name": "Free", "user_limit": 5, "tenant_limit": 50, "at_user_limit": "reject"},
        "pro": {**MESSAGES, "name": "Pro", "user_limit": 10, "tenant_limit": 200, "at_user_limit": "evict"},
        "realtime": {**MESSAGES, "name": "Realtime", "user_limit": 20, "tenant_limit": 500, "at_user_limit": "evict"},
    },
    "tenants": {
        "globex": {"name": "Globex", "tier": "free"},
        "acme": {"name": "Acme", "tier": "pro"},
        "initech": {"name": "Initech", "tier": "realtime"},
    },
    "memberships": [
        {"user": "gina", "tenant": "globex"},
        {"user": "gus", "tenant": "globex"},
        {"user": "alice", "tenant": "acme"},
        {"user": "aron", "tenant": "acme"},
        {"user": "irma", "tenant": "initech"},
        {"user": "marta", "tenant": "acme", "is_default": True},
        {"user": "marta", "tenant": "globex"},
    ],
}
