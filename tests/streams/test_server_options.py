"""What is said of a server's options: every need names its option and a value, and none is said where it is met."""

from __future__ import annotations

import functools
import sys
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any

import pytest
from django.test import override_settings
from hypercorn.asyncio.lifespan import Lifespan
from hypercorn.config import Config as HypercornConfig
from uvicorn.config import Config as UvicornConfig
from uvicorn.lifespan.on import LifespanOn

from sse_limits.streams.server_options import NEEDS, STOCK_DAPHNE, missing, recognise, tell_missing


async def app(scope: Any, receive: Any, send: Any) -> None:
    """What uvicorn would serve."""


def uvicorn(**options: Any) -> Any:
    """The `send` of a lifespan of uvicorn with these options."""
    return LifespanOn(UvicornConfig(app, log_config=None, **options)).send


def told(send: Any) -> set[str]:
    return {str(found.id).removeprefix("sse_limits.") for found in missing(*recognise(send))}


GOOD = {"proxy_headers": False, "timeout_graceful_shutdown": 3}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (GOOD, set()),
        ({}, {"W006", "W008"}),
        (GOOD | {"timeout_graceful_shutdown": 0}, set()),
        (GOOD | {"limit_concurrency": 1000}, {"W005"}),
        (GOOD | {"ws_ping_interval": None}, {"W007"}),
        (GOOD | {"ws_ping_interval": 0}, {"W007"}),
    ],
)
def test_uvicorn(options: dict[str, Any], expected: set[str]) -> None:
    assert told(uvicorn(**options)) == expected


@pytest.mark.parametrize(("interval", "expected"), [(None, {"W007"}), (20.0, set())])
async def test_hypercorn(interval: float | None, expected: set[str]) -> None:
    config = HypercornConfig()
    config.websocket_ping_interval = interval
    lifespan = Lifespan(None, config, None, {})  # type: ignore[arg-type]
    assert told(lifespan.asgi_send) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/usr/bin/granian", "--backpressure", "100000", "--workers-kill-timeout", "4", "app:app"], set()),
        (["/x/granian/__main__.py", "--backpressure=100000", "--workers-kill-timeout=4", "app:app"], set()),
        (["granian", "app:app", "--workers-kill-timeout", "4s", "--backpressure", "100"], {"W005"}),
        (["granian", "app:app", "--backlog", "128", "--workers", "2"], {"W005", "W006"}),
        (["granian", "--no-such-option"], set()),
        (["serve.py"], set()),
        ([""], set()),
    ],
)
def test_granian(monkeypatch: pytest.MonkeyPatch, command: list[str], expected: set[str]) -> None:
    from granian.asgi import LifespanProtocol

    assert getrlimit(RLIMIT_NOFILE)[0] > 128
    monkeypatch.setattr(sys, "argv", command)
    assert told(LifespanProtocol(None).send) == expected


def test_options_of_granian_from_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from granian.asgi import LifespanProtocol

    monkeypatch.setattr(sys, "argv", ["granian", "app:app"])
    monkeypatch.setenv("GRANIAN_BACKPRESSURE", "100000")
    monkeypatch.setenv("GRANIAN_WORKERS_KILL_TIMEOUT", "4")
    assert told(LifespanProtocol(None).send) == set()


async def test_what_is_not_recognised_is_not_judged() -> None:
    class Wrapper:
        async def send(self, message: object) -> None: ...

    async def send(message: object) -> None: ...

    for unknown in (None, send, Wrapper().send, functools.partial(send), object()):
        assert told(unknown) == set()


def test_a_need_is_logged_in_one_line_with_its_option_and_value(caplog: pytest.LogCaptureFixture) -> None:
    tell_missing(uvicorn(proxy_headers=False))
    assert [record.getMessage() for record in caplog.records] == [
        "uvicorn runs without --timeout-graceful-shutdown: when it is told to stop, a stream that does not end holds "
        "the process for ever. Start it with --timeout-graceful-shutdown 3. (sse_limits.W006)"
    ]


def test_a_need_can_be_silenced_like_a_check(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(SILENCED_SYSTEM_CHECKS=["sse_limits.W006"]):
        tell_missing(uvicorn(proxy_headers=False))
    assert caplog.records == []


def test_every_need_says_what_to_write() -> None:
    for server, needs in NEEDS.items():
        for need in needs:
            assert need is STOCK_DAPHNE or "--" in need.says, server
            assert need.advice.startswith(("Start it with", "List ")), server
            assert need.advice.endswith("."), server
            assert need.says.endswith("."), server
