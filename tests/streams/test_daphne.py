"""What our daphne server stands on: if this fails after an update, its message says what the update broke."""

from __future__ import annotations

import asyncio
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import daphne.server
import pytest
from django.core.management import load_command_class

from sse_limits.streams import daphne as ours
from sse_limits.streams import daphne_flow
from sse_limits.streams.daphne_flow import INBOX_BYTES, INBOX_MESSAGES, Gate, Inbox
from sse_limits.streams.daphne_hooks import HOOKS, TESTED_DAPHNE, Hook, incompatibilities
from sse_limits.streams.daphne_websocket import _head

PYPROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())


def test_this_daphne_has_all_that_our_server_stands_on() -> None:
    assert incompatibilities() == [], "read what changed in these functions before you allow this version"


def test_the_allowed_versions_are_those_that_were_looked_at() -> None:
    (allowed,) = [item for item in PYPROJECT["project"]["dependencies"] if item.startswith("daphne")]
    assert allowed == "daphne>=4.2,<4.3"
    assert TESTED_DAPHNE == "4.2."


def test_every_hook_says_why_it_matters() -> None:
    assert [hook.name for hook in HOOKS if not hook.why] == []


class Other:
    def moved(self, one: int, other: int) -> None:
        self.used = one

    def renamed(self) -> None: ...


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        (Hook(Other, "gone", "", why="we need it"), r"Other\.gone is gone: we need it"),
        (Hook(Other, "moved", "one more"), r"Other\.moved takes \(one, other\), not \(one, more\)"),
        (Hook(Other, "moved", "one", "used unused"), r"Other\.moved no longer uses unused"),
    ],
)
def test_a_broken_hook_is_named(hook: Hook, problem: str) -> None:
    (found,) = hook.problems()
    assert re.search(problem, found)


def test_another_daphne_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daphne, "__version__", "4.3.0")
    assert incompatibilities() == ["daphne 4.3.0 is not one of 4.2.x, which our server was made for"]


def test_what_is_missing_is_warned_of_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ours, "incompatibilities", lambda: ["this is gone", "that is gone"])
    monkeypatch.setattr(ours.reactor, "callLater", lambda *_: None)
    monkeypatch.setattr(daphne.server.Server, "run", lambda _: None)
    monkeypatch.setattr(ours.log, "propagate", True)
    ours.Server(None, endpoints=["tcp:port=0"]).run()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "this is gone; that is gone" in record.getMessage()


# -- the ways in -----------------------------------------------------------------------------------------------------


def test_the_entry_point_starts_our_server() -> None:
    module, _, name = PYPROJECT["project"]["scripts"]["sse-limits-daphne"].partition(":")
    assert getattr(import_module(module), name) is ours.main
    assert ours.CommandLine.server_class is ours.Server


def test_the_command_line_leaves_forwarded_addresses_alone_and_allows_16_mib() -> None:
    line = ours.CommandLine()
    args = line.parser.parse_args(["some:app"])
    assert line._get_forwarded_host(args) is None
    assert args.websocket_max_message_size == args.websocket_max_frame_size == 16 * 1024 * 1024


@pytest.mark.parametrize(("options", "expected"), [({}, 16 << 20), ({"websocket_max_message_size": 5}, 5)])
def test_the_limit_of_messages_is_the_servers_or_the_callers(options: dict[str, Any], expected: int) -> None:
    assert ours.Server(None, endpoints=["tcp:port=0"], **options).websocket_max_message_size == expected


def test_runserver_has_our_server() -> None:
    assert load_command_class("sse_limits", "runserver").server_cls is ours.Server


# -- the parts -------------------------------------------------------------------------------------------------------


async def test_a_gate_lets_all_who_wait_through_at_once() -> None:
    gate = Gate()
    await gate.wait()
    gate.pauseProducing()
    waiting = [asyncio.ensure_future(gate.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    gate.resumeProducing()
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting[1:])
    assert waiting[0].cancelled()


async def test_an_inbox_is_full_by_number_or_size_and_tells_when_half_is_free() -> None:
    told: list[bool] = []
    inbox = Inbox()
    inbox.on_room = lambda: told.append(True)
    for _ in range(INBOX_MESSAGES):
        assert not inbox.is_full
        inbox.put_nowait({"type": "websocket.receive", "text": "x"})
    assert inbox.is_full
    for _ in range(INBOX_MESSAGES // 2):
        assert told == []
        await inbox.get()
    assert told == [True]
    inbox.put_nowait({"type": "websocket.receive", "bytes": bytes(INBOX_BYTES)})
    assert inbox.is_full


async def test_a_cancelled_receive_loses_no_message() -> None:
    inbox = Inbox()
    first, second = asyncio.ensure_future(inbox.get()), asyncio.ensure_future(inbox.get())
    await asyncio.sleep(0)
    inbox.put_nowait({"type": "one"})
    first.cancel()
    async with asyncio.timeout(1):
        assert await second == {"type": "one"}


@pytest.mark.parametrize("header", [(b"x", b"a\r\nb"), (b"x\n", b"a"), (b"x", b"\0")])
def test_a_denial_takes_no_header_with_a_line_end(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="line end"):
        _head(429, [header], length=0)


class Transport:
    """What `unsent` reads of a Twisted transport."""

    def __init__(self, held: int) -> None:
        self._tempDataLen = 0
        self.dataBuffer = bytes(held)
        self.offset = 0
        self.disconnected = False
        self.aborted = asyncio.Event()

    def abortConnection(self) -> None:
        self.aborted.set()


async def test_a_connection_that_is_being_closed_is_reset_once_its_client_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daphne_flow, "FLUSH_SECONDS", 0.02)
    slow, stalled = Transport(1000), Transport(1000)
    for transport in (slow, stalled):
        daphne_flow.abort_unless_flushed(transport)
    async with asyncio.timeout(5):
        while not stalled.aborted.is_set():
            slow.offset += 1
            await asyncio.sleep(0.001)
    assert not slow.aborted.is_set()
    slow.offset = 1000
