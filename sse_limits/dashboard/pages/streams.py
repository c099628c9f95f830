"""Streams: what does this one hold, what can I end?"""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import Look, split_user
from sse_limits.dashboard.table import PAGE_ROWS, foot
from sse_limits.dashboard.view import (
    Figure,
    Records,
    Search,
    View,
    banner,
    downloads,
    figures,
    nothing_matches,
    place,
    whole,
)
from sse_limits.live.rows import StreamRow
from sse_limits.streams import here

from .streams_table import StreamTable, Whose

SEARCHED_ROWS = 1000
NOT_KNOWN: tuple[int, Sequence[StreamRow]] = (0, ())


class StreamPage:
    """One holder's streams, or the fleet's."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.whose = Whose.of(look)
        self.needle = look.asked.query.get("q", "").strip().casefold()
        self.offset = whole(look.asked.query.get("offset"))

    @cached_property
    def total(self) -> int:
        """How many streams the holder has."""
        return self._read(0, 1)[0] if self.needle else self._page[0]

    @cached_property
    def rows(self) -> Sequence[StreamRow]:
        """The page's rows, or what the search finds among the oldest."""
        return self._matching if self.needle else self._page[1]

    @cached_property
    def _page(self) -> tuple[int, Sequence[StreamRow]]:
        return self._read(self.offset, PAGE_ROWS)

    @cached_property
    def _matching(self) -> Sequence[StreamRow]:
        known = self._read(0, SEARCHED_ROWS)[1]
        found = [row for row in known if self.needle in f"{row.id} {row.path} {row.user or ''}".casefold()]
        exact = self.look.ask(lambda: self.look.board.stream(self.needle), None) if not found else None
        return [exact] if exact is not None else found[:PAGE_ROWS]

    def _read(self, offset: int, count: int) -> tuple[int, Sequence[StreamRow]]:
        subject = self.whose.subject
        if subject is None:
            return 0, []
        if self.look.is_away:
            found = here.streams(self.whose.scope, subject)
            return len(found), found[offset : offset + count]
        board = self.look.board
        return self.look.ask(lambda: board.streams(self.whose.scope, subject, offset=offset, count=count), NOT_KNOWN)

    def view(self) -> View:
        """The page."""
        table = StreamTable(self.look, self.whose).description()
        asked = self.look.asked
        parts = {"foot": foot(self._place(), downloads(asked), *self._steps())}
        if not self.rows:
            parts["empty"] = self._empty()
        return View(
            parts={
                "banner": banner(self.look),
                "whose": self._title(),
                "elsewhere": self._elsewhere(),
                "figures": self._figures(),
                "count": self._count(),
            },
            tables={"streams": table.render(self.rows, asked.query, parts)},
            filters=[Search("q", _("Path, stream id, user"), asked.query.get("q", ""))],
        )

    def _place(self) -> str:
        if self.needle:
            return _("searched the oldest %(count)s") % {"count": formats.number(min(self.total, SEARCHED_ROWS))}
        return place(self.offset, len(self.rows), self.total)

    def _steps(self) -> tuple[str | None, str | None]:
        here = self.look.asked.here
        before = here(offset=max(0, self.offset - PAGE_ROWS) or None) if self.offset else None
        more = not self.needle and self.total > self.offset + len(self.rows)
        return before, here(offset=self.offset + PAGE_ROWS) if more else None

    def _count(self) -> str:
        streams = ngettext("%(count)s stream", "%(count)s streams", self.total) % {"count": formats.number(self.total)}
        if self.look.sees_own:
            return _("%(streams)s of this node") % {"streams": streams}
        return _("%(streams)s, oldest first") % {"streams": streams} if self.total > 1 else streams

    def _title(self) -> SafeString:
        groups = {
            Scope.USER: ("user", _("Users")),
            Scope.TENANT: ("tenant", _("Tenants")),
            Scope.ADDRESS: ("address", _("Addresses")),
            Scope.NODE: ("node", _("Nodes")),
        }
        if self.whose.scope not in groups:
            return SafeString(_("All streams"))
        by, label = groups[self.whose.scope]
        tenant = split_user(self.whose.subject or "")[0] if self.whose.scope is Scope.USER else ""
        steps = [formats.link(self.look.asked.url("holders", by=by), label)]
        if tenant:
            steps.append(formats.link(self.look.asked.url("streams", tenant=tenant), tenant))
        steps.append(format_html("{}", self.whose.name))
        return SafeString(' <span class="q">&rsaquo;</span> '.join(steps))

    def _elsewhere(self) -> SafeString:
        """Ways on: the holder's last rejection, addresses, ending all of a user's streams."""
        asked, whose = self.look.asked, self.whose
        links = []
        last = next((row.id for row in self.look.snapshot.latest if self._is_of(row.tenant, row.user)), None)
        if last is not None:
            links.append(formats.link(asked.url("decision", id=last), _("Last rejection")))
        if asked.may_revoke:
            shown = asked.shows_addresses
            links.append(
                formats.link(
                    asked.here(addresses=None if shown else "show"),
                    _("Mask addresses") if shown else _("Show addresses"),
                )
            )
        if asked.may_revoke and whose.scope is Scope.USER and whose.subject:
            links.append(
                formats.link(asked.url("disconnect", user=whose.subject), _("Disconnect all…"), "sl-btn sl-ask")
            )
        return SafeString(" ".join([*links, *self._limits()]))

    def _limits(self) -> list[SafeString]:
        """Ways to what the holder may hold."""
        asked, whose, policy = self.look.asked, self.whose, self.look.policy
        subject = whose.subject or ""
        if whose.scope is Scope.TENANT and asked.may_change_tenants and subject in policy.tenants:
            return [formats.link(asked.url("limits", tenant=subject), _("Limits of %(name)s") % {"name": subject})]
        tenant, name = split_user(subject)
        if whose.scope is not Scope.USER or not asked.may_change_users or (tenant and tenant not in policy.tenants):
            return []
        own = policy.users.get((tenant or None, name))
        word = _("Lift the suspension…") if own is not None and own.suspended else _("Suspend…")
        return [
            formats.link(asked.url("limits", user=subject), _("Limits of %(name)s") % {"name": name}),
            formats.link(asked.url("suspend", user=subject), word, "sl-btn sl-ask"),
        ]

    def _is_of(self, tenant: str | None, user: str | None) -> bool:
        match self.whose.scope:
            case Scope.USER:
                return self.whose.subject == (f"{tenant}/{user}" if tenant else user)
            case Scope.TENANT:
                return self.whose.subject == tenant
        return False

    # -- figures -------------------------------------------------------------------------------------------------

    def _figures(self) -> SafeString:
        if self.whose.scope is Scope.FLEET or self.whose.subject is None or self.look.is_away:
            return SafeString("")
        found = [self._in_use(), self._share()]
        if self.whose.scope is Scope.USER:
            found.append(self._at_limit())
        return figures(found)

    def _in_use(self) -> Figure:
        used, limit = self.total, self._limit()
        if limit is None:
            return Figure(_("In use"), formats.live(formats.number(used)), note=_("no limit"))
        unit = format_html("{} {}", _("of %(limit)s") % {"limit": formats.number(limit)}, self._limit_from())
        share = formats.percent_of(used, limit)
        kind = "wide" if self.whose.scope is Scope.USER else f"wide {formats.level(share)}"
        return Figure(_("In use"), formats.live(formats.number(used)), unit, formats.bar(share, kind))

    def _limit(self) -> int | None:
        if self.whose.scope is Scope.NODE:
            return next((node.budget for node in self.look.snapshot.nodes if node.id == self.whose.subject), None)
        return self.look.limit(self.whose.scope, self.whose.subject or "")

    def _limit_from(self) -> SafeString:
        subject = self.whose.subject or ""
        if self.whose.scope is Scope.USER:
            limits = self.look.user_limits(subject)
            return formats.provenance(limits.provenance.get("user_limit") if limits is not None else None)
        if self.whose.scope is Scope.TENANT:
            limits = self.look.policy.of_tenant(subject)
            return formats.provenance(limits.provenance.get("tenant_limit") if limits is not None else None)
        return SafeString("")

    def _share(self) -> Figure:
        tenant = split_user(self.whose.subject or "")[0] if self.whose.scope is Scope.USER else ""
        if tenant:
            held = self.look.ask(lambda: self.look.board.in_use([(Scope.TENANT, tenant)])[0], 0)
            label = _("Share of %(tenant)s") % {"tenant": tenant}
        else:
            held, label = self.look.snapshot.fleet_in_use, _("Share of the fleet")
        note = _("%(part)s of %(whole)s") % {"part": formats.number(self.total), "whole": formats.number(held)}
        return Figure(label, formats.live(formats.percent(self.total, held)), note=note)

    def _at_limit(self) -> Figure:
        limits = self.look.user_limits(self.whose.subject or "")
        if limits is None:
            return Figure(_("At the limit"), _("refused"), note=_("suspended, or not known to the policy"))
        choice = _("evict oldest") if limits.evicts else _("reject")
        return Figure(_("At the limit"), choice, note=formats.provenance(limits.provenance.get("at_user_limit")))

    def _empty(self) -> SafeString:
        if self.look.sees_own and not self.needle:
            return SafeString(_("This node holds none. What others hold nobody knows while the store is away."))
        if self.look.is_away and not self.look.own:
            return SafeString(_("Nobody knows which streams are open while the store is away."))
        if self.needle:
            return nothing_matches(self.look, _("stream"), self.look.asked.query.get("q", ""), "q")
        if self.whose.name:
            return format_html("{}", _("%(name)s holds no stream.") % {"name": self.whose.name})
        return SafeString(_("No stream is open."))


def build(look: Look) -> View:
    """The page."""
    return StreamPage(look).view()


def records(look: Look) -> Records:
    """What the page downloads: the oldest thousand of the holder's streams."""
    whose = Whose.of(look)
    subject = whose.subject
    description = StreamTable(look, whose).description()
    if subject is None:
        return description, []
    if look.is_away:
        return description, here.streams(whose.scope, subject)[:SEARCHED_ROWS]
    found = look.ask(lambda: look.board.streams(whose.scope, subject, count=SEARCHED_ROWS), NOT_KNOWN)
    return description, found[1]
