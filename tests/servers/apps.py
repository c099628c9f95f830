"""The ASGI app of the tests' servers: apps that behave well and badly, behind one StreamGuard."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.servers.settings")
django_app = get_asgi_application()

from project.streams import Events, PublicEvents, Sockets  # noqa: E402 - consumers need the apps to be ready
from sse_limits.streams.consumers import LimitedWebsocketConsumer  # noqa: E402
from sse_limits.streams.guard import StreamClass, StreamGuard  # noqa: E402

from . import journal  # noqa: E402

Scope = dict[str, Any]


class AppFault(Exception):
    """What the app that raises raises."""


async def begin(scope: Scope, receive: Any, send: Any) -> None:
    """Accept, or send the head and a first comment."""
    if scope["type"] == "websocket":
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
    else:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": begun\n\n", "more_body": True})


async def until_gone(receive: Any) -> None:
    while not (await receive())["type"].endswith(".disconnect"):
        pass


async def raw(scope: Scope, receive: Any, send: Any) -> None:
    """A stream that stays until its client leaves."""
    if scope.get("method") == "OPTIONS":
        await respond(send, b"options")
        return
    journal.note(journal.query(scope)["run"], "started")
    await begin(scope, receive, send)
    await until_gone(receive)


async def busy(scope: Scope, receive: Any, send: Any) -> None:
    """Does something else for 8 s, and never looks whether anybody is there."""
    run = journal.query(scope)["run"]
    await begin(scope, receive, send)
    try:
        await asyncio.sleep(8)
        journal.note(run, "woke up")
    except asyncio.CancelledError:
        journal.note(run, "cancelled")
        raise


async def fails(scope: Scope, receive: Any, send: Any) -> None:
    await begin(scope, receive, send)
    raise AppFault


async def returns(scope: Scope, receive: Any, send: Any) -> None:
    """Comes back in the middle of its response."""
    await begin(scope, receive, send)


async def completes(scope: Scope, receive: Any, send: Any) -> None:
    """Sends a whole response, then goes on for a while."""
    run = journal.query(scope)["run"]
    await respond(send, b"all")
    await asyncio.sleep(0.5)
    journal.note(run, "done")


async def deaf(scope: Scope, receive: Any, send: Any) -> None:
    """Sends ten times a second and never receives."""
    run = journal.query(scope)["run"]
    try:
        await begin(scope, receive, send)
        while True:
            await say(scope, send, b"data: x\n\n")
            await asyncio.sleep(0.1)
    finally:
        journal.note(run, "finally")


async def firehose(scope: Scope, receive: Any, send: Any) -> None:
    """Sends as fast as its client reads, and waits for nothing else."""
    run = journal.query(scope)["run"]
    try:
        await begin(scope, receive, send)
        while True:
            await say(scope, send, b"data: " + b"x" * 65536 + b"\n\n")
    finally:
        journal.note(run, "finally")


async def tidy(scope: Scope, receive: Any, send: Any) -> None:
    """Needs half a second to clean up."""
    run = journal.query(scope)["run"]
    await begin(scope, receive, send)
    await until_gone(receive)
    await asyncio.sleep(0.5)
    await say(scope, send, b"data: too late\n\n")
    journal.note(run, "cleaned up")


async def stubborn(scope: Scope, receive: Any, send: Any) -> None:
    """Takes no notice of being cancelled for a second."""
    run = journal.query(scope)["run"]
    await begin(scope, receive, send)
    try:
        await asyncio.sleep(8)
    except asyncio.CancelledError:
        await asyncio.sleep(1)
        journal.note(run, "gave in")


async def impatient(scope: Scope, receive: Any, send: Any) -> None:
    """Gives up one `receive()` and asks again in the same breath, and asks twice at a time."""
    run = journal.query(scope)["run"]
    await receive()
    await begin_http(send)
    first = asyncio.ensure_future(receive())
    await asyncio.sleep(0)
    first.cancel()
    found = await asyncio.gather(receive(), receive())
    journal.note(run, ",".join(message["type"] for message in found))


async def begin_http(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b": begun\n\n", "more_body": True})


async def late(scope: Scope, receive: Any, send: Any) -> None:
    """Thinks for 300 ms before it accepts."""
    await receive()
    await asyncio.sleep(0.3)
    await send({"type": "websocket.accept"})
    await until_gone(receive)


async def echo(scope: Scope, receive: Any, send: Any) -> None:
    """Sends back what comes, after `?delay=` seconds each; `?hold=`: first does not receive for so long."""
    query = journal.query(scope)
    await begin(scope, receive, send)
    await asyncio.sleep(float(query.get("hold", 0)))
    while (message := await receive())["type"] == "websocket.receive":
        await asyncio.sleep(float(query.get("delay", 0)))
        await send({"type": "websocket.send", "text": message["text"]})
    journal.note(query["run"], f"closed {message['code']}")


async def upload(scope: Scope, receive: Any, send: Any) -> None:
    """Answers with the digest of the body, which it reads slowly."""
    digest = hashlib.sha256()
    more = True
    while more:
        message = await receive()
        digest.update(message.get("body", b""))
        more = message.get("more_body", False)
        await asyncio.sleep(0)
    await respond(send, digest.hexdigest().encode())


async def headers(scope: Scope, receive: Any, send: Any) -> None:
    """Tells what the app sees: its headers and subprotocols."""
    names = sorted(name.decode() for name, _ in scope["headers"])
    if scope["type"] == "websocket":
        await begin(scope, receive, send)
        await send({"type": "websocket.send", "text": ",".join(scope["subprotocols"])})
        await until_gone(receive)
    else:
        await respond(send, ",".join(names).encode())


async def tasks(scope: Scope, receive: Any, send: Any) -> None:
    """How many tasks the process's event loop has, this one included."""
    await respond(send, str(len(asyncio.all_tasks())).encode())


