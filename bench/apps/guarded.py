"""The same raw apps behind `StreamGuard`, and an `EventStreamConsumer` routed as in the demo's asgi.py."""

from __future__ import annotations

import django

django.setup()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402 - needs the apps to be ready
from django.urls import path, re_path  # noqa: E402

from bench.apps import bare, endings  # noqa: E402
from sse_limits.streams.consumers import EventStreamConsumer, StreamClass  # noqa: E402
from sse_limits.streams.guard import StreamGuard  # noqa: E402


class Events(EventStreamConsumer):
    """The demo's consumer."""

    stream_class = StreamClass("events")
    default_topics = ("news",)


router = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("events/", Events.as_asgi()),
                re_path("", bare.application),  # type: ignore[arg-type] # Channels routes ASGI apps with Django's path()
            ]
        )
    }
)


async def route(scope: bare.Message, receive: bare.Receive, send: bare.Send) -> None:
    """Raw apps are called directly, so that nothing but the guard is between them and the server."""
    app = endings.APPS.get(scope.get("path", "")) or bare.ROUTES.get(scope.get("path", ""), router)
    await app(scope, receive, send)


application = StreamGuard(route, streams={"/idle/": "idle", "/ends/*": "ends"})
