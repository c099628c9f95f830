"""The table of the latest decisions, on the overview and below the rejections."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.rejections import CAUSES, ENDS, Layer
from sse_limits.dashboard import formats
from sse_limits.dashboard.look import Look
from sse_limits.dashboard.table import Column, Description
from sse_limits.live.rows import DecisionRow


class DecisionTable:
    """Who was refused what, and why."""

    def __init__(self, look: Look, *, is_brief: bool = False) -> None:
        self.look = look
        self.is_brief = is_brief

    def description(self) -> Description[DecisionRow]:
        """What it shows."""
        columns = [
            Column[DecisionRow](
                key="at", label=_("Age"), cell=lambda row: formats.quiet(formats.since(row.at, self.look.now)),
                value=lambda row: formats.moment(row.at).isoformat(), is_number=True, classes="tight",
            ),
            Column[DecisionRow](key="who", label=_("Who"), cell=self._who, value=self._who_text),
            Column[DecisionRow](
                key="tenant", label=_("Tenant"), cell=self._tenant, value=lambda row: row.tenant or "",
                leaves=3 if self.is_brief else 2,
            ),
            Column[DecisionRow](
                key="reason", label=_("Reason"), cell=self._reason, value=lambda row: row.reason
            ),
            Column[DecisionRow](
                key="in_use", label=_("In use / limit"), cell=in_use_of_limit, value=lambda row: row.in_use,
                is_number=True, leaves=2,
            ),
            Column[DecisionRow](key="limit", label="", cell=lambda row: "", value=lambda row: row.limit),
            Column[DecisionRow](
                key="answer", label=_("Answer"), cell=self._answer, value=lambda row: row.status or None, leaves=2
            ),
            Column[DecisionRow](
                key="decision", label=_("Decision"), cell=self._decision, value=lambda row: row.id, leaves=2
            ),
        ]  # fmt: skip
        only_in_downloads = {"limit"} | ({"in_use", "answer"} if self.is_brief else set())
        is_download = self.look.asked.query.get("format") in ("csv", "json")
        return Description(
            id="decisions",
            caption=_("Latest rejections") if self.is_brief else _("Last decisions"),
            columns=[column for column in columns if is_download or column.key not in only_in_downloads],
            key=lambda row: row.id,
            head=1,
            can_sort=False,
            asks_before_new=not self.is_brief,
            opens_when_narrow=not self.is_brief,
        )

    def _who(self, row: DecisionRow) -> SafeString:
        if row.user is None:
            if row.address is None:
                return formats.quiet(_("no name"))
            return formats.address(row.address, is_shown=self.look.asked.shows_addresses)
        subject = f"{row.tenant}/{row.user}" if row.tenant else row.user
        return formats.link(self.look.asked.url("streams", user=subject), row.user, "name")

    def _who_text(self, row: DecisionRow) -> str:
        if row.user is not None or row.address is None:
            return row.user or ""
        return row.address if self.look.asked.shows_addresses else formats.mask(row.address)

    def _tenant(self, row: DecisionRow) -> SafeString:
        if row.tenant is None:
            is_anonymous = row.user is None and CAUSES[row.reason].layer is not Layer.IDENTITY
            return formats.quiet(_("(anonymous)")) if is_anonymous else formats.DASH
        return formats.link(self.look.asked.url("streams", tenant=row.tenant), row.tenant, "plain")

    def _answer(self, row: DecisionRow) -> SafeString:
        if row.reason in ENDS:
            return formats.quiet(_("ended"))
        return format_html("{}", row.status)

    def _reason(self, row: DecisionRow) -> SafeString:
        """Also the way to the decision, where the window is too narrow for its id."""
        return formats.link(self.look.asked.url("decision", id=row.id), formats.reason(row.reason), "plain")

    def _decision(self, row: DecisionRow) -> SafeString:
        return formats.link(self.look.asked.url("decision", id=row.id), formats.short_id(row.id), "mono")


def in_use_of_limit(row: DecisionRow) -> SafeString:
    """200 / 200."""
    if row.in_use is None or row.limit is None:
        return formats.DASH
    return format_html('{} <span class="q">/ {}</span>', formats.number(row.in_use), formats.number(row.limit))
