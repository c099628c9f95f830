"""What the one chart component draws: series over time, in the order in which they are stacked from the bottom.

The browser draws with uPlot; the legend with the latest values and a table with the same facts come from the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from sse_limits.core.rejections import ENDS, Reason
from sse_limits.live.board import Point
from sse_limits.live.rows import Bucket

from . import formats

# In the order in which a stream is checked; `other` are reasons without a colour of their own.
GATE_ORDER = ("identity", "user_limit", "tenant_limit", "address_limit", "other", "store")
FACT_ROWS = 15
POINT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the legend; `name` is its colour."""

    name: str
    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart. `times` are epoch seconds; a stepped value holds for the span that ends there."""

    id: str
    title: str
    times: Sequence[int]
    series: Sequence[Series]
    digits: int = 0
    is_stepped: bool = False
    cap: int | None = None
    cap_label: str = ""

    def as_data(self) -> dict[str, object]:
        """For the browser."""
        return {
            "times": self.times,
            "series": [[series.name, series.label, series.values] for series in self.series],
            "digits": self.digits,
            "stepped": self.is_stepped,
            "cap": self.cap,
        }

    @property
    def legend(self) -> SafeString:
        """The latest values, in the order of the stack."""
        items = [
            format_html(
                '<li class="{}"><i class="sw {}"></i>{} <b>{}</b></li>',
                "" if series.values and series.values[-1] else "z",
                series.name,
                series.label,
                formats.number(series.values[-1] if series.values else 0, self.digits),
            )
            for series in self.series
        ]
        if self.cap is not None:
            dashed = '<li><i class="sw dash"></i>{} <b>{}</b></li>'
            items.append(format_html(dashed, self.cap_label, formats.number(self.cap)))
        return SafeString("".join(items))

    @property
    def facts(self) -> SafeString:
        """The same as a table: some moments, the latest first."""
        step = max(1, len(self.times) // FACT_ROWS)
        moments = range(len(self.times) - 1, -1, -step)
        head = format_html_join("", '<th scope="col" class="num">{}</th>', [(s.label,) for s in self.series])
        body = [
            format_html(
                '<tr><th scope="row">{}</th>{}</tr>',
                formats.clock(self.times[moment] * 1000),
                format_html_join(
                    "",
                    '<td class="num">{}</td>',
                    [(formats.count(s.values[moment], self.digits),) for s in self.series],
                ),
            )
            for moment in moments
        ]
        return format_html(
            '<thead><tr><th scope="col">{}</th>{}</tr></thead><tbody>{}</tbody>',
            _("Time"),
            head,
            SafeString("".join(body)),
        )


def in_use(history: Sequence[Point], cap: int | None) -> Chart:
    """Streams in use, by transport."""
    return Chart(
        id="in_use",
        title=_("Streams in use"),
        times=[point.at // 1000 for point in history],
        series=[
            Series("SSE", "SSE", [point.sse for point in history]),
            Series("WebSocket", "WebSocket", [point.websocket for point in history]),
        ],
        cap=cap,
        cap_label=_("fleet capacity"),
    )


def rejections(buckets: Sequence[Bucket]) -> Chart:
    """Rejections a second, by reason; the running span is not over and is left out."""
    whole = buckets[:-1]
    by_name: dict[str, list[float]] = {name: [0.0] * len(whole) for name in GATE_ORDER}
    for position, bucket in enumerate(whole):
        for cause, count in bucket.counts.items():
            if cause.reason not in ENDS:
                by_name[formats.colour(Reason(cause.reason))][position] += count / bucket.seconds
    return Chart(
        id="rejections",
        title=_("Rejections per second"),
        times=[bucket.at // 1000 + bucket.seconds for bucket in whole],
        series=[Series(name, name, [round(value, 2) for value in values]) for name, values in by_name.items()],
        digits=1,
        is_stepped=True,
    )


def rejected(bucket: Bucket) -> int:
    """How many streams were rejected in a span; those that we ended are not among them."""
    return sum(count for cause, count in bucket.counts.items() if cause.reason not in ENDS)
