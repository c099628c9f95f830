"""The ASGI apps of the daphne tests: what a path does is named by it; `/state` tells what happened."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

STATE: dict[str, Any] = {"sent": 0, "received": 0, "unsent": 0, "events": [], "cancelled": 0}
GO = asyncio.Event()
CHUNK = b"x" * 16384


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise RuntimeError("unknown")
    query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
    try:
        await PATHS[scope["type"], scope["path"]](scope, receive, send, query)
    except asyncio.CancelledError:
        STATE["cancelled"] += 1
        raise


async def start(send: Any, status: int = 200, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def respond(send: Any, body: bytes) -> None:
    await start(send, headers=[(b"content-length", b"%d" % len(body))])
    await send({"type": "http.response.body", "body": body})


async def hello(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send, headers=[(b"content-length", b"5")])
    await send({"type": "http.response.body", "body": b"he", "more_body": True})
    await send({"type": "http.response.body", "body": b"llo"})


async def state(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await respond(send, json.dumps(STATE).encode())


async def reset(scope: Any, receive: Any, send: Any, query: Any) -> None:
    STATE.update(sent=0, received=0, unsent=0, events=[], cancelled=0)
    GO.clear()
    await respond(send, b"")


async def client(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await respond(send, scope["client"][0].encode())


async def go(scope: Any, receive: Any, send: Any, query: Any) -> None:
    GO.set()
    await respond(send, b"")


@contextlib.asynccontextmanager
async def watched(scope: Any) -> AsyncIterator[None]:
    """Note the most that has waited for the client in the server's memory."""

    async def watch() -> None:
        while True:
            STATE["unsent"] = max(STATE["unsent"], scope["extensions"]["sse_limits.write_buffer_size"]())
            await asyncio.sleep(0.005)

    task = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        task.cancel()


