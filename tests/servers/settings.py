"""The demo's settings for the tests' servers: a few more tenants, GZip in front, and every warning with its level."""

from __future__ import annotations

from project.demo_policy import POLICY
from project.settings import *  # noqa: F403
from project.settings import LOGGING, MIDDLEWARE, SSE_LIMITS

ROOT_URLCONF = "tests.servers.urls"
MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *MIDDLEWARE]

LOGGING = {**LOGGING, "root": {"handlers": ["console"], "level": "WARNING"}}
LOGGING["loggers"] = {name: {**logger, "propagate": False} for name, logger in LOGGING["loggers"].items()}

CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

_policy = POLICY
SSE_LIMITS["POLICY"] = {
    **_policy,
    "tiers": {**_policy["tiers"], "shut": {"user_limit": 5, "outage": "closed"}},
    "tenants": {
        **_policy["tenants"],
        "hooli": {"name": "Hooli", "tier": "free", "suspended": True},
        "vault": {"name": "Vault", "tier": "shut"},
        "small": {"name": "Small", "tier": "pro", "user_limit": 2},
    },
    "memberships": [
        *_policy["memberships"],
        {"user": "torn", "tenant": "acme"},
        {"user": "torn", "tenant": "globex"},
    ],
    "users": [{"tenant": "globex", "user": "gone", "suspended": True}],
}
