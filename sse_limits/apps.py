"""The Django app: registers the checks, connects the signals, and opens the live room where there is an admin."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig, apps
from django.core.checks import register


class SseLimitsConfig(AppConfig):
    """`sse_limits` in INSTALLED_APPS."""

    name = "sse_limits"
    verbose_name = "Stream limits"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks, receivers and the room; nothing else happens before the first request."""
        from . import checks, signals

        register(checks.check_settings)
        register(checks.check_policy)
        register(checks.check_store)
        register(checks.check_guard)
        register(checks.check_daphne)
        signals.connect()
        if apps.is_installed("django.contrib.admin"):
            import_module(".dashboard.room", __package__)
