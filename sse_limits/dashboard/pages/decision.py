"""Decision: why exactly this one, and what now?

The id explains itself; the details (who asked, who held the full scope, what was told) are shown where they were kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.limits import Limits
from sse_limits.core.rejections import CAUSES, ENDS, Reason, Reject, body_of
from sse_limits.core.slots import Scope
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import Look, split_user
from sse_limits.dashboard.table import Column, Description, Table
from sse_limits.dashboard.view import Search, View, banner
from sse_limits.limiter import explain_decision
from sse_limits.live.explain import Explained
from sse_limits.live.rows import DecisionRow

from .decision_checks import CheckTable
from .story import also, story


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody who held a part of the full scope then. `now` is None when nobody knows."""

    key: str
    name: SafeString | str
    then: str
    now: str
    action: SafeString | str = ""


class DecisionPage:
    """One decision, as far as it is known."""

    def __init__(self, look: Look, id: str, known: Explained) -> None:
        self.look = look
        self.id = id
        self.said, self.row = known

    @property
    def user(self) -> str | None:
        """The subject of the user who asked."""
        if self.row is None or self.row.user is None:
            return None
        return f"{self.row.tenant}/{self.row.user}" if self.row.tenant else self.row.user

    @cached_property
    def limits(self) -> Limits | None:
        """What holds for them now."""
        if self.user is not None:
            return self.look.user_limits(self.user)
        return self.look.anonymous_limits if self.row is not None and self.row.address else None

    def parts(self) -> dict[str, SafeString | str]:
        """The page's texts."""
        shows = self.look.asked.shows_addresses
        return {
            "story": story(self.said, self.row, shows_addresses=shows),
            "also": also(self.said, self.row),
            "held_title": self._held_title(),
            "todo": self._todo(),
            "attempt": self._attempt(),
            "answer": self._answer(),
            "alike": self._alike(),
        }

    # -- who held it ---------------------------------------------------------------------------------------------

    def _held_title(self) -> str:
        return _("Who held the %(count)s then") % {"count": formats.number(self.said.in_use or 0)}

    def held(self) -> Table | None:
        """Who held the full scope then, and what they hold now."""
        row = self.row
        if row is None or not row.holders:
            return None
        is_streams = row.scope is Scope.USER
        columns = [
            Column[Held](
                key="name", label=_("Stream") if is_streams else _("User"),
                cell=lambda held: format_html("{}", held.name),
            ),
            Column[Held](
                key="then", label=_("Open for") if is_streams else _("Then"), cell=lambda held: held.then,
                is_number=True,
            ),
            Column[Held](key="now", label=_("Now"), cell=lambda held: formats.live(held.now), is_number=True),
            Column[Held](
                key="action", label=_("Action"), cell=lambda held: format_html("{}", held.action), is_number=True
            ),
        ]  # fmt: skip
        found = self._streams_held(row) if is_streams else self._users_held(row)
        if row.others:
            found.append(Held("others", formats.quiet(_("others")), formats.number(row.others), "–"))
        table = Description[Held](
            id="held",
            caption=self._held_title(),
            columns=columns if self.look.asked.may_revoke else columns[:-1],
            key=lambda held: held.key,
            can_sort=False,
        )
        return table.render(found, self.look.asked.query)

    def _users_held(self, row: DecisionRow) -> list[Held]:
        subjects = [f"{row.tenant}/{name}" if row.tenant else name for name, _count in row.holders]
        asked = [(Scope.USER, subject) for subject in subjects]
        now: Sequence[int | None] = self.look.ask(lambda: self.look.board.in_use(asked), [None] * len(asked))
        return [
            Held(
                subject,
                formats.link(self.look.asked.url("streams", user=subject), name),
                formats.number(then),
                "–" if count is None else formats.number(count),
                self._disconnect(user=subject) if count else "",
            )
            for subject, (name, then), count in zip(subjects, row.holders, now, strict=True)
        ]

    def _streams_held(self, row: DecisionRow) -> list[Held]:
        found = []
        for id, seconds in row.holders:
            stream = self.look.ask(lambda id=id: self.look.board.stream(id), None)  # type: ignore[misc]
            state = _("open") if stream is not None else "–" if self.look.is_away else _("ended")
            action = self._disconnect(stream=id) if stream is not None else ""
            found.append(Held(id, formats.mono(id), formats.age(seconds), state, action))
        return found

    def _disconnect(self, **whom: str) -> SafeString:
        return formats.link(self.look.asked.url("disconnect", **whom), _("Disconnect…"), "sl-btn sl-ask")

    # -- what now ------------------------------------------------------------------------------------------------

    def _todo(self) -> SafeString:
        row, asked = self.row, self.look.asked
        found: list[tuple[str, str, SafeString]] = []
        if self.said.reason is Reason.TENANT_LIMIT and row is not None and row.tenant:
            link = formats.link(asked.url("streams", tenant=row.tenant), _("Show them"), "sl-btn")
            found.append((_("Look at what is open."), _("The oldest streams may be ones that nobody reads."), link))
        if self.said.reason is Reason.USER_LIMIT and self.user is not None:
            link = formats.link(asked.url("streams", user=self.user), _("Show them"), "sl-btn")
            text = _(
                "A user at their own limit is the limiter at work; ending one of their streams makes room for another."
            )
            found.append((_("Look at what the user holds."), text, link))
        found += self._raises()
        return format_html(
            '<ul class="sl-do">{}</ul>' if found else "",
            format_html_join("", '<li><span><b class="b">{}</b> {}</span>{}</li>', found),
        )

    def _raises(self) -> Iterator[tuple[str, str, SafeString]]:
        """The way to the limit that was full, for those who may change it."""
        asked, limit = self.look.asked, formats.number(self.said.limit or 0)
        tenant = self.row.tenant if self.row is not None else None
        text = _("It is %(limit)s now; a change is in force on every node within 2 s.") % {"limit": limit}
        if self.said.reason is Reason.TENANT_LIMIT and tenant is not None and asked.may_change_tenants:
            link = formats.link(asked.url("limits", tenant=tenant), _("Change limits"), "sl-btn")
            yield _("Raise the limit of %(name)s.") % {"name": tenant}, text, link
        if self.said.reason is Reason.USER_LIMIT and self.user is not None and asked.may_change_users:
            link = formats.link(asked.url("limits", user=self.user), _("Change limits"), "sl-btn")
            yield _("Raise the limit of %(name)s.") % {"name": split_user(self.user)[1]}, text, link

    # -- facts ---------------------------------------------------------------------------------------------------

    def _attempt(self) -> SafeString:
        said, row, asked = self.said, self.row, self.look.asked
        scope = f", {said.scope}" if said.scope is not None else ""
        when = f"{formats.moment(said.at):%d %b %Y, %H:%M:%S %Z}"
        facts: list[tuple[object, object]] = [
            (_("Decision"), formats.mono(self.id)),
            (_("When"), when),
            (_("Reason"), formats.reason(said.reason)),
            (_("Layer, scope"), f"{CAUSES[said.reason].layer}{scope}"),
        ]
        if row is not None:
            if self.user is not None:
                user = formats.link(asked.url("streams", user=self.user), row.user)
                facts.append((_("User"), format_html("{}, {}", user, _("tier %(tier)s") % {"tier": row.tier})))
            if row.tenant is not None:
                facts.append((_("Tenant"), formats.link(asked.url("streams", tenant=row.tenant), row.tenant)))
            if row.address is not None:
                facts.append((_("Address"), self._address(row.address)))
            facts.append((_("Stream"), f"{formats.transport(row.transport)} {row.path}"))
            facts.append((_("Mode"), row.mode))
            if row.note:
                facts.append((_("Operator’s word"), row.note))
        facts.append((_("Node"), self._node()))
        facts.append((_("Policy"), said.policy_version))
        if row is None:
            facts.append((_("Details"), _("not kept; all that is shown stands in the id")))
        return formats.facts(facts)

    def _address(self, address: str) -> SafeString:
        shown = formats.address(address, is_shown=self.look.asked.shows_addresses)
        if not self.look.asked.may_revoke or self.look.asked.shows_addresses:
            return shown
        return format_html("{} {}", shown, formats.link(self.look.asked.here(addresses="show"), _("show")))

    def _node(self) -> SafeString:
        for node in self.look.snapshot.nodes:
            if node.name == self.said.node:
                return formats.link(self.look.asked.url("nodes", open=node.id), formats.node(node.id))
        if self.row is not None and self.row.node:
            return format_html("{}, {}", formats.node(self.row.node), _("no longer alive"))
        return format_html("{}, {}", self.said.node, _("no longer alive"))

    def _answer(self) -> SafeString:
        row = self.row
        status = HTTPStatus(row.status) if row is not None and row.status else CAUSES[self.said.reason].status
        if self.said.reason in ENDS:
            code = CAUSES[self.said.reason].close_code
            text = _("An event stream ends with the event %(reason)s, a WebSocket with the close code %(code)d.")
            return format_html("<p>{}</p>", text % {"reason": self.said.reason, "code": code})
        lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
        if row is not None and row.retry_after is not None:
            lines.append(f"Retry-After: {row.retry_after}")
        if row is not None and status is not HTTPStatus.NO_CONTENT:
            lines += ["Content-Type: application/problem+json", "", self._body(row)]
        note = _("A browser’s own EventSource stops for good after such an answer.") if status >= 400 else ""
        return format_html('<pre>{}</pre><p class="q">{}</p>', "\n".join(lines), note)

    def _body(self, row: DecisionRow) -> str:
        said = self.said
        reject = Reject(said.reason, said.scope, said.limit, said.in_use)
        return json.dumps(json.loads(body_of(reject, self.id, row.retry_after, row.note)), indent=1, ensure_ascii=False)

    def _alike(self) -> SafeString:
        asked, reason = self.look.asked, self.said.reason
        same = sum(
            count
            for bucket in self.look.snapshot.rejections
            for cause, count in bucket.counts.items()
            if cause.reason is reason
        )
        text = _("%(count)s in 15 min")
        facts = [(_("Same cause"), formats.link(asked.url("rejections"), text % {"count": formats.number(same)}))]
        if self.row is not None and self.row.tenant:
            count = sum(
                row.count
                for row in self.look.snapshot.tenant_causes
                if row.tenant == self.row.tenant and row.cause.reason is reason
            )
            url = asked.url("rejections", tenant=self.row.tenant)
            label = _("Same, of %(tenant)s") % {"tenant": self.row.tenant}
            facts.append((label, formats.link(url, text % {"count": formats.number(count)})))
        return formats.facts(facts)


def build(look: Look) -> View:
    """The page."""
    id = look.asked.query.get("id", "").strip()
    filters = [Search("id", _("Decision id"), id, button=_("Look up"), is_id=True)]
    parts: dict[str, SafeString | str] = {"banner": banner(look)}
    known = explain_decision(id) if id else None
    if known is None:
        where = _("Decision ids are in the client’s error, in the log and in every list here.")
        unknown = _("This is no decision id of this site: it may be cut off, or made with another SECRET_KEY.")
        return View(parts={**parts, "unknown": unknown if id else "", "count": where}, filters=filters)
    page = DecisionPage(look, id, known)
    tables = {"checks": CheckTable(look, page.said, page.row, page.limits).render()}
    held = page.held()
    if held is not None:
        tables["held"] = held
    return View(parts={**parts, **page.parts()}, tables=tables, filters=filters)
