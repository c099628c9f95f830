"""Plain Django views of the demo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse


async def clock(request: HttpRequest) -> StreamingHttpResponse:
    """An ordinary async view that streams; StreamGuard admits it by its path, the view knows nothing of it."""
    return StreamingHttpResponse(
        ticks(), content_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def ticks() -> AsyncIterator[str]:
    """The time of day, once a second."""
    while True:
        yield f"event: tick\ndata: {datetime.now(UTC):%H:%M:%S}\n\n"
        await asyncio.sleep(1)


def healthz(request: HttpRequest) -> HttpResponse:
    """Whether this process serves; that Redis is away does not make it unhealthy."""
    return HttpResponse("ok\n", content_type="text/plain")
