"""`@limited_stream`: admission for one async Django view, answered before the view runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Answer, rejected_event

from .guarded import HANDLE, GuardedStream

__all__ = ["StreamClass", "limited_stream"]

View = Callable[..., Awaitable[HttpResponseBase]]


def limited_stream(stream_class: StreamClass | str) -> Callable[[View], View]:
    """Admit a client before the view runs; the guard gives the slot back when the client has gone.

    The view must be `async def` and be served over ASGI behind `StreamGuard`; otherwise the answer is 501.
    """
    admitted_class = StreamClass(stream_class) if isinstance(stream_class, str) else stream_class

    def decorate(view: View) -> View:
        if not iscoroutinefunction(view):
            raise TypeError(f"@limited_stream needs an async view, and {view.__qualname__} is not: write 'async def'")

        @wraps(view)
        async def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            stream = getattr(request, "scope", {}).get(HANDLE)
            if not isinstance(stream, GuardedStream):
                return _not_guarded()
            request.META.pop("HTTP_ACCEPT_ENCODING", None)  # GZipMiddleware would hold events until its window is full
            refused = await stream.admit(admitted_class)
            if refused is not None:
                return _response(stream.answer(refused, admitted_class), by_event=admitted_class.on_reject == "event")
            if request.method == "HEAD":
                return HttpResponse(content_type="text/event-stream", headers={"Cache-Control": "no-store"})
            return await view(request, *args, **kwargs)

        return limited

    return decorate


def _response(found: Answer, *, by_event: bool) -> HttpResponse:
    response = _as_django(found, by_event=by_event)
    # As Django marks it: otherwise each rejection is a log line (503: an ERROR, and a mail to ADMINS), in a thread.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _as_django(found: Answer, *, by_event: bool) -> HttpResponse:
    headers = {name.decode(): value.decode("latin-1") for name, value in found.headers if name != b"content-length"}
    if by_event and found.status >= 400:
        headers |= {"content-type": "text/event-stream"}
        return HttpResponse(rejected_event(found), headers=headers)
    return HttpResponse(found.body if found.status >= 400 else b"", status=found.status, headers=headers)


def _not_guarded() -> JsonResponse:
    detail = "This stream is served over ASGI behind StreamGuard (see asgi.py), not over WSGI or without the guard."
    problem = {"type": "about:blank", "title": "Not Implemented", "status": 501, "detail": detail}
    return JsonResponse(problem, status=501, content_type="application/problem+json")