class Consumer(AsyncWebsocketConsumer):
    """A Channels consumer whose `disconnect` is slow, or closes once more."""

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.send(text_data=text_data)

    async def disconnect(self, code: int) -> None:
        query = journal.query(self.scope)
        journal.note(query["run"], f"disconnect {code}")
        match query.get("then"):
            case "close":
                await self.close()
            case "sleep":
                await asyncio.sleep(15)


class TenantEvents(Events):
    stream_class = StreamClass("tenant", tenant_topics=True)


class Group(LimitedWebsocketConsumer):
    """Joins a channel group, and says to it whatever it is told."""

    groups = ("everybody",)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        await self.channel_layer.group_send("everybody", {"type": "said", "text": text_data})

    async def said(self, event: dict[str, str]) -> None:
        await self.send(text_data=event["text"])


async def say(scope: Scope, send: Any, data: bytes) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.send", "text": data.decode()})
    else:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def respond(send: Any, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


APPS: dict[str, Any] = {
    "raw/": raw,
    "classed/": raw,
    "softly/": raw,
    "open/": raw,
    "tree/branch/": raw,
    "busy/": busy,
    "fails/": fails,
    "returns/": returns,
    "completes/": completes,
    "deaf/": deaf,
    "firehose/": firehose,
    "tidy/": tidy,
    "stubborn/": stubborn,
    "impatient/": impatient,
    "late/": late,
    "echo/": echo,
    "upload/": upload,
    "headers/": headers,
    "consumer/": Consumer.as_asgi(),
}
STREAMS = {f"/{route}": StreamClass(route.strip("/")) for route in APPS if route != "tree/branch/"} | {
    "/classed/": StreamClass("classed", limit=3),
    "/softly/": StreamClass("softly", limit=1, on_reject="event"),
    "/open/": StreamClass("open", anonymous=True),
    "/tree/*": StreamClass("tree"),
    "/views/clock/": StreamClass("clock"),
    "/views/ticks/": StreamClass("ticks"),
    "/es/": StreamClass("eventstream"),
}
WEBSOCKETS = (
    {f"/{route}": app for route, app in APPS.items()}
    | {f"/unguarded/{route}": app for route, app in APPS.items()}
    | {"/ws/": Sockets.as_asgi(), "/group/": Group.as_asgi()}
)
HTTP = WEBSOCKETS | {
    "/journal/": journal.app,
    "/tasks/": tasks,
    "/events/": Events.as_asgi(),
    "/public/events/": PublicEvents.as_asgi(),
    "/tenant/events/": TenantEvents.as_asgi(),
}


async def routes(scope: Scope, receive: Any, send: Any) -> None:
    """The apps above, and Django for the rest of HTTP."""
    match scope["type"]:
        case "http":
            await HTTP.get(scope["path"], django_app)(scope, receive, send)
        case "websocket":
            await WEBSOCKETS.get(scope["path"], close)(scope, receive, send)
        case other:
            raise ValueError(f"no {other} here")


async def close(scope: Scope, receive: Any, send: Any) -> None:
    await send({"type": "websocket.close"})


application = StreamGuard(routes, streams=STREAMS)
