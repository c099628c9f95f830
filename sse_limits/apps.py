"""The Django app: registers the system checks and connects the signals."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class SseLimitsConfig(AppConfig):
    """`sse_limits` in INSTALLED_APPS."""

    name = "sse_limits"
    verbose_name = "Stream limits"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and receivers; nothing else happens before the first request."""
        from . import checks, signals

        register(checks.check_settings)
        register(checks.check_policy)
        register(checks.check_store)
        register(checks.check_guard)
        register(checks.check_daphne)
        signals.connect()
