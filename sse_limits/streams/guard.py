"""`StreamGuard`: ASGI middleware that puts admission in front of any stream.

It is the outermost ASGI app. Paths in `streams` are admitted before the app is called; other paths pass untouched, with
a handle in the scope (`scope["sse_limits"]`) by which our consumers and `@limited_stream` ask for admission
themselves. Either way the guard gives the slot back. Order: origin, identity, one store call, run, release.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Answer, Reject
from sse_limits.slots.base import SseLimitsError
from sse_limits.slots.embedded import EmbeddedServerError

from .answers import Receive, Send, respond
from .guarded import HANDLE, GuardedStream
from .identification import Scope, read
from .mailbox import Message
from .node import close_node, get_node

log = logging.getLogger("sse_limits.streams.guard")

App = Callable[[Any, Any, Any], Awaitable[None]]

__all__ = ["StreamClass", "StreamGuard"]


class StreamGuard:
    """Wrap an ASGI app.

    Args:
        app: the app, usually Channels' `ProtocolTypeRouter` around Django.
        streams: path -> `StreamClass` (a str is shorthand for a class with that name). A path matches exactly; with `*`
            at its end it is a prefix, and the longest prefix wins.
    """

    def __init__(self, app: App, streams: Mapping[str, StreamClass | str] | None = None) -> None:
        self.app = app
        classes = {
            path: StreamClass(value) if isinstance(value, str) else value for path, value in (streams or {}).items()
        }
        self._exact = {path: found for path, found in classes.items() if not path.endswith("*")}
        prefixes = [(path[:-1], found) for path, found in classes.items() if path.endswith("*")]
        self._prefixes = sorted(prefixes, key=lambda pair: -len(pair[0]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard one scope."""
        match scope["type"]:
            case "http" | "websocket":
                await self._guard(scope, receive, send)
            case "lifespan":
                await self._live(scope, receive, send)
            case _:
                await self.app(scope, receive, send)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        node = get_node(send)
        stream_class = self._class_of(scope["path"])
        if stream_class is None or scope.get("method") == "OPTIONS":
            stream = GuardedStream(node, scope, receive, send)
            await stream.run(self.app, {**scope, HANDLE: stream})
            return
        request = read(scope)
        who = node.identifier.identify(scope, request, anonymous=stream_class.anonymous)
        if scope["type"] == "http" and stream_class.on_reject == "status":
            # The cheapest way out, before anything is made for a stream: what nobody may open costs next to nothing.
            if isinstance(who, Reject):
                found: Answer | None = node.answer(who, scope, request, None, stream_class.name)
            else:
                found = node.answer_known(who, scope, request, stream_class)
            if found is not None:
                await respond(scope, send, found)
                return
        stream = GuardedStream(node, scope, receive, send, request, who)
        refused = await stream.admit(stream_class)
        if refused is not None:
            await stream.reject(refused, stream_class)
        elif scope.get("method") == "HEAD":
            await stream.start_event_stream()
            await send({"type": "http.response.body", "body": b""})
        else:
            await stream.run(self.app, stream.inner_scope())

    def _class_of(self, path: str) -> StreamClass | None:
        found = self._exact.get(path)
        if found is None:
            for prefix, stream_class in self._prefixes:
                if path.startswith(prefix):
                    return stream_class
        return found

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lifespan: the node is up before the first request, and its slots are free before the process ends.

        The app takes part if it can. Django and Channels' router cannot: they raise, and the guard answers alone.
        """
        lifespan = _Lifespan(receive, send)
        try:
            await self.app(scope, lifespan.receive, lifespan.send)
        except Exception:
            if lifespan.is_answered:
                raise
            log.debug("the app knows no lifespan")
            await lifespan.run_alone()


class _Lifespan:
    """The lifespan messages of one server process, seen on their way to the app."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._last: str | None = None
        self.is_answered = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._last = message["type"]
        if self._last == "lifespan.startup":
            await self._start()
        else:
            await close_node()
        return message

    async def _start(self) -> None:
        try:
            get_node(self._send)
        except (SseLimitsError, EmbeddedServerError) as exc:
            await self.send({"type": "lifespan.startup.failed", "message": str(exc)})
            raise

    async def send(self, message: Message) -> None:
        self.is_answered = True
        await self._send(message)

    async def run_alone(self) -> None:
        while self._last != "lifespan.shutdown":
            if self._last is None or self.is_answered:
                await self.receive()
            await self.send({"type": f"{self._last}.complete"})
