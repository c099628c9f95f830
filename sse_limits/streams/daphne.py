"""daphne through a `Server` of ours: `runserver`, `sse-limits-daphne` and `manage.py serve --server daphne`.

What it adds to daphne's: `await send()` waits for a slow client; a WebSocket client waits for a slow app; WebSockets
are denied by a real HTTP response, and closed with any code and reason; the descriptors never run out; a stop tells the
clients, gives the slots back and is over within five seconds. It also repairs what would make a process with long
streams deaf or leaky: a failed app that stops daphne's checker, an app that ends without ending its response, a stop
that cancels nothing, a body after HEAD.

The connections are in `daphne_http.py` and `daphne_websocket.py`; what all this stands on is in `daphne_hooks.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial
from typing import Any

from daphne.cli import CommandLineInterface
from daphne.server import Server as DaphneServer
from django.conf import settings
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from .daphne_flow import Inbox, Message
from .daphne_hooks import incompatibilities
from .daphne_http import Request, RequestFactory
from .daphne_websocket import ClientDisconnected, WebSocket
from .descriptors import Doorkeeper
from .servers import ABORT, NOT_SENT_BYTES

log = logging.getLogger("sse_limits.streams.daphne")
reactor: Any = _reactor  # its methods are put on it at run time

Connection = Request | WebSocket

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
CLOSE_HANDSHAKE_SECONDS = 3.0
DRAIN_SECONDS = 2.0
NODE_SECONDS = 3.0
CANCEL_SECONDS = 0.75
GOODBYE_SECONDS = 0.75
WRITE_BUFFER_SIZE = "sse_limits.write_buffer_size"


class Server(DaphneServer):  # type: ignore[misc] # daphne has no types
    """daphne's server for long streams. One per process, on Twisted's reactor, which daphne puts on an asyncio loop.

    Each scope has the extensions `sse_limits.abort` (reset the connection now) and `sse_limits.write_buffer_size`
    (bytes that wait for the client in this process): both are called without arguments, on the event loop.
    """

    max_message_bytes = MAX_MESSAGE_BYTES

    def __init__(
        self,
        *args: Any,
        websocket_max_message_size: int | None = None,
        websocket_max_frame_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        bound = self.max_message_bytes
        # Set, not passed on: daphne 4.2.0 and 4.2.1 have no such arguments.
        self.websocket_max_message_size = bound if websocket_max_message_size is None else websocket_max_message_size
        self.websocket_max_frame_size = bound if websocket_max_frame_size is None else websocket_max_frame_size
        self.connections: dict[Connection, dict[str, Any]] = {}
        self.is_stopping = False
        self._ports: list[Any] = []
        self._doorkeeper = Doorkeeper()
        self._has_node = False
        self._all_closed: asyncio.Event | None = None

    # -- what daphne builds in run() -----------------------------------------------------------------------------

    @property
    def http_factory(self) -> RequestFactory:
        """Makes the HTTP channels. daphne assigns its own, which lacks what is ours."""
        return self._http_factory

    @http_factory.setter
    def http_factory(self, _: Any) -> None:
        self._http_factory = RequestFactory(self)

    @property
    def ws_factory(self) -> Any:
        """Makes the WebSockets. daphne assigns its own, and ours go in as its product."""
        return self._ws_factory

    @ws_factory.setter
    def ws_factory(self, factory: Any) -> None:
        factory.protocol = WebSocket
        factory.setProtocolOptions(
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
            failByDrop=False,  # a client that breaks a rule is told which: 1002, 1007, 1009
            closeHandshakeTimeout=CLOSE_HANDSHAKE_SECONDS,
            webStatus=False,
            allowNullOrigin=True,
        )
        self._ws_factory = factory

    # -- start ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until told to stop."""
        if problems := incompatibilities():
            log.warning("this installation lacks what our server stands on: %s", "; ".join(problems))
        reactor.callLater(0, self._started)
        super().run()

    def _started(self) -> None:
        """daphne has no lifespan: the node is made here, so that it speaks up before the first request."""
        if not settings.configured:
            return
        from sse_limits.slots.base import SseLimitsError
        from sse_limits.slots.embedded import EmbeddedServerError

        from .node import get_node

        try:
            get_node(self.handle_reply)
            self._has_node = True
        except (SseLimitsError, EmbeddedServerError) as exc:
            log.critical("the server does not start: %s", exc)
            self.abort_start = True  # daphne's command line then exits with 1
            reactor.stop()

    def listen_success(self, port: Any) -> None:
        """Prepare a listening socket; the sockets it accepts take its options over."""
        super().listen_success(port)
        self._ports.append(port)
        self._doorkeeper.watch(port)
        sock = getattr(port, "socket", None)
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            with suppress(AttributeError, OSError):  # Linux only
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)

    # -- one application -----------------------------------------------------------------------------------------

    def create_application(self, protocol: Connection, scope: dict[str, Any]) -> Inbox | None:
        """Start the app for a request. In place of daphne's, whose queue has no bound and whose ends go unseen."""
        details = self.connections.get(protocol)
        if details is None:
            return None
        scope.setdefault("asgi", {"version": "3.0"})
        extensions = scope.setdefault("extensions", {})
        extensions[ABORT] = protocol.abort
        extensions[WRITE_BUFFER_SIZE] = protocol.write_buffer_size
        if protocol.is_websocket:
            extensions["websocket.http.response"] = {}
        inbox = Inbox()
        app = restarting if self.is_stopping else self.application
        running = app(scope=scope, receive=inbox.get, send=partial(self.handle_reply, protocol))
        task = details["application_instance"] = asyncio.ensure_future(running)
        task.add_done_callback(partial(self._app_ended, protocol))
        return inbox

    async def handle_reply(self, protocol: Connection, message: Message) -> None:
        """The app's `send`: waits while too much is still to be written to the client."""
        kind = message["type"]
        is_data = kind == "websocket.send" or (kind == "http.response.body" and message.get("more_body", False))
        if is_data:
            await protocol.wait_for_room()
        if self._is_gone(protocol):
            if kind == "websocket.send":
                raise ClientDisconnected("the WebSocket is closed")
            await asyncio.sleep(0)  # an app that only sends would never let go of the loop
            return
        await super().handle_reply(protocol, message)
        if is_data:
            await protocol.wait_for_room()
            if kind == "websocket.send" and self._is_gone(protocol):
                raise ClientDisconnected("the WebSocket was closed")

    def _is_gone(self, protocol: Connection) -> bool:
        details = self.connections.get(protocol)
        return details is None or "disconnected" in details or protocol.is_over

    def protocol_disconnected(self, protocol: Connection) -> None:
        """A request is complete, or its client has gone."""
        if protocol not in self.connections:
            return
        super().protocol_disconnected(protocol)
        protocol.gate.stopProducing()
        if "application_instance" not in self.connections[protocol]:
            self._forget(protocol)

    def _forget(self, protocol: Connection) -> None:
        del self.connections[protocol]
        if not self.connections and self._all_closed is not None:
            self._all_closed.set()

    def _app_ended(self, protocol: Connection, task: asyncio.Future[Any]) -> None:
        """The app has returned, failed or was cancelled. daphne would look for that once a second."""
        exception = None if task.cancelled() else task.exception()
        details = self.connections.get(protocol, {})
        is_gone = self._is_gone(protocol)
        if exception is not None and not (is_gone and isinstance(exception, ClientDisconnected)):
            log.error("Exception inside application: %s", exception, exc_info=exception)
        if details.get("application_instance") is task:
            del details["application_instance"]
        if "disconnected" in details:
            self._forget(protocol)
        elif not is_gone:
            protocol.app_ended(exception=exception, is_cancelled=task.cancelled())

    # -- once a second -------------------------------------------------------------------------------------------

    def application_checker(self) -> None:
        """Cancel apps that outlive their client. Never stops, as daphne's does at the first error."""
        try:
            super().application_checker()
        except Exception:  # of whatever protocol: the others must be looked after all the same
            log.exception("looking after the apps failed")
            reactor.callLater(1, self.application_checker)

    def timeout_checker(self) -> None:
        """Ping, and end what takes too long. One connection's error does not end it for all, as in daphne."""
        for protocol in list(self.connections):
            if self._is_gone(protocol):
                continue
            try:
                protocol.check_timeouts()
            except Exception:  # (the same)
                log.exception("looking after %r failed", protocol)
        reactor.callLater(2, self.timeout_checker)

    # -- stop ----------------------------------------------------------------------------------------------------

    def kill_all_applications(self) -> Deferred[None]:
        """What daphne has called before the reactor stops."""
        return Deferred.fromFuture(asyncio.ensure_future(self._shut_down()))

    async def _shut_down(self) -> None:
        """Accept nothing, let the node say goodbye and give back its slots, then end what is left."""
        self.is_stopping = True
        for port in self._ports:
            port.stopListening()
        await self._close_node()
        tasks = [details.get("application_instance") for details in self.connections.values()]
        running = [task for task in tasks if task is not None and not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_SECONDS)
        await asyncio.sleep(0)  # for _app_ended
        for protocol in list(self.connections):
            protocol.shut()
        await self._wait_until_closed()

    async def _close_node(self) -> None:
        if not self._has_node:
            return
        from .node import close_node, get_node

        try:
            async with asyncio.timeout(NODE_SECONDS):
                await get_node().drain(DRAIN_SECONDS)
                await close_node()
        except TimeoutError:
            log.warning("the node did not close within %g s: its leases run out by themselves", NODE_SECONDS)
        except Exception:  # whatever it is, the server has to stop
            log.exception("closing the node failed")

    async def _wait_until_closed(self) -> None:
        """Until the clients have answered, and what was written is on its way."""
        self._all_closed = asyncio.Event()
        if self.connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._all_closed.wait()
        for protocol in list(self.connections):
            protocol.abort()


async def restarting(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer requests that come while the server stops."""
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    headers = [(b"content-length", b"0"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": f"{kind}.start", "status": 503, "headers": headers})
    await send({"type": f"{kind}.body", "body": b""})


class CommandLine(CommandLineInterface):  # type: ignore[misc] # daphne has no types
    """daphne's command line. X-Forwarded-For is left to the guard, unless --proxy-headers says otherwise."""

    description = "daphne for many long streams: HTTP, Server-Sent Events and WebSockets"
    server_class = Server

    def __init__(self) -> None:
        super().__init__()
        bound = self.server_class.max_message_bytes
        self.parser.set_defaults(websocket_max_message_size=bound, websocket_max_frame_size=bound)


def main() -> None:
    """The command `sse-limits-daphne`."""
    CommandLine.entrypoint()


if __name__ == "__main__":
    main()
