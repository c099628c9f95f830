"""A mailbox: what the pump has received for the app and the app has not taken yet, bounded.

HTTP: one message, unless it ends the request. WebSocket: 64 messages or 1 MiB; when it is full the pump pauses, and
with it the server's reading.
"""

from __future__ import annotations

import asyncio
from typing import Any

Message = dict[str, Any]

MESSAGES = 64
BYTES = 1 << 20


class Mailbox:
    """Between one pump and one app, on one event loop."""

    __slots__ = ("_bytes", "_is_websocket", "_messages", "_room", "_waiters", "last")

    def __init__(self, *, is_websocket: bool) -> None:
        self.last: Message | None = None
        self._is_websocket = is_websocket
        self._messages: list[Message] = []
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._room: asyncio.Future[None] | None = None

    async def put(self, message: Message) -> None:
        """Hand a message over; waits while there is no room for another."""
        self._messages.append(message)
        self._bytes += size(message)
        self._wake()
        while self._is_full(message):
            self._room = asyncio.get_running_loop().create_future()
            await self._room

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
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return message

    def close(self, last: Message) -> None:
        """Nothing more comes but the disconnect."""
        if self.last is None:
            self.last = last
        self._wake()

    def _is_full(self, newest: Message) -> bool:
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
