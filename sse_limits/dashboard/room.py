"""The live room's place in the admin: every page mounted by one ModelAdmin, so that nobody's urls.py changes.

A page is read-only and works from any process, also one under WSGI that holds no stream. Only `actions` changes things.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.timezone import get_current_timezone_name, localtime

from sse_limits.conf import get_conf
from sse_limits.models import LiveRoom

from .actions import Actions
from .formats import clock
from .look import Asked, Look, take_look
from .pages import PAGES
from .stream import LiveStream
from .suspension import Suspension
from .table import FILTERS_FORM, Description
from .view import View

VIEW_LIVE = "sse_limits.view_live"
REVOKE_STREAM = "sse_limits.revoke_stream"
POLL_SECONDS = 2
# What a filter form must not carry on: the page that was shown, and what its own buttons say.
NOT_CARRIED = ("offset", "before", "open", "close", "sort", "format")


@admin.register(LiveRoom)
class LiveRoomAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Mounts the pages, and says who may see them."""

    def get_urls(self) -> list[URLPattern]:
        """The pages, their live updates, and the actions."""
        wrap = self.admin_site.admin_view
        actions, suspension = Actions(self), Suspension(self)
        found = [
            path("", wrap(partial(self.page, slug="overview")), name="sse_limits_liveroom_changelist"),
            path("disconnect/", wrap(actions.disconnect), name="sse_limits_live_disconnect"),
            path("suspend/", wrap(suspension.suspend), name="sse_limits_live_suspend"),
            path("limits/", wrap(suspension.form), name="sse_limits_live_limits"),
            path("ended/", wrap(actions.ended), name="sse_limits_live_ended"),
        ]
        for slug in PAGES:
            stream = LiveStream(self, slug).view
            found += [
                path(f"{slug}/", wrap(partial(self.page, slug=slug)), name=f"sse_limits_live_{slug}"),
                path(f"{slug}/now/", wrap(partial(self.now, slug=slug)), name=f"sse_limits_live_{slug}_now"),
                path(f"{slug}/events/", stream, name=f"sse_limits_live_{slug}_events"),
            ]
        return found

    # -- permissions ---------------------------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, obj: LiveRoom | None = None) -> bool:
        """Whoever may see the live room."""
        return request.user.has_perm(VIEW_LIVE)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """The same: it has no objects of its own."""
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody: there is one room."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: LiveRoom | None = None) -> bool:
        """Nobody: it shows what is."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: LiveRoom | None = None) -> bool:
        """Nobody."""
        return False

    def may_revoke(self, request: HttpRequest) -> bool:
        """Whether streams may be ended."""
        return request.user.has_perm(REVOKE_STREAM)

    def require_view(self, request: HttpRequest) -> None:
        """Raise `PermissionDenied` for those who may not see the room."""
        if not self.has_view_permission(request):
            raise PermissionDenied

    # -- pages ---------------------------------------------------------------------------------------------------

    def asked(self, request: HttpRequest, slug: str) -> Asked:
        """What this request wants to see."""
        return Asked(
            self.admin_site.name,
            slug,
            request.GET,
            may_revoke=self.may_revoke(request),
            may_change_tenants=self._may_change(request, "change_tenant"),
            may_change_users=self._may_change(request, "add_userlimit", "change_userlimit"),
        )

    def _may_change(self, request: HttpRequest, *permissions: str) -> bool:
        """Whether limits may be changed, and are where they can be."""
        return get_conf().policy is None and request.user.has_perms([f"sse_limits.{each}" for each in permissions])

    def page(self, request: HttpRequest, slug: str) -> HttpResponse:
        """A page, or what it downloads."""
        self.require_view(request)
        request.current_app = self.admin_site.name  # what `{% url %}` of a site reads
        asked = self.asked(request, slug)
        look = take_look(asked)
        page = PAGES[slug]
        wanted = asked.query.get("format", "")
        if page.records is not None and wanted in ("csv", "json"):
            return self._download(slug, wanted, *page.records(look))
        view = page.build(look)
        return TemplateResponse(request, f"sse_limits/live/{page.template}.html", self._context(request, look, view))

    def now(self, request: HttpRequest, slug: str) -> JsonResponse:
        """The page's content as JSON: for those who poll."""
        self.require_view(request)
        look = take_look(self.asked(request, slug))
        return JsonResponse(PAGES[slug].build(look).as_data(look), json_dumps_params={"separators": (",", ":")})

    def _context(self, request: HttpRequest, look: Look, view: View) -> dict[str, object]:
        asked = look.asked
        page = PAGES[asked.slug]
        query = asked.query.urlencode()
        names = [f"{asked.site}:sse_limits_live_{asked.slug}_{kind}" for kind in ("events", "now")]
        events, now = [f"{reverse(name)}{'?' if query else ''}{query}" for name in names]
        return {
            **self.admin_site.each_context(request),
            "title": page.title if asked.slug != "overview" else self.opts.verbose_name_plural,
            "opts": self.opts,
            "tabs": [(asked.url(slug), tab.title, slug == asked.slug) for slug, tab in PAGES.items()],
            "page": page,
            "asked": asked,
            "look": look,
            "clock": clock(look.now),
            "view": view,
            "live": {"events": events, "now": now, "poll_seconds": POLL_SECONDS},
            "first": {"charts": view.as_data(look)["charts"], "utc_offset": _utc_offset()},
            "zone": localtime().tzname() or get_current_timezone_name(),
            "filters_form": FILTERS_FORM,
            "carried": _carried(asked.query, view),
        }

    def _download(self, slug: str, wanted: str, description: Description[Any], rows: Sequence[Any]) -> HttpResponse:
        response: HttpResponse
        if wanted == "json":
            response = JsonResponse(description.as_records(rows), safe=False, json_dumps_params={"indent": 1})
        else:
            response = HttpResponse(description.as_csv(rows), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{slug}.{wanted}"'
        return response


def _utc_offset() -> int:
    offset = localtime().utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _carried(query: QueryDict, view: View) -> list[tuple[str, str]]:
    """What the filter form carries on beside its own fields: the rows that are open, the order, the holder shown."""
    own = {found.name for found in view.filters}
    closed = query.getlist("close")
    opened = [("open", key) for key in query.getlist("open") if key not in closed]
    kept = [(name, query.get(name, "")) for name in query if name not in own and name not in NOT_CARRIED]
    return [*opened, *kept]
