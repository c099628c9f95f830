"""Django views for the tests' servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified, StreamingHttpResponse
from django_eventstream import send_event

from sse_limits.streams.views import StreamClass, limited_stream

from . import journal


class ViewFault(Exception):
    """Raised by something around a view, after the view has returned."""


async def ticks(run: str) -> AsyncIterator[str]:
    try:
        while True:
            yield "data: tick\n\n"
            await asyncio.sleep(0.1)
    finally:
        journal.note(run, "finally")


def streaming(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(ticks(request.GET.get("run", "")), content_type="text/event-stream")


@limited_stream("limited")
async def limited(request: HttpRequest) -> StreamingHttpResponse:
    return streaming(request)


@limited_stream(StreamClass("limited-class", limit=1))
async def limited_class(request: HttpRequest) -> StreamingHttpResponse:
    return streaming(request)


@limited_stream(StreamClass("limited-event", limit=1, on_reject="event"))
async def limited_event(request: HttpRequest) -> StreamingHttpResponse:
    return streaming(request)


@limited_stream(StreamClass("limited-open", anonymous=True))
async def limited_open(request: HttpRequest) -> StreamingHttpResponse:
    return streaming(request)


def send_to_eventstream(request: HttpRequest) -> HttpResponse:
    """Publish by django-eventstream, which knows the listeners of its own process only."""
    send_event("news", "message", {"said": request.GET["said"]})
    return HttpResponse("sent")


def afterwards(view: Callable[..., Any]) -> Callable[..., Any]:
    """What a middleware may do with a response that it does not like."""

    @wraps(view)
    async def wrapped(request: HttpRequest) -> HttpResponse:
        await view(request)
        match request.GET["then"]:
            case "raise":
                raise ViewFault
            case "replace":
                return HttpResponse("something else")
            case other:
                assert other == "304"
                return HttpResponseNotModified()

    return wrapped


dropped = afterwards(limited)
