"""WebSockets on our daphne: back-pressure both ways, denial before the upgrade, any close code and reason.

`WebSocket` is daphne's protocol over autobahn's; an app's messages come in by `handle_reply`, a client's leave by the
inbox that daphne calls `application_queue`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from daphne.ws_protocol import WebSocketProtocol

from .daphne_flow import Gate, Inbox, Message, abort_unless_flushed, linger, unsent

log = logging.getLogger("sse_limits.streams.daphne")

Headers = list[tuple[bytes, bytes]]

EARLY_BYTES = 1 << 16  # what a client may send before its WebSocket is accepted
REASON_BYTES = 123  # of a close frame
NORMAL, NO_CODE, ABNORMAL, INTERNAL_ERROR, RESTART = 1000, 1005, 1006, 1011, 1012


class ClientDisconnected(OSError):
    """`send` on a WebSocket that is over, as ASGI asks for."""


class WebSocket(WebSocketProtocol):  # type: ignore[misc] # daphne has no types
    """One WebSocket, from the request for it on."""

    is_websocket = True

    def connectionMade(self) -> None:
        """Take the connection over from the HTTP channel, which would go on being told of the write buffer."""
        self.server = self.factory.server_class
        self.gate = Gate()
        self._is_paused = False
        self._is_told = False
        self._denial: tuple[int, Headers] | None = None
        self._is_denied = False
        super().connectionMade()
        self.transport.unregisterProducer()
        self.transport.registerProducer(self.gate, True)  # noqa: FBT003 - Twisted's

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.state in (self.STATE_CLOSING, self.STATE_CLOSED)

    async def wait_for_room(self) -> None:
        """Return when the client has taken enough of what was sent, or has gone."""
        await self.gate.wait()

    # what the client sends

    def dataReceived(self, data: bytes) -> None:
        if self.state != self.STATE_CLOSED:
            super().dataReceived(data)

    def consumeData(self) -> None:
        """Take messages from what was read, as long as the inbox has room. Before the accept they only wait."""
        if self.state == self.STATE_CONNECTING and hasattr(self, "handshake_deferred"):
            if len(self.data) > EARLY_BYTES:
                self._pause()
        elif self.state in (self.STATE_OPEN, self.STATE_CLOSING):
            while not self._is_paused and self.processData() and self.state != self.STATE_CLOSED:
                pass
        else:
            super().consumeData()

    def applicationCreateWorked(self, application_queue: Inbox) -> None:
        """The app runs."""
        application_queue.on_room = self._room
        super().applicationCreateWorked(application_queue)

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: FBT001 - autobahn's
        """One message; the client is read no further while the app has too many."""
        if self.state != self.STATE_OPEN:
            return
        super().onMessage(payload, isBinary)
        if self.application_queue.is_full:
            self._pause()

    def _pause(self) -> None:
        self._is_paused = True
        self.transport.pauseProducing()

    def _room(self) -> None:
        """The app has received; not in its own call, where an error of the client's would come up."""
        if self._is_paused:
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self._is_paused or self.state == self.STATE_CLOSED:
            return
        self._is_paused = False
        try:
            self.consumeData()
        except Exception:  # as Twisted does it with what dataReceived raises
            log.exception("the data of a WebSocket client could not be read")
            self.abort()
            return
        if not self._is_paused:
            self.transport.resumeProducing()

    # what the app sends

    def handle_reply(self, message: Message) -> None:
        """Do what the app asks for."""
        match message["type"]:
            case "websocket.accept":
                self._accept(message.get("subprotocol") or None, message.get("headers") or [])
            case "websocket.send":
                self._send_message(message.get("text"), message.get("bytes"))
            case "websocket.close" if self.state == self.STATE_CONNECTING:
                self.serverReject()
            case "websocket.close":
                self.close(message.get("code") or NORMAL, message.get("reason") or "")
            case "websocket.http.response.start":
                self._denial = (message["status"], list(message.get("headers") or []))
            case "websocket.http.response.body":
                self._deny_with(message.get("body") or b"", is_last=not message.get("more_body", False))
            case unknown:
                raise ValueError(f"a WebSocket app cannot send {unknown}")

    def _accept(self, subprotocol: str | None, headers: Headers) -> None:
        if self.state != self.STATE_CONNECTING or self._denial is not None:
            raise ValueError("the WebSocket was accepted or denied before")
        if subprotocol is not None and subprotocol not in self.websocket_protocols:
            raise ValueError(f"the client did not offer the subprotocol {subprotocol!r}")
        _check(headers)
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        deferred = self.handshake_deferred
        del self.handshake_deferred  # consumeData() looks at it, and is called next
        deferred.callback((subprotocol, found))
        self._room()

    def _send_message(self, text: str | None, data: bytes | None) -> None:
        """Send without the limit of inbound messages, which autobahn would hold against them as well."""
        if self.state == self.STATE_CONNECTING:
            raise ValueError("the WebSocket has not been accepted")
        if (text is None) == (data is None):
            raise ValueError("a WebSocket message is either text or bytes")
        payload = data if text is None else text.encode()
        self.sendPreparedMessage(self.factory.prepareMessage(payload, isBinary=text is None))

    def close(self, code: int, reason: str = "") -> None:
        """Start the closing handshake; any code, where autobahn's `sendClose` refuses 1001 to 2999."""
        cut = reason.encode()[:REASON_BYTES].decode(errors="ignore").encode()
        self.sendCloseFrame(code=None if code == NO_CODE else code, reasonUtf8=cut)
        self.gate.stopProducing()
        self._room()  # the client's answer is still to be read

    def serverClose(self, code: int | None = None) -> None:
        """daphne's timeouts end a WebSocket so."""
        if self.state == self.STATE_CONNECTING:
            self.serverReject()
        else:
            self.close(code or NORMAL)

    # denials

    def failHandshake(self, reason: str, code: int = 400, responseHeaders: Any = None) -> None:
        """Refuse the handshake; autobahn's own answer has no length, and is lost if the client sent more."""
        log.debug("a WebSocket handshake failed: %s", reason)
        if self._is_denied or self.state != self.STATE_CONNECTING:
            self.dropConnection()
            return
        headers = [(str(name).encode("latin-1"), str(value).encode("latin-1")) for name, value in responseHeaders or ()]
        self._denial = (code, headers)
        self._deny_with(b"", is_last=True)

    def _deny_with(self, body: bytes, *, is_last: bool) -> None:
        """Send (a part of) an HTTP response in place of the upgrade."""
        if self._denial is None or self.state != self.STATE_CONNECTING:
            raise ValueError("a denial starts with websocket.http.response.start, before the accept")
        head = b""
        if not self._is_denied:
            head = _head(*self._denial, length=len(body) if is_last else None)
            self._is_denied = True
        self.sendData(head + body)
        if not is_last:
            return
        self.wasNotCleanReason = "denied"
        if hasattr(self, "handshake_deferred"):
            del self.handshake_deferred
        self.dropConnection()
        self._tell_app(ABNORMAL, "")

    # the end

    def dropConnection(self, abort: bool = False) -> None:  # noqa: FBT001, FBT002 - autobahn's
        """Close the connection; who waits to send is let go, since autobahn takes the gate away."""
        super().dropConnection(abort)
        self.gate.stopProducing()

    def _closeConnection(self, abort: bool = False) -> None:  # noqa: FBT001, FBT002 - autobahn's
        if self._is_denied:
            linger(self.transport)
        elif abort and not self.wasClean:
            self.transport.abortConnection()
        else:
            self.transport.loseConnection()
            abort_unless_flushed(self.transport)

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: FBT001 - autobahn's
        """The connection is gone."""
        self._tell_app(NO_CODE if code is None else code, reason or "" if wasClean else "")

    def _tell_app(self, code: int, reason: str) -> None:
        self.gate.stopProducing()
        if self._is_told:
            return
        self._is_told = True
        self.server.protocol_disconnected(self)
        if hasattr(self, "application_queue"):
            self.application_queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            details = {"path": self.request.path, "client": _address(self.client_addr)}
            self.server.log_action("websocket", "rejected" if self._is_denied else "disconnected", details)

    def serverReject(self) -> None:
        """Close before the accept: a bare 403."""
        self.failHandshake("rejected by the app", 403)

    def handle_exception(self, exception: BaseException) -> None:
        """The app failed."""
        self._end(500, INTERNAL_ERROR)

    def app_ended(self, *, exception: BaseException | None, is_cancelled: bool) -> None:
        """The app has ended: so does its WebSocket."""
        if exception is not None:
            self.handle_exception(exception)
        elif is_cancelled:
            self._end(503, RESTART)
        else:
            self._end(500, NORMAL)

    def shut(self) -> None:
        """The server stops."""
        self._end(503, RESTART)

    def _end(self, status: int, code: int) -> None:
        if self.state == self.STATE_CONNECTING:
            self.failHandshake("the app ended", status)
        elif self.state == self.STATE_OPEN:
            self.close(code, "shutdown" if code == RESTART else "")

    def abort(self) -> None:
        """Reset the connection now, whatever is still to be written."""
        self.transport.abortConnection()

    def write_buffer_size(self) -> int:
        """How many bytes wait for the client in this process."""
        return unsent(self.transport)


def _check(headers: Headers) -> None:
    if any(set(name + value) & set(b"\r\n\0") for name, value in headers):
        raise ValueError("a header may not hold line ends")


def _head(status: int, headers: Headers, *, length: int | None) -> bytes:
    """The head of a response after which the connection is closed."""
    _check(headers)
    phrase = ""
    with suppress(ValueError):
        phrase = HTTPStatus(status).phrase
    lines = [b"HTTP/1.1 %d %s" % (status, phrase.encode())]
    lines += [name + b": " + value for name, value in headers if name.lower() not in (b"connection", b"content-length")]
    if length is not None:
        lines.append(b"content-length: %d" % length)
    return b"\r\n".join([*lines, b"connection: close", b"", b""])


def _address(client: Any) -> str | None:
    return f"{client[0]}:{client[1]}" if client else None
