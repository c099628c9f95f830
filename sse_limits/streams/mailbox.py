"""A mailbox: what the pump has received for the app and the app has not taken yet, bounded.

HTTP: one message, unless it ends the request. WebSocket: 64 messages or 1 MiB; when it is full the pump pauses, and
with it the server's reading. But a server that does not read learns of no disconnect: for it stands behind what was
sent before. So a full mailbox from which nothing was taken for a while has spare room, 64 messages or 1 MiB more, in
which the disconnect may be found; when that is full too, its app is given up.
"""

from __future__ import annotations

import asyncio
from typing import Any

Message = dict[str, Any]

MESSAGES = 64
BYTES = 1 << 20


class Mailbox:
    """Between one pump and one app, on one event loop."""

    __slots__ = (
        "_bytes",
        "_is_in_spare",
        "_is_websocket",
        "_messages",
        "_room",
        "_spare_bytes",
        "_spare_messages",
        "_waiters",
        "last",
    )

    def __init__(self, *, is_websocket: bool) -> None:
        self.last: Message | None = None
        self._is_websocket = is_websocket
        self._messages: list[Message] = []
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None
        self._is_in_spare = False
        self._spare_messages = MESSAGES
        self._spare_bytes = BYTES

    async def put(self, message: Message, patience_seconds: float) -> bool:
        """Hand a message over; waits while there is no room for another. Once it is closed, messages are dropped.

        When nothing is taken for `patience_seconds` the spare room is used; False when no more of it is left. What was
        used of it is there again once the mailbox is no longer full.
        """
        if self.last is not None:
            return True
        self._messages.append(message)
        self._bytes += size(message)
        self._wake()
        if self._is_in_spare:
            self._spare_messages -= 1
            self._spare_bytes -= size(message)
        while self._is_full(message) and not self._is_in_spare:
            self._room = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(patience_seconds):
                    await self._room
            except TimeoutError:
                self._is_in_spare = True
        return self._spare_messages > 0 and self._spare_bytes > 0

    async def take(self) -> Message:
        """The oldest message; when all are taken and the mailbox is closed, its last one, again and again."""
        while not self._messages:
            if self.last is not None:
                return self.last
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)  # more than one: apps ask again before a call that they gave up has ended
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        message = self._messages.pop(0)
        self._bytes -= size(message)
        self._is_in_spare = False
        if not self._is_full(message):
            self._spare_messages, self._spare_bytes = MESSAGES, BYTES
        self._make_room()
        return message

    def close(self, last: Message) -> None:
        """Nothing more comes but the disconnect."""
        if self.last is None:
            self.last = last
            self._make_room()
        self._wake()

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _is_full(self, newest: Message) -> bool:
        if self.last is not None:
            return False
        if not self._is_websocket:
            return bool(self._messages) and newest.get("more_body", False)
        return len(self._messages) >= MESSAGES or self._bytes >= BYTES

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def size(message: Message) -> int:
    """How much room a message takes, in bytes (text: in characters)."""
    return len(message.get("bytes") or message.get("text") or message.get("body") or b"")


def is_disconnect(message: Message) -> bool:
    """Whether a message says that the client has gone."""
    return bool(message["type"] in ("http.disconnect", "websocket.disconnect"))
