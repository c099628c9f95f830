"""The mailbox between pump and app: bounded whatever the app does, in order, and patient with an app that is alive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sse_limits.streams.mailbox import BYTES, MESSAGES, Mailbox

GONE = {"type": "websocket.disconnect", "code": 1006}
AT_ONCE = 0.01


def said(number: int) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": str(number)}


def large(size: int) -> dict[str, Any]:
    return {"type": "websocket.receive", "bytes": b"x" * size}


def piece(*, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x", "more_body": more}


async def accepted(mailbox: Mailbox, message: dict[str, Any], most: int = 1000) -> int:
    """How many of a message the mailbox takes from a client that does not stop, while nothing is taken from it."""
    count = 1
    while await mailbox.put(message, AT_ONCE):
        count += 1
        assert count <= most
    return count


@pytest.mark.parametrize(
    ("is_websocket", "message", "most"),
    [
        (True, said(1), 2 * MESSAGES),
        (True, large(BYTES // 4), 8),
        (True, large(3 * BYTES), 2),
        (False, piece(more=True), 1 + MESSAGES),
    ],
)
async def test_it_takes_a_mailbox_and_as_much_again(is_websocket: bool, message: dict[str, Any], most: int) -> None:
    assert await accepted(Mailbox(is_websocket=is_websocket), message) == most


async def test_an_app_that_falls_further_behind_has_no_more_spare_room_though_it_takes_some() -> None:
    mailbox = Mailbox(is_websocket=True)
    count = 1
    while await mailbox.put(said(count), AT_ONCE):
        count += 1
        if count > MESSAGES + 1 and count % 4 == 0:
            await mailbox.take()
        assert count <= 3 * MESSAGES


async def test_an_app_that_takes_one_message_a_keepalive_is_waited_for() -> None:
    mailbox = Mailbox(is_websocket=True)
    for number in range(MESSAGES - 1):
        assert await mailbox.put(said(number), AT_ONCE)
    for number in range(2 * MESSAGES):
        assert await mailbox.put(said(MESSAGES - 1 + number), AT_ONCE / 100)
        assert await mailbox.take() == said(number)


async def test_the_spare_room_is_there_again_when_the_app_has_caught_up() -> None:
    mailbox = Mailbox(is_websocket=True)
    for number in range(2 * MESSAGES - 1):
        assert await mailbox.put(said(number), AT_ONCE)
    assert [await mailbox.take() for _ in range(2 * MESSAGES - 1)] == [said(n) for n in range(2 * MESSAGES - 1)]
    assert await accepted(mailbox, said(1)) == 2 * MESSAGES


async def test_a_pump_that_waits_goes_on_when_something_is_taken_or_nothing_will_be() -> None:
    mailbox = Mailbox(is_websocket=True)
    for number in range(MESSAGES - 1):
        assert await mailbox.put(said(number), 10)
    for let_go in (mailbox.take, lambda: asyncio.sleep(0, mailbox.close(GONE))):
        waiting = asyncio.ensure_future(mailbox.put(said(-1), 10))
        await asyncio.sleep(0)
        assert not waiting.done()
        await let_go()
        assert await asyncio.wait_for(waiting, 1)


async def test_what_comes_after_the_end_is_dropped_and_what_came_before_is_not() -> None:
    mailbox = Mailbox(is_websocket=True)
    assert await mailbox.put(said(1), AT_ONCE)
    mailbox.close(GONE)
    assert await mailbox.put(said(2), AT_ONCE)
    assert [await mailbox.take() for _ in range(3)] == [said(1), GONE, GONE]


async def test_the_last_piece_of_a_body_never_waits() -> None:
    mailbox = Mailbox(is_websocket=False)
    assert await asyncio.wait_for(mailbox.put(piece(more=False), 10), 1)
