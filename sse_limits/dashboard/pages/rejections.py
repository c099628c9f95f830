"""Rejections: why, how much, since when?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sse_limits.core.rejections import CAUSES, ENDS, Layer, Reason
from sse_limits.dashboard import charts, formats
from sse_limits.dashboard.look import NO_TENANT, Look
from sse_limits.dashboard.table import Column, Description, foot
from sse_limits.dashboard.view import Choice, Records, Search, View, banner, downloads, nothing_matches
from sse_limits.live.rows import Bucket, DecisionRow, TenantCauses

from .decisions_table import DecisionTable

WINDOWS = {"5": 5, "15": 15, "60": 60, "1440": 1440}
DEFAULT_WINDOW = "15"
DECISION_ROWS = 25
TENANT_ROWS = 10
SEARCHED = 500
# In the order in which a stream is checked; what is not here follows by name.
CHECKED = (
    *(reason for reason, cause in CAUSES.items() if cause.layer is Layer.IDENTITY and reason not in ENDS),
    Reason.DRAINING,
    Reason.USER_LIMIT,
    Reason.CLASS_LIMIT,
    Reason.TENANT_LIMIT,
    Reason.ADDRESS_LIMIT,
    Reason.FLEET_LIMIT,
    Reason.STORE,
)
ALWAYS_SHOWN = (Reason.USER_LIMIT, Reason.TENANT_LIMIT, Reason.ADDRESS_LIMIT, Reason.STORE)


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """How often one reason was the reason; `is_end`: open streams were ended for it."""

    reason: Reason
    count: int
    whole: int
    most_from: str | None
    is_end: bool = False
    is_first: bool = True
    """Of its layer: the others don't repeat the name for those who see it above."""

    @property
    def layer(self) -> str:
        """Which part decided."""
        return _("ended") if self.is_end else CAUSES[self.reason].layer


