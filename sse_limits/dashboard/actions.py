"""What an operator may do: end streams. It asks first, is kept in the history, and proves what it did.

A GET shows the question, as a page or for the dialog; a POST with a reason does it. An order goes through the board to
the node that holds the stream, from whatever process; it is done when the slot is gone. While the store is away, the
streams of this process alone can be ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits import limiter
from sse_limits.core.rejections import Reason
from sse_limits.core.slots import Scope
from sse_limits.live.board import Board
from sse_limits.live.rows import StreamRow
from sse_limits.models import LiveRoom
from sse_limits.slots.base import StoreUnavailable
from sse_limits.streams import here

from . import formats
from .look import Asked, Look, split_user, take_look

if TYPE_CHECKING:
    from .room import LiveRoomAdmin

AT_ONCE = 500
ASKED_AT_ONCE = 200
REASON_CHARS = 120
PROOF_SECONDS = 2.0
PROOF_EVERY_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Target:
    """The streams that are meant, and whose they are; `total` counts also those beyond `AT_ONCE`.

    `is_here`: the store is away, so these are streams of this process, and `unreachable` others are not.
    """

    streams: Sequence[StreamRow]
    name: str
    total: int
    scope: Scope | None = None
    subject: str = ""
    is_here: bool = False
    unreachable: int = 0

    @property
    def question(self) -> str:
        """Disconnect 3 streams of ci-runner?"""
        count = len(self.streams)
        what = ngettext("%(count)s stream", "%(count)s streams", count) % {"count": formats.number(count)}
        if self.name:
            return _("Disconnect %(what)s of %(name)s?") % {"what": what, "name": self.name}
        return _("Disconnect %(what)s?") % {"what": what}

    @property
    def button(self) -> str:
        """Disconnect 3 streams."""
        count = len(self.streams)
        return ngettext("Disconnect %(count)s stream", "Disconnect %(count)s streams", count) % {
            "count": formats.number(count)
        }


class Actions:
    """The views of one admin site's room."""

    def __init__(self, room: LiveRoomAdmin) -> None:
        self._room = room

    # -- disconnect ----------------------------------------------------------------------------------------------

    def disconnect(self, request: HttpRequest) -> HttpResponse:
        """Ask, or end the streams that are meant."""
        self._require(request)
        query = request.POST if request.method == "POST" else request.GET
        try:
            look = take_look(Asked(self._room.admin_site.name, "streams", query, may_revoke=True))
            target = find(look, query)
        except StoreUnavailable:
            return self._failed(request, _("The store does not answer: nothing was ended."))
        if not target.streams:
            return self._failed(request, _why_none(look))
        if request.method != "POST":
            return self._ask(request, look, target, query)
        return self._end(request, look.board, target)

    def _ask(self, request: HttpRequest, look: Look, target: Target, query: QueryDict) -> HttpResponse:
        context = {
            "target": target,
            "told": _consequence(look, target),
            "unreachable": _unreachable(target.unreachable) if target.unreachable else "",
            "beyond": target.total - len(target.streams),
            "fields": [(name, value) for name in ("stream", "user", "tenant") for value in query.getlist(name)],
            "action": reverse(f"{self._room.admin_site.name}:sse_limits_live_disconnect"),
            "back": way_back(self._room, request, request.META.get("HTTP_REFERER", "")),
            "reason_chars": REASON_CHARS,
        }
        return self._question(request, target.question, context)

    def _question(self, request: HttpRequest, title: str, context: dict[str, object]) -> HttpResponse:
        if is_script(request):
            return TemplateResponse(request, "sse_limits/live/ask.html", context)
        request.current_app = self._room.admin_site.name  # what `{% url %}` reads
        site = self._room.admin_site.each_context(request)
        page = {**site, "title": title, "opts": self._room.opts, "ask": "sse_limits/live/ask.html", **context}
        return TemplateResponse(request, "sse_limits/live/ask_page.html", page)

    def _end(self, request: HttpRequest, board: Board, target: Target) -> HttpResponse:
        note = request.POST.get("reason", "").strip()[:REASON_CHARS]
        ids = [stream.id for stream in target.streams]
        try:
            if target.is_here:
                here.end(ids, note)
            else:
                board.revoke(ids, Reason.REVOKED, note)
        except StoreUnavailable:
            return self._failed(request, _("The store does not answer: nobody knows whether the order was sent."))
        self._remember(request, target, note)
        if is_script(request):
            ordered = [{"id": stream.id, "node": formats.node(stream.node)} for stream in target.streams]
            return JsonResponse({"streams": ordered})
        self._prove(request, board, target)
        return HttpResponseRedirect(way_back(self._room, request, request.POST.get("back", "")))

    def _prove(self, request: HttpRequest, board: Board, target: Target) -> None:
        """Wait a moment for the slots to be gone, and say how it went."""
        began = time.monotonic()
        ids = [stream.id for stream in target.streams]
        left = len(target.streams)
        while left and time.monotonic() - began < PROOF_SECONDS:
            time.sleep(PROOF_EVERY_SECONDS)
            try:
                left = len(here.find(ids)) if target.is_here else sum(board.is_held(target.streams))
            except StoreUnavailable:
                break
        ended = len(target.streams) - left
        seconds = formats.number(time.monotonic() - began, 1)
        said = ngettext(
            "%(count)d stream ended, in %(seconds)s s.", "%(count)d streams ended, in %(seconds)s s.", ended
        )
        messages.success(request, said % {"count": ended, "seconds": seconds})
        if target.unreachable:
            messages.warning(request, _unreachable(target.unreachable))
        if left:
            open_still = ngettext(
                "%(count)d stream has not ended yet; the order is repeated with its node's next heartbeat.",
                "%(count)d streams have not ended yet; the order is repeated with their nodes' next heartbeat.",
                left,
            )
            messages.warning(request, open_still % {"count": left})

    def ended(self, request: HttpRequest) -> JsonResponse:
        """Which of these streams hold no slot any more."""
        self._require(request)
        asked = request.GET.getlist("stream")[:ASKED_AT_ONCE]
        try:
            board = limiter.get_board()
            return JsonResponse({"ended": [id for id in asked if board.stream(id) is None]})
        except StoreUnavailable:
            return JsonResponse({"ended": here.ended(asked)})

    # -- what all have in common ---------------------------------------------------------------------------------

    def _require(self, request: HttpRequest) -> None:
        self._room.require_view(request)
        if not self._room.may_revoke(request):
            raise PermissionDenied

    def _failed(self, request: HttpRequest, text: str) -> HttpResponse:
        if is_script(request) and request.method == "POST":
            return JsonResponse({"error": text}, status=409)
        messages.error(request, text)
        back = request.POST.get("back") or request.META.get("HTTP_REFERER", "")
        return HttpResponseRedirect(way_back(self._room, request, back))

    def _remember(self, request: HttpRequest, target: Target, note: str) -> None:
        count = len(target.streams)
        said = ngettext("Disconnected %(count)d stream", "Disconnected %(count)d streams", count) % {"count": count}
        ids = ", ".join(stream.id for stream in target.streams[:20])
        LiveRoom.log(
            request.user.pk,
            target.name or ids,
            f"{said}: {note or _('no reason given')} ({ids}{', …' if count > 20 else ''})",
        )


