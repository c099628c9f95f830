"""What a page shows: one view model, painted by a template first and sent as JSON from then on.

`parts` are fragments of HTML by name, `tables` and `charts` what their components take. A template places them; the
live updates carry the same text under the same names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from . import formats, outage
from .charts import Chart
from .look import Asked, Look
from .table import PAGE_ROWS, Description, Table, foot

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

T = TypeVar("T")

Records = tuple[Description[Any], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Search:
    """A text field of the filters."""

    name: str
    label: str
    value: str
    button: str = ""
    is_id: bool = False
    kind: str = "search"


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter of which one value holds; `is_segmented` shows all values side by side."""

    name: str
    label: str
    options: Sequence[tuple[str, str]]
    value: str
    is_segmented: bool = False
    kind: str = "choice"


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the large numbers at the top."""

    label: str
    value: SafeString | str
    unit: SafeString | str = ""
    note: SafeString | str = ""
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that hurts somebody, and where to read more."""

    text: SafeString
    url: str
    label: str
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A page's content at one moment."""

    parts: Mapping[str, SafeString | str] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    charts: Mapping[str, Chart] = field(default_factory=dict)
    filters: Sequence[Search | Choice] = ()

    def as_data(self, look: Look) -> dict[str, object]:
        """For the browser."""
        return {
            "clock": formats.clock(look.now),
            "away": look.is_away,
            "own": look.sees_own,
            "parts": {name: str(html) for name, html in self._all_parts()},
            "tables": {name: table.rows for name, table in self.tables.items()},
            "charts": {name: chart.as_data() for name, chart in self.charts.items()},
        }

    def as_json(self, look: Look) -> str:
        """The same as one line."""
        return json.dumps(self.as_data(look), separators=(",", ":"))

    def _all_parts(self) -> Iterator[tuple[str, SafeString | str]]:
        yield from self.parts.items()
        for table in self.tables.values():
            yield from table.parts.items()
        for chart in self.charts.values():
            yield f"{chart.id}.facts", chart.facts


Build = Callable[[Look], View]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomPage:
    """A page of the room. `records` are what it downloads."""

    slug: str
    title: StrOrPromise
    template: str
    build: Build
    records: Callable[[Look], Records] | None = None


def figures(found: Sequence[Figure]) -> SafeString:
    """The row of large numbers."""
    return render_to_string("sse_limits/live/figures.html", {"figures": found})


def alerts(found: Sequence[Alert]) -> SafeString:
    """The list of what hurts; empty when nothing does."""
    return render_to_string("sse_limits/live/alerts.html", {"alerts": found}) if found else SafeString("")


def banner(look: Look) -> SafeString:
    """What the store's absence means; empty while it answers."""
    if look.away_seconds is None:
        return SafeString("")
    context = {
        "away": formats.duration(look.away_seconds),
        "meanwhile": outage.meanwhile(look.policy),
        "choices": outage.choices(look.policy),
        "has_counts": bool(look.snapshot.nodes),
        "sees_own": look.sees_own,
        "age": formats.duration((look.now - look.counted_at) / 1000),
        "counted_at": formats.clock(look.counted_at),
        "may_revoke": look.asked.may_revoke,
        "nodes_url": look.asked.url("nodes") if look.asked.slug != "nodes" else "",
    }
    return render_to_string("sse_limits/live/banner.html", context)


def nothing_matches(look: Look, what: str, asked: str, *names: str) -> SafeString:
    """Said instead of rows when the filters leave none."""
    context = {"what": what, "asked": asked, "clear": look.asked.here(**dict.fromkeys(names), offset=None)}
    return render_to_string("sse_limits/live/nothing_matches.html", context)


def place(first: int, shown: int, total: int) -> str:
    """1-12 of 143."""
    if not shown:
        return ""
    return _("%(first)s–%(last)s of %(total)s") % {
        "first": formats.number(first + 1),
        "last": formats.number(first + shown),
        "total": formats.number(total),
    }


def paged(look: Look, found: Sequence[T]) -> tuple[Sequence[T], SafeString]:
    """The rows of the page that is asked for, and what stands below them."""
    asked = look.asked
    offset = whole(asked.query.get("offset"))
    shown = found[offset : offset + PAGE_ROWS]
    before = asked.here(offset=max(0, offset - PAGE_ROWS) or None) if offset else None
    after = asked.here(offset=offset + PAGE_ROWS) if len(found) > offset + PAGE_ROWS else None
    return shown, foot(place(offset, len(shown), len(found)), downloads(asked), before, after)


def downloads(asked: Asked) -> list[tuple[str, str]]:
    """The whole of a page's table as files."""
    return [(asked.here(format=kind, offset=None), kind.upper()) for kind in ("csv", "json")]


def whole(text: str | None) -> int:
    """A number from the query; what isn't one is 0."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 9 else 0
