"""Answers as ASGI messages: a refusal in the form that the transport, the server and the stream class allow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from sse_limits.core.rejections import Answer, rejected_event

from .identification import SUBPROTOCOL, Scope
from .mailbox import Message, is_disconnect

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

HTTP_RESPONSE = ("http.response.start", "http.response.body")
WEBSOCKET_DENIAL = ("websocket.http.response.start", "websocket.http.response.body")
NO_CONTENT = int(HTTPStatus.NO_CONTENT)
LINGER_SECONDS = 0.1
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def respond(scope: Scope, send: Send, found: Answer, kind: tuple[str, str] = HTTP_RESPONSE) -> None:
    """Send a refusal as an HTTP response, or as the denial of a WebSocket handshake."""
    start, body = kind
    is_bodiless = found.status == NO_CONTENT or scope.get("method") == "HEAD"
    await send({"type": start, "status": found.status, "headers": found.headers})
    await send({"type": body, "body": b"" if is_bodiless else found.body})


def can_deny(scope: Scope) -> bool:
    """Whether the server lets a WebSocket handshake be answered with a status."""
    return "websocket.http.response" in (scope.get("extensions") or {})


async def accept_and_say(scope: Scope, send: Send, found: Answer, headers: Headers) -> None:
    """Refuse after accepting, for clients that cannot read a status: `event: rejected`, or a close code."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept", "subprotocol": chosen_subprotocol(scope)})
        await send({"type": "websocket.close", "code": found.close_code, "reason": found.close_reason})
        return
    body = b"" if scope["method"] == "HEAD" else rejected_event(found)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def linger(receive: Receive) -> None:
    """After a denial, wait until the server says that the connection is closed, or says nothing more.

    Uvicorn (0.54) logs an error for each app that returns earlier; its second disconnect is the closed connection.
    """
    disconnects = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while disconnects < 2:
                disconnects += is_disconnect(await receive())
    except TimeoutError:
        pass


def chosen_subprotocol(scope: Scope) -> str | None:
    """Ours if it was offered: a browser gives up a connection whose server chooses none. Tokens are never echoed."""
    return SUBPROTOCOL if SUBPROTOCOL in (scope.get("subprotocols") or ()) else None


def is_event_stream(start: Message) -> bool:
    """Whether a response is an event stream, by its content type."""
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