def find(look: Look, query: QueryDict) -> Target:
    """The streams that a request means: by id, or all of a user or a tenant. Raises `StoreUnavailable`."""
    for name, scope in (("user", Scope.USER), ("tenant", Scope.TENANT)):
        subject = query.get(name)
        if subject and not query.getlist("stream"):
            shown = split_user(subject)[1] if scope is Scope.USER else subject
            if look.is_away:
                own = here.streams(scope, subject)
                return Target(own[:AT_ONCE], shown, len(own), scope, subject, is_here=True)
            total, rows = look.board.streams(scope, subject, count=AT_ONCE)
            return Target(rows, shown, total, scope, subject)
    ids = query.getlist("stream")[:AT_ONCE]
    if not ids:
        raise Http404
    if look.is_away:
        own = here.find(ids)
        unreachable = len(ids) - len(own) - len(here.ended(ids))
        return replace(_of_one_or_many(own), is_here=True, unreachable=unreachable)
    return _of_one_or_many([row for row in map(look.board.stream, ids) if row is not None])


def _of_one_or_many(rows: Sequence[StreamRow]) -> Target:
    owners = {(row.tenant, row.user) for row in rows}
    if len(owners) == 1 and rows[0].user is not None:
        subject = f"{rows[0].tenant}/{rows[0].user}" if rows[0].tenant else rows[0].user
        return Target(rows, rows[0].user, len(rows), Scope.USER, subject)
    return Target(rows, "", len(rows))


def _why_none(look: Look) -> str:
    if not look.is_away:
        return _("None of these streams is open any more.")
    if not look.own:
        return _("The store does not answer: nothing was ended.")
    return _("None of these streams is on this node, and the others cannot be reached until the store is back.")


def _unreachable(count: int) -> str:
    return ngettext(
        "%(count)d stream is on another node and cannot be reached until the store is back.",
        "%(count)d streams are on other nodes and cannot be reached until the store is back.",
        count,
    ) % {"count": count}


def _consequence(look: Look, target: Target) -> str:
    """What follows: ci-runner will then hold 59 to 62 of 100."""
    if target.scope is None:
        return ""
    in_use = look.ask(lambda: look.board.in_use([(target.scope, target.subject)])[0], None)  # type: ignore[list-item]
    if in_use is None:
        return ""
    words: dict[str, Any] = {
        "name": target.name,
        "fewest": formats.number(max(0, in_use - len(target.streams))),
        "most": formats.number(in_use),
    }
    limit = look.limit(target.scope, target.subject)
    if limit is None:
        return _("%(name)s will then hold %(fewest)s to %(most)s.") % words
    return _("%(name)s will then hold %(fewest)s to %(most)s of %(limit)s.") % {**words, "limit": formats.number(limit)}


def way_back(room: LiveRoomAdmin, request: HttpRequest, url: str) -> str:
    """Where to go afterwards: where the operator came from, if that is this site."""
    if url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure()):
        return url
    return reverse(f"{room.admin_site.name}:sse_limits_live_streams")


def is_script(request: HttpRequest) -> bool:
    """Whether our script asks, which shows the answer in the page's dialog."""
    return request.headers.get("X-Requested-With") == "fetch"
