"""The floor: a raw ASGI app with an idle event stream and a static refusal, without any guard."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FIRST = b": open\n\n"
STREAM_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
REFUSAL = b'{"type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": "%s"}' % (b"x" * 298)
REFUSAL_HEADERS = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(REFUSAL))]


async def idle(scope: Message, receive: Receive, send: Send) -> None:
    """An event stream that says one thing and then waits until its client has gone."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await send({"type": "http.response.body", "body": FIRST, "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def refuse(scope: Message, receive: Receive, send: Send) -> None:
    """The cheapest refusal that a Python app can give: constant headers, constant body."""
    await send({"type": "http.response.start", "status": 429, "headers": REFUSAL_HEADERS})
    await send({"type": "http.response.body", "body": REFUSAL})


async def collect(scope: Message, receive: Receive, send: Send) -> None:
    """Run the garbage collector, so that memory is compared without what is only waiting for it."""
    gc.collect()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


ROUTES = {"/idle/": idle, "/refuse/": refuse, "/collect/": collect}


async def application(scope: Message, receive: Receive, send: Send) -> None:
    """Route by path; lifespan is not supported, which uvicorn accepts."""
    if scope["type"] != "http":
        raise RuntimeError("This app speaks HTTP only.")
    await ROUTES[scope["path"]](scope, receive, send)
