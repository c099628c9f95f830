"""Apps that end in some way, or look away while their client ends; each says when, or whose stream it was."""

from __future__ import annotations

import asyncio
import time

from bench.apps.bare import STREAM_HEADERS, Message, Receive, Send
from sse_limits.streams.guarded import HANDLE

BUSY_SECONDS = 3.0
LATE_SECONDS = 0.3


async def say(send: Send, data: object) -> None:
    """Start an event stream with one event."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})


async def wait(scope: Message, receive: Receive, send: Send) -> None:
    """Say the stream's id and wait for the client's end."""
    await say(send, scope[HANDLE].lease.held.stream)
    while (await receive())["type"] != "http.disconnect":
        pass


async def busy(scope: Message, receive: Receive, send: Send) -> None:
    """Never look whether the client is still there."""
    await say(send, time.time_ns())
    await asyncio.sleep(BUSY_SECONDS)


async def late(scope: Message, receive: Receive, send: Send) -> None:
    """Answer, or accept the WebSocket, only after a while."""
    await asyncio.sleep(LATE_SECONDS)
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
    else:
        await say(send, time.time_ns())


async def fail(scope: Message, receive: Receive, send: Send) -> None:
    """Raise in the middle of the stream."""
    await say(send, time.time_ns())
    raise RuntimeError("This app fails on purpose.")


async def cancel(scope: Message, receive: Receive, send: Send) -> None:
    """Be cancelled in the middle of the stream, as by a server that ends."""
    await say(send, time.time_ns())
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(BUSY_SECONDS)


APPS = {
    "/ends/wait/": wait,
    "/ends/busy/": busy,
    "/ends/late/": late,
    "/ends/fail/": fail,
    "/ends/cancel/": cancel,
}
