"""The demo's ASGI app: copy this wiring. StreamGuard stands outermost, around Channels' router and Django."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django_app = ASGIStaticFilesHandler(get_asgi_application())  # a real site lets its web server serve static files

from project.streams import Events, PublicEvents, Sockets  # noqa: E402 - consumers need the apps to be ready
from sse_limits.streams.guard import StreamGuard  # noqa: E402

application = StreamGuard(
    ProtocolTypeRouter(
        {
            "http": URLRouter(
                [
                    path("events/", Events.as_asgi()),
                    path("public/events/", PublicEvents.as_asgi()),
                    re_path("", django_app),  # type: ignore[arg-type] # Channels routes ASGI apps with Django's path()
                ]
            ),
            "websocket": URLRouter([path("ws/", Sockets.as_asgi())]),
        }
    ),
    streams={"/views/clock/": "clock", "/es/": "eventstream"},
)