class RejectionPage:
    """The rejections of a span of time, of all tenants or one."""

    def __init__(self, look: Look) -> None:
        self.look = look
        query = look.asked.query
        self.window = query.get("minutes", DEFAULT_WINDOW) if query.get("minutes") in WINDOWS else DEFAULT_WINDOW
        self.minutes = WINDOWS[self.window]
        self.tenant = query.get("tenant", "")
        self.needle = query.get("q", "").strip()

    # -- data ----------------------------------------------------------------------------------------------------

    @cached_property
    def buckets(self) -> Sequence[Bucket]:
        """The spans of the window; for 15 minutes the snapshot has them."""
        if self.minutes == WINDOWS[DEFAULT_WINDOW]:
            return self.look.snapshot.rejections
        return self.look.ask(lambda: self.look.board.rejections(minutes=self.minutes), ())

    @cached_property
    def causes(self) -> Sequence[TenantCauses]:
        """The same by tenant."""
        if self.minutes == WINDOWS[DEFAULT_WINDOW]:
            return self.look.snapshot.tenant_causes
        return self.look.ask(lambda: self.look.board.tenant_causes(minutes=self.minutes), ())

    @cached_property
    def counts(self) -> Counter[Reason]:
        """How often each reason came."""
        found: Counter[Reason] = Counter()
        if self.tenant:
            for row in self.causes:
                if row.tenant == self.tenant:
                    found[row.cause.reason] += row.count
            return found
        for bucket in self.buckets:
            for cause, count in bucket.counts.items():
                found[cause.reason] += count
        return found

    def reason_rows(self) -> list[ReasonRow]:
        """Every reason that came, and those that people look for."""
        most = self._most_from()
        refused = sum(count for reason, count in self.counts.items() if reason not in ENDS)
        ended = sorted(reason for reason in self.counts if reason in ENDS)
        shown = [reason for reason in CHECKED if self.counts[reason] or reason in ALWAYS_SHOWN]
        rows = [ReasonRow(reason, self.counts[reason], refused, most.get(reason)) for reason in shown]
        rows += [ReasonRow(reason, self.counts[reason], 0, most.get(reason), is_end=True) for reason in ended]
        before = ["", *(row.layer for row in rows)]
        return [replace(row, is_first=row.layer != last) for row, last in zip(rows, before, strict=False)]

    def _most_from(self) -> dict[Reason, str]:
        found: dict[Reason, Counter[str]] = {}
        for row in self.causes:
            found.setdefault(row.cause.reason, Counter())[row.tenant or NO_TENANT] += row.count
        return {reason: counts.most_common(1)[0][0] for reason, counts in found.items()}

    @cached_property
    def decisions(self) -> Sequence[DecisionRow]:
        """The latest decisions with details that the filters leave."""
        before = whole_ms(self.look.asked.query.get("before"))
        asked = SEARCHED if self.tenant or self.needle else DECISION_ROWS
        last_known: Sequence[DecisionRow] = self.look.snapshot.latest
        rows = self.look.ask(lambda: self.look.board.decisions(before=before, count=asked), last_known)
        return [row for row in rows if self._is_wanted(row)][:DECISION_ROWS]

    def _is_wanted(self, row: DecisionRow) -> bool:
        if self.tenant and row.tenant != self.tenant:
            return False
        needle = self.needle.casefold()
        return not needle or needle in f"{row.user or ''} {row.id} {row.address or ''}".casefold()

    # -- tables --------------------------------------------------------------------------------------------------

    def reasons(self) -> Description[ReasonRow]:
        """Layer by reason."""
        columns = [
            Column[ReasonRow](
                key="layer", label=_("Layer"), cell=_layer, value=lambda row: row.layer, leaves=2
            ),
            Column[ReasonRow](
                key="reason", label=_("Reason"), cell=lambda row: formats.reason(row.reason),
                value=lambda row: row.reason,
            ),
            Column[ReasonRow](
                key="count", label=self.window_label, cell=lambda row: formats.count(row.count),
                value=lambda row: row.count, is_number=True,
            ),
            Column[ReasonRow](key="share", label=_("Share"), cell=_share, is_number=True),
            Column[ReasonRow](
                key="most_from", label=_("Most from"), cell=lambda row: self._tenant(row.most_from),
                value=lambda row: row.most_from, leaves=2,
            ),
            Column[ReasonRow](key="answer", label=_("Answer"), cell=_answer, value=_answer, leaves=3),
        ]  # fmt: skip
        if self.tenant:
            columns = [column for column in columns if column.key != "most_from"]
        return Description(
            id="reasons",
            caption=_("Rejections by layer and reason"),
            columns=columns,
            key=lambda row: row.reason,
            head=1,
            can_sort=False,
        )

    def by_tenant(self) -> Description[TenantCauses]:
        """Tenant by reason."""
        columns = [
            Column[TenantCauses](
                key="tenant", label=_("Tenant"), cell=lambda row: self._tenant(row.tenant or NO_TENANT)
            ),
            Column[TenantCauses](key="reason", label=_("Reason"), cell=lambda row: formats.reason(row.cause.reason)),
            Column[TenantCauses](
                key="count", label=self.window_label, cell=lambda row: formats.count(row.count), is_number=True
            ),
        ]
        return Description(
            id="by_tenant",
            caption=_("Rejections by tenant"),
            columns=columns,
            key=lambda row: f"{row.tenant or ''} {row.cause.reason} {row.cause.mode}",
            can_sort=False,
        )

    def _tenant(self, slug: str | None) -> SafeString:
        if slug is None:
            return formats.DASH
        if slug == NO_TENANT:
            return formats.quiet(_("(anonymous)"))
        return formats.link(self.look.asked.here(tenant=slug), slug, "plain")

    @property
    def window_label(self) -> str:
        """15 min, 24 h."""
        return formats.age(self.minutes * 60) if self.minutes < WINDOWS["1440"] else formats.unit(24, "h")

    # -- the page ------------------------------------------------------------------------------------------------

    def view(self) -> View:
        """The page."""
        query = self.look.asked.query
        wanted = [row for row in self.causes if not self.tenant or row.tenant == self.tenant]
        return View(
            parts={"banner": banner(self.look), "summary": self._summary(), "count": ""},
            tables={
                "reasons": self.reasons().render(self.reason_rows(), query, {"foot": self._reasons_foot()}),
                "by_tenant": self.by_tenant().render(wanted[:TENANT_ROWS], query, self._nobody(wanted)),
                "decisions": DecisionTable(self.look)
                .description()
                .render(self.decisions, query, self._decision_parts()),
            },
            charts={"rejections": charts.rejections(self.buckets)},
            filters=self._filters(),
        )

    def _summary(self) -> str:
        refused = sum(charts.rejected(bucket) for bucket in self.buckets)
        seconds = self.buckets[0].seconds if self.buckets else 10
        text = ngettext(
            "%(count)s in %(window)s, in steps of %(step)s", "%(count)s in %(window)s, in steps of %(step)s", refused
        )
        all_tenants = _("; all tenants") if self.tenant else ""
        step = formats.duration(seconds)
        return text % {"count": formats.number(refused), "window": self.window_label, "step": step} + all_tenants

    def _reasons_foot(self) -> SafeString:
        return foot("", downloads(self.look.asked), None, None)

    def _nobody(self, wanted: Sequence[TenantCauses]) -> dict[str, SafeString]:
        if wanted:
            return {}
        return {"empty": SafeString(_("Nobody was refused in this time."))}

    def _decision_parts(self) -> dict[str, SafeString]:
        parts = {}
        if not self.decisions:
            if self.needle or self.tenant:
                parts["empty"] = nothing_matches(self.look, _("decision"), self.needle or self.tenant, "q", "tenant")
            else:
                parts["empty"] = SafeString(_("No decision is kept: nothing was refused in the last 24 h."))
        before = self.look.asked.query.get("before")
        is_more = len(self.decisions) == DECISION_ROWS
        older = self.look.asked.here(before=self.decisions[-1].at) if is_more else None
        newest = self.look.asked.here(before=None) if before else None
        parts["foot"] = foot(_("kept as far as the cap allows"), [], newest, older)
        return parts

    def _filters(self) -> list[Search | Choice]:
        windows = [("5", "5 min"), ("15", "15 min"), ("60", "1 h"), ("1440", "24 h")]
        refused = {row.tenant for row in self.causes if row.tenant} | ({self.tenant} if self.tenant else set())
        tenants = [("", _("All tenants")), *((slug, slug) for slug in sorted({*self.look.policy.tenants, *refused}))]
        return [
            Choice("minutes", _("Window"), windows, self.window, is_segmented=True),
            Choice("tenant", _("Tenant"), tenants, self.tenant),
            Search("q", _("User or decision id"), self.needle),
        ]


def build(look: Look) -> View:
    """The page."""
    return RejectionPage(look).view()


def records(look: Look) -> Records:
    """What the page downloads: layer by reason, or with `of=decisions` the latest decisions."""
    page = RejectionPage(look)
    if look.asked.query.get("of") == "decisions":
        return DecisionTable(look).description(), page.decisions
    return page.reasons(), page.reason_rows()


def whole_ms(text: str | None) -> int | None:
    """An instant from the query."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _layer(row: ReasonRow) -> str:
    return row.layer if row.is_first else format_html('<span class="visually-hidden">{}</span>', row.layer)


def _share(row: ReasonRow) -> SafeString:
    if not row.count or row.is_end:
        return formats.DASH
    return formats.quiet(formats.percent(row.count, row.whole, 1))


def _answer(row: ReasonRow) -> str:
    cause = CAUSES[row.reason]
    return _("closed with %(code)d") % {"code": cause.close_code} if row.is_end else str(int(cause.status))
