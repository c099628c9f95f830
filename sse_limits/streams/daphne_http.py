"""HTTP on our daphne: back-pressure, no body where none belongs, and an end for every response."""

from __future__ import annotations

import asyncio
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from twisted.internet.error import ConnectionAborted
from twisted.python.failure import Failure
from twisted.web.http import NO_BODY_CODES

from .daphne_flow import Gate, Message, abort_unless_flushed, unsent

HTTP2_HELD_BYTES = 1 << 16
HTTP2_LOOK_SECONDS = 0.05


class Request(WebRequest):  # type: ignore[misc] # daphne has no types
    """One HTTP request and its response. Under HTTP/2 it has no `transport`: its `channel` is one stream of many."""

    is_websocket = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.gate = Gate()
        super().__init__(*args, **kwargs)

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return bool(self.finished or self.channel is None)

    def process(self) -> Any:
        """Start the app; an upgrade leaves the rest of what was read to the WebSocket.

        daphne leaves it in the channel, where it is lost, and where too much of it stops the reading for good.
        """
        channel, transport = self.channel, self.transport
        done = super().process()
        if transport is not None and self.transport is None:
            websocket = getattr(transport, "wrappedProtocol", None) or getattr(transport, "protocol", None)
            if websocket is not None and websocket is not channel:
                channel.rawDataReceived = websocket.dataReceived
        return done

    def handle_reply(self, message: Message) -> None:
        """Pass on what the app sends; a response without a body gets none, whatever the app says."""
        if self.is_over:
            return
        match message.get("type"):
            case "http.response.start":
                super().handle_reply(message)
                self.registerProducer(self.gate, True)  # noqa: FBT003 - Twisted's
            case "http.response.body" if self.method == b"HEAD" or self.code in NO_BODY_CODES:
                super().handle_reply({**message, "body": b""})
            case _:
                super().handle_reply(message)

    def finish(self) -> None:
        """The response is complete. What Twisted still holds of it has to leave in time."""
        if self.producer:
            self.unregisterProducer()
        transport = self.transport
        super().finish()
        if transport is not None:
            abort_unless_flushed(transport)

    def handle_exception(self, exception: BaseException) -> None:
        """The app failed. (daphne would start a second response, and lose its checker over the error of that.)"""
        if self._response_started:
            self._cut_short()
        else:
            super().handle_exception(exception)

    def app_ended(self, *, exception: BaseException | None, is_cancelled: bool) -> None:
        """The app has ended. (daphne would leave a response without an end, and its connection, open for ever.)"""
        if self.is_over:
            return
        if exception is not None:
            self.handle_exception(exception)
        elif self._response_started:
            self._cut_short()
        elif is_cancelled:
            self.basic_error(503, b"Service Unavailable", "This server restarts.")
        else:
            self.basic_error(500, b"Internal Server Error", "The application did not answer.")

    def _cut_short(self) -> None:
        """Close the connection, so that the client sees that something is missing."""
        if not self.gate.is_open or self.transport is None:
            self.abort()
            return
        transport = self.transport
        self.loseConnection()
        abort_unless_flushed(transport)

    def shut(self) -> None:
        """The server stops: nothing to say, the connection ends with the process."""

    def abort(self) -> None:
        """Reset the connection now, whatever is still to be written; of HTTP/2 only this stream."""
        if self.transport is None:
            if not self.is_over:
                self.channel.abortConnection()
                # Twisted tells only of the client's resets.
                self.connectionLost(Failure(ConnectionAborted()))  # type: ignore[no-untyped-call]
        elif not self.is_over or unsent(self.transport):  # else it may already serve the next request
            self.transport.abortConnection()

    async def wait_for_room(self) -> None:
        """Return when the client has taken enough of what was sent, or has gone.

        HTTP/2 closes the gate by the client's window only, which may be as large as it likes.
        """
        await self.gate.wait()
        while self.transport is None and self.write_buffer_size() > HTTP2_HELD_BYTES:
            await asyncio.sleep(HTTP2_LOOK_SECONDS)
            await self.gate.wait()

    def write_buffer_size(self) -> int:
        """How many bytes wait for the client in this process."""
        if self.transport is not None:
            return unsent(self.transport)
        if self.is_over:
            return 0
        queue = self.channel._conn._outboundStreamQueues.get(self.channel.streamID, ())
        return sum(len(data) for data in queue if isinstance(data, bytes))


class RequestFactory(HTTPFactory):  # type: ignore[misc] # daphne has no types
    """Makes the channels whose requests are ours."""

    def buildProtocol(self, addr: Any) -> Any:
        channel = super().buildProtocol(addr)
        channel.requestFactory = Request
        return channel
