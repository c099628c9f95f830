"""What streams need of the server under us that is not its default: each option, the value to write, and why.

One table for `manage.py check` and for the servers themselves. A server's options are known only in its own processes;
there they are read from what its `send` belongs to, and what is missing is logged once, when the node starts. A server
that is not recognised, behind a wrapped `send` or started by a program of one's own, is not judged.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from types import SimpleNamespace
from typing import Any, NamedTuple

from django.core.checks import Warning

from .servers import transport_of

log = logging.getLogger("sse_limits.streams.server_options")

BACKPRESSURE = 100_000


class Need(NamedTuple):
    """One row: whether a server's options (any object with them as attributes) meet it, and what is said if not."""

    check: str
    is_met: Callable[[Any], bool]
    says: str  # {0} is the options
    advice: str

    def warning(self, options: Any) -> Warning:
        """The check message."""
        return Warning(self.says.format(options), hint=self.advice, id=f"sse_limits.{self.check}")


_HOLDS = "when it is told to stop, a stream that does not end holds the process for ever."
_VANISHES = "a WebSocket client that vanishes without a word keeps its slot."
_REWRITES = "it rewrites clients' addresses by its own reading of X-Forwarded-For, before TRUSTED_PROXIES are asked."
_TRUST = "and name the proxies in SSE_LIMITS['TRUSTED_PROXIES']."

STOCK_DAPHNE = Need(
    "W004", lambda options: False,
    "This is stock daphne: it takes whatever a stream sends into memory, and answers a rejected WebSocket with a bare "
    "403.",
    "List 'sse_limits' before 'daphne' in INSTALLED_APPS for runserver; on the command line start sse-limits-daphne.",
)  # fmt: skip

NEEDS: dict[str, tuple[Need, ...]] = {
    "uvicorn": (
        Need(
            "W005", lambda options: options.limit_concurrency is None,
            "uvicorn runs with --limit-concurrency {0.limit_concurrency}: each stream counts, and above it clients get "
            "a bare 503, after which browsers do not come back.",
            "Start it without: SSE_LIMITS['POLICY'] is the limit.",
        ),
        Need(
            "W006", lambda options: options.timeout_graceful_shutdown is not None,
            f"uvicorn runs without --timeout-graceful-shutdown: {_HOLDS}",
            "Start it with --timeout-graceful-shutdown 3.",
        ),
        Need(
            "W007", lambda options: bool(options.ws_ping_interval),
            f"uvicorn runs without --ws-ping-interval: {_VANISHES}",
            "Start it with --ws-ping-interval 20.",
        ),
        Need(
            "W008", lambda options: not options.proxy_headers,
            f"uvicorn runs with --proxy-headers, which is its default: {_REWRITES}",
            f"Start it with --no-proxy-headers, {_TRUST}",
        ),
    ),
    "granian": (
        Need(
            "W005", lambda options: options.backpressure >= enough_connections(),
            "granian runs with --backpressure {0.backpressure}: each stream counts, and connections above it hang "
            "without an answer.",
            f"Start it with --backpressure {BACKPRESSURE}.",
        ),
        Need(
            "W006", lambda options: bool(options.workers_kill_timeout),
            f"granian runs without --workers-kill-timeout: {_HOLDS}",
            "Start it with --workers-kill-timeout 4.",
        ),
    ),
    "hypercorn": (
        Need(
            "W007", lambda options: bool(options.websocket_ping_interval),
            f"hypercorn runs without --websocket-ping-interval: {_VANISHES}",
            "Start it with --websocket-ping-interval 20.",
        ),
    ),
    "daphne": (
        Need(
            "W007", lambda options: bool(options.ping_interval),
            f"daphne runs with --ping-interval 0: {_VANISHES}",
            "Start it with --ping-interval 20.",
        ),
        Need(
            "W008", lambda options: options.proxy_forwarded_address_header is None,
            f"daphne runs with --proxy-headers: {_REWRITES}",
            f"Start it without, {_TRUST}",
        ),
    ),
    "stock daphne": (STOCK_DAPHNE,),
}  # fmt: skip


def enough_connections() -> int:
    """As many as this process has descriptors for: below that, our own limits and the kernel's speak first."""
    soft = getrlimit(RLIMIT_NOFILE)[0]
    return BACKPRESSURE if soft == RLIM_INFINITY else min(soft, BACKPRESSURE)


def tell_missing(send: Any) -> None:
    """Log what the server that this `send` belongs to lacks; each can be silenced like a system check."""
    for found in missing(*recognise(send)):
        if not found.is_silenced():
            log.warning("%s %s (%s)", found.msg, found.hint, found.id)


def missing(server: str, options: Any) -> Iterator[Warning]:
    """What a server's options lack; one that this version does not have is not asked for."""
    for need in NEEDS.get(server, ()):
        with suppress(AttributeError):
            if not need.is_met(options):
                yield need.warning(options)


def recognise(send: Any) -> tuple[str, Any]:
    """Which server a `send` belongs to, and its options; an empty name, or None, where that is not known.

    All of it is private to the servers; `tests/servers/test_options.py` starts each to see whether it still holds.
    """
    owner = getattr(getattr(send, "func", send), "__self__", None)  # daphne's is a partial
    if any(base.__module__ == "daphne.server" for base in type(owner).__mro__):
        is_stock = type(owner).__module__ == "daphne.server"  # ours may be `__main__`
        return "stock daphne" if is_stock else "daphne", owner
    match type(owner).__module__.partition(".")[0]:
        case "uvicorn":
            transport = transport_of(send)  # of an HTTP request, whose cycle knows no configuration
            return "uvicorn", getattr(owner if transport is None else transport.get_protocol(), "config", None)
        case "hypercorn":
            return "hypercorn", getattr(owner, "config", None)
        case "granian":
            return "granian", _granian_options()
    return "", None


def _granian_options() -> Any:
    """Its workers keep no options where Python sees them, but have its command line, which its own parser reads."""
    program = Path(sys.argv[0])
    if "granian" not in (program.name, program.parent.name):
        return None
    from click import ClickException
    from granian.cli import cli

    try:
        given = cli.make_context("granian", sys.argv[1:], auto_envvar_prefix="GRANIAN").params
        in_force = given["backpressure"] or max(1, given["backlog"] // given["workers"])
        return SimpleNamespace(backpressure=in_force, workers_kill_timeout=given["workers_kill_timeout"])
    except (ClickException, KeyError):
        return None
