"""Live updates: our own event stream of class `admin`, which no limit holds and the guard ends like every other.

One event a second, only when something changed. Pages are made in threads, never on the event loop, and viewers of the
same page share them; the board shares its snapshot between all pages. Who gets no stream polls instead.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from sse_limits.core.frames import event
from sse_limits.core.limits import StreamClass
from sse_limits.streams.views import limited_stream

from .look import Asked, take_look
from .pages import PAGES

if TYPE_CHECKING:
    from .room import LiveRoomAdmin

EVERY_SECONDS = 1.0
RECHECK_SECONDS = 5.0
VIEWERS_A_NODE = 50
SHARED_PAGES = 200
KEEPALIVE_EVERY = 15
RETRY_MS = 2000


class LiveStream:
    """The event stream of one page. The permission is looked at before anything is taken, and again while it runs."""

    def __init__(self, room: LiveRoomAdmin, slug: str) -> None:
        self._room = room
        self._slug = slug
        self._admitted = limited_stream(StreamClass("admin", exempt=True))(self._open)

    async def view(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with the stream; 403 without the permission, 204 when this node shows enough: the page then polls."""
        if not await sync_to_async(self._is_allowed, thread_sensitive=False)(request):
            return HttpResponse(status=403)
        if _viewers.count >= VIEWERS_A_NODE:
            return HttpResponse(status=204)
        return await self._admitted(request)

    async def _open(self, request: HttpRequest) -> HttpResponseBase:
        asked = await sync_to_async(self._asked, thread_sensitive=False)(request)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(self._events(request, asked), content_type="text/event-stream", headers=headers)

    async def _events(self, request: HttpRequest, asked: Asked) -> AsyncIterator[bytes]:
        _viewers.count += 1
        try:
            sent, quiet = "", 0
            looked_at = time.monotonic()
            while True:
                if time.monotonic() - looked_at >= RECHECK_SECONDS:
                    if not await sync_to_async(self._is_allowed, thread_sensitive=False)(request):
                        return
                    looked_at = time.monotonic()
                found = await sync_to_async(_pages.get, thread_sensitive=False)(asked)
                quiet = 0 if found != sent else quiet + 1
                if found != sent:
                    sent = found
                    yield event(found, name="view", retry_ms=RETRY_MS)
                elif quiet % KEEPALIVE_EVERY == 0:
                    yield b":\n\n"
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            _viewers.count -= 1

    def _is_allowed(self, request: HttpRequest) -> bool:
        """Ask the session and the permissions anew; blocks."""
        close_old_connections()
        try:
            request.session = type(request.session)(request.session.session_key)
            request.user = get_user(request)
            return self._room.admin_site.has_permission(request) and self._room.has_view_permission(request)
        finally:
            close_old_connections()

    def _asked(self, request: HttpRequest) -> Asked:
        return self._room.asked(request, self._slug)


class _Viewers:
    """How many streams of this class this process serves."""

    count = 0


class _Page:
    """One page as JSON, with who is making it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made_at = float("-inf")
        self.text = ""


class _Pages:
    """The pages that are being looked at, each made at most once a second, by the first who asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: dict[tuple[object, ...], _Page] = {}

    def get(self, asked: Asked) -> str:
        """The page as JSON; blocks."""
        page = self._page(asked)
        with page.lock:
            now = time.monotonic()
            if now - page.made_at >= EVERY_SECONDS / 2:
                try:
                    look = take_look(asked)
                    page.text = PAGES[asked.slug].build(look).as_json(look)
                finally:
                    close_old_connections()
                page.made_at = now
            return page.text

    def _page(self, asked: Asked) -> _Page:
        may = (asked.may_revoke, asked.may_change_tenants, asked.may_change_users)
        key = (asked.site, asked.slug, asked.query.urlencode(), *may)
        with self._lock:
            if key not in self._pages and len(self._pages) >= SHARED_PAGES:
                self._pages.clear()
            return self._pages.setdefault(key, _Page())


_viewers = _Viewers()
_pages = _Pages()