async def until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def flood(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    gone = asyncio.ensure_future(until_gone(receive))
    async with watched(scope):
        while not gone.done():
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            STATE["sent"] += len(CHUNK)


async def impatient_flood(scope: Any, receive: Any, send: Any, query: Any) -> None:
    """An app that goes on sending after a send that it gave up."""
    await start(send)
    for _ in range(50):
        try:
            async with asyncio.timeout(0.02):
                await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
                STATE["sent"] += len(CHUNK)
        except TimeoutError:
            STATE["events"].append("timeout")
        STATE["unsent"] = max(STATE["unsent"], scope["extensions"]["sse_limits.write_buffer_size"]())
    STATE["events"].append("done")


async def stalled_then_abort(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    try:
        async with asyncio.timeout(0.5):
            while True:
                await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    except TimeoutError:
        scope["extensions"]["sse_limits.abort"]()
    await until_gone(receive)
    STATE["events"].append("http.disconnect")


async def ends_stalled(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    try:
        async with asyncio.timeout(0.5):
            while True:
                await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    except TimeoutError:
        return


async def only_sends(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    STATE["events"].append("started")
    for _ in range(200_000):
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
    STATE["events"].append("over")


async def raises_after_start(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    await send({"type": "http.response.body", "body": b"some", "more_body": True})
    raise ZeroDivisionError("on purpose")


async def returns_without_end(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    await send({"type": "http.response.body", "body": b"some", "more_body": True})


async def returns_at_once(scope: Any, receive: Any, send: Any, query: Any) -> None:
    return


async def never_ends(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await start(send)
    await send({"type": "http.response.body", "body": b"some", "more_body": True})
    await asyncio.sleep(3600)


async def stubborn(scope: Any, receive: Any, send: Any, query: Any) -> None:
    """An app that does not end when it is cancelled."""
    await start(send)
    await send({"type": "http.response.body", "body": b"some", "more_body": True})
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await send({"type": "http.response.body", "body": b"no", "more_body": True})
        await asyncio.sleep(3600)


async def sse(scope: Any, receive: Any, send: Any, query: Any) -> None:
    if scope["type"] == "websocket":
        return await ws_idle(scope, receive, send, query)
    await start(send, headers=[(b"content-type", b"text/event-stream")])
    await send({"type": "http.response.body", "body": b"event: hello\n\n", "more_body": True})
    await until_gone(receive)
    STATE["events"].append("http.disconnect")
    return None


# -- WebSockets


async def accept(receive: Any, send: Any, **more: Any) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept", **more})


async def ws_echo(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await accept(receive, send)
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message.get("text"), "bytes": message.get("bytes")})
    STATE["events"].append([message["type"], message["code"], message.get("reason", "")])


async def ws_idle(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await accept(receive, send)
    while (message := await receive())["type"] != "websocket.disconnect":
        pass
    STATE["events"].append([message["type"], message["code"], message.get("reason", "")])


async def ws_flood(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await accept(receive, send)
    try:
        async with watched(scope):
            while True:
                await send({"type": "websocket.send", "bytes": CHUNK})
                STATE["sent"] += len(CHUNK)
    except OSError as exc:
        STATE["events"].append(type(exc).__name__)
        raise


async def ws_slow(scope: Any, receive: Any, send: Any, query: Any) -> None:
    """Receives nothing until /go, then all."""
    await accept(receive, send)
    await GO.wait()
    while (message := await receive())["type"] == "websocket.receive":
        STATE["received"] += 1
        if message.get("text") == "last":
            await send({"type": "websocket.send", "text": str(STATE["received"])})
    STATE["events"].append(message["type"])


async def ws_big(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await accept(receive, send)
    await send({"type": "websocket.send", "bytes": bytes(int(query["bytes"]))})
    await receive()


async def ws_headers(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await accept(receive, send, subprotocol="chat", headers=[(b"x-one", b"1")])
    await send({"type": "websocket.send", "text": ""})
    await receive()


async def ws_close(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await accept(receive, send)
    await send({"type": "websocket.close", "code": int(query["code"]), "reason": query["reason"]})
    STATE["events"].append((await receive())["code"])


async def ws_reject(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await receive()
    await send({"type": "websocket.close"})
    STATE["events"].append((await receive())["type"])


async def ws_deny(scope: Any, receive: Any, send: Any, query: Any) -> None:
    assert "websocket.http.response" in scope["extensions"]
    await receive()
    headers = [(b"content-type", b"application/problem+json"), (b"retry-after", b"7")]
    await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
    if "parts" in query:
        await send({"type": "websocket.http.response.body", "body": b"too ", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"many", "more_body": False})
    else:
        await send({"type": "websocket.http.response.body", "body": b"too many"})
    STATE["events"].append((await receive())["type"])


async def ws_raises(scope: Any, receive: Any, send: Any, query: Any) -> None:
    if "accepted" in query:
        await accept(receive, send)
    raise ZeroDivisionError("on purpose")


async def ws_returns(scope: Any, receive: Any, send: Any, query: Any) -> None:
    if "accepted" in query:
        await accept(receive, send)


async def ws_decides_on_go(scope: Any, receive: Any, send: Any, query: Any) -> None:
    await receive()
    await GO.wait()
    await send({"type": "websocket.accept"})
    message = await receive()
    await send({"type": "websocket.send", "text": message["text"]})
    await receive()


HTTP = [hello, state, reset, client, go, flood, impatient_flood, stalled_then_abort, ends_stalled, only_sends]
HTTP += [raises_after_start, returns_without_end, returns_at_once, never_ends, stubborn, sse]
WEBSOCKET = [ws_echo, ws_idle, ws_flood, ws_slow, ws_big, ws_headers, ws_close, ws_reject, ws_deny, ws_raises]
WEBSOCKET += [ws_returns, ws_decides_on_go, sse]
PATHS = {("http", f"/{path.__name__}"): path for path in HTTP}
PATHS |= {("websocket", f"/{path.__name__}"): path for path in WEBSOCKET}


if "DJANGO_SETTINGS_MODULE" in os.environ:
    import django

    django.setup()

    from sse_limits.core.limits import StreamClass
    from sse_limits.streams.guard import StreamGuard

    guarded = StreamGuard(app, streams={"/sse": StreamClass("sse", anonymous=True)})
