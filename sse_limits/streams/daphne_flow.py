"""How our daphne holds back: gate and inbox of a connection, and closing without losing or keeping what is unsent.

All on Twisted's event loop. Whoever sends waits at the gate; what a client sends waits in the inbox.
"""

from __future__ import annotations

import asyncio
from typing import Any

from twisted.internet.interfaces import IPushProducer
from twisted.protocols.policies import ProtocolWrapper
from zope.interface import implementer

Message = dict[str, Any]

INBOX_MESSAGES = 64
INBOX_BYTES = 1 << 20
LINGER_SECONDS = 2.0
FLUSH_SECONDS = 30.0


@implementer(IPushProducer)
class Gate:
    """Closed while Twisted holds more than its high-water mark (64 KiB) for a client, until it has given all away."""

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        self._waiting: list[asyncio.Future[None]] = []

    def pauseProducing(self) -> None:
        self.is_open = False

    def resumeProducing(self) -> None:
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    stopProducing = resumeProducing  # the connection is lost: whoever waits will see that

    async def wait(self) -> None:
        """Return when there is room, or nobody left to send to."""
        while not self.is_open:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            finally:
                if future in self._waiting:
                    self._waiting.remove(future)


class Inbox:
    """What a client has sent and its app has not received: the little of `asyncio.Queue` that daphne uses.

    It never refuses a message; who fills it looks at `is_full`, and is told by `on_room` once half of it is free.
    """

    __slots__ = ("_bytes", "_messages", "_waiting", "on_room")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.on_room: Any = None

    @property
    def is_full(self) -> bool:
        """Whether the client should be read no further."""
        return len(self._messages) >= INBOX_MESSAGES or self._bytes >= INBOX_BYTES

    def put_nowait(self, message: Message) -> None:
        """Add a message."""
        self._messages.append(message)
        self._bytes += _size(message)
        self._wake()

    async def get(self) -> Message:
        """The app's `receive`."""
        while not self._messages:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future in self._waiting:
                    self._waiting.remove(future)
                elif self._messages:
                    self._wake()  # it was woken and will not come: the next one takes its place
                raise
        message = self._messages.pop(0)
        self._bytes -= _size(message)
        if self.on_room is not None and len(self._messages) * 2 <= INBOX_MESSAGES and self._bytes * 2 <= INBOX_BYTES:
            self.on_room()
        return message

    def _wake(self) -> None:
        while self._waiting:
            future = self._waiting.pop(0)
            if not future.done():
                future.set_result(None)
                return


def _size(message: Message) -> int:
    return len(message.get("bytes") or message.get("text") or message.get("body") or b"")


def unsent(transport: Any) -> int:
    """How many bytes Twisted holds for a client: those that the kernel has not taken yet."""
    held = sum(map(len, getattr(transport, "_appSendBuffer", ())))  # TLS keeps a buffer above the socket's
    while not hasattr(transport, "_tempDataLen"):
        transport = getattr(transport, "transport", None)
        if transport is None:
            return held
    return held + int(transport._tempDataLen) + len(transport.dataBuffer) - int(transport.offset)


def abort_unless_flushed(transport: Any) -> None:
    """Reset a connection that is being closed, once its client has taken nothing for FLUSH_SECONDS."""
    left = unsent(transport)
    if left:
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, _look_at_flush, transport, left)


def _look_at_flush(transport: Any, left_before: int) -> None:
    left = unsent(transport)
    if transport.disconnected or not left:
        return
    if left >= left_before:
        transport.abortConnection()
    else:
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, _look_at_flush, transport, left)


def linger(transport: Any) -> None:
    """End the stream to the client, and let it end its own.

    A socket closed with unread bytes sends a reset, which may take the answer away from under the client.
    """
    is_tls = isinstance(transport, ProtocolWrapper)
    if is_tls:  # it has a goodbye of its own
        transport.loseConnection()
        return
    transport.resumeProducing()
    transport.loseWriteConnection()
    asyncio.get_running_loop().call_later(LINGER_SECONDS, _end_lingering, transport)


def _end_lingering(transport: Any) -> None:
    if unsent(transport):
        abort_unless_flushed(transport)
    elif not transport.disconnected:
        transport.abortConnection()
