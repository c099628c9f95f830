"""`manage.py runserver`: daphne's, on our server, where `sse_limits` stands before `daphne` in INSTALLED_APPS.

A project that does not list `daphne` keeps the command it would have had without us.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.conf import settings

if apps.is_installed("daphne"):
    from daphne.management.commands.runserver import Command as DaphneCommand

    from sse_limits.streams.daphne import Server

    class Command(DaphneCommand):  # type: ignore[misc] # daphne has no types
        server_cls = Server

        def handle(self, *args: Any, **options: Any) -> None:
            """Serve, with our bound of messages unless an option or daphne's setting says otherwise."""
            for option in ("websocket_max_message_size", "websocket_max_frame_size"):
                if options.get(option) is None:
                    options[option] = getattr(settings, f"DAPHNE_{option.upper()}", Server.max_message_bytes)
            super().handle(*args, **options)

elif apps.is_installed("django.contrib.staticfiles"):
    pass
else:
    pass
