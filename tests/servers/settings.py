"""The demo's settings for the tests' servers: a few more tenants, GZip in front, and every warning with its level."""

from __future__ import annotations

from project.demo_policy import POLICY as DEMO_POLICY
from project.settings import *  # noqa: F403
from project.settings import LOGGING, MIDDLEWARE
from project.settings import SSE_LIMITS as DEMO

ROOT_URLCONF = "tests.servers.urls"
MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *MIDDLEWARE]

LOGGING = {**LOGGING, "root": {"handlers": ["console"], "level": "WARNING"}}
LOGGING["loggers"] = {name: {**logger, "propagate": False} for name, logger in LOGGING["loggers"].items()}

CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

POLICY = {
    **DEMO_POLICY,
    "tiers": {**DEMO_POLICY["tiers"], "shut": {"user_limit": 5, "outage": "closed"}},
    "tenants": {
        **DEMO_POLICY["tenants"],
        "hooli": {"name": "Hooli", "tier": "free", "suspended": True},
        "vault": {"name": "Vault", "tier": "shut"},
        "small": {"name": "Small", "tier": "pro", "user_limit": 2},
    },
    "memberships": [
        *DEMO_POLICY["memberships"],
        {"user": "torn", "tenant": "acme"},
        {"user": "torn", "tenant": "globex"},
    ],
    "users": [{"tenant": "globex", "user": "gone", "suspended": True}],
}

# Dicts of their own: a test process that imports this goes by the demo's.
SSE_LIMITS = {**DEMO, "POLICY": POLICY}
