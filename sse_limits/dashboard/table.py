"""The one table of the live room: columns described in Python, one template, the same rows for live updates.

A column says how a cell looks and which value it sorts and downloads by. `build` sorts, pages and renders; the rows
are `(key, html)`, so that what the server first painted and what the live updates bring are the same text.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from django.http import QueryDict
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from . import formats

T = TypeVar("T")
Value = str | int | float | None

PAGE_ROWS = 40
FILTERS_FORM = "sl-filters"
SELECT = "select"  # the key of the column of checkboxes
# Spreadsheets take a cell that begins so for a formula; names of users and paths come from outside.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)  # slots and `Column[T](...)` do not go together in Python 3.11
class Column(Generic[T]):
    """One column. Without a `value` it can't be sorted by and is in no download.

    `leaves` is the width at which it goes: 2 below 760 px of the content, 3 below 1020 px, 0 never.
    """

    key: str
    label: str
    cell: Callable[[T], str]
    value: Callable[[T], Value] | None = None
    is_number: bool = False
    leaves: int = 0
    classes: str = ""

    @property
    def all_classes(self) -> str:
        """The classes of its cells."""
        named = ("num" if self.is_number else "", f"p{self.leaves}" if self.leaves else "", self.classes)
        return " ".join(name for name in named if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A column's head: what the button asks for, and the order in force."""

    label: str
    classes: str
    sort: str | None
    aria_sort: str | None
    selects: bool = False
    """Above the checkboxes of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A rendered table."""

    id: str
    caption: str
    headers: Sequence[Header]
    rows: Sequence[tuple[str, SafeString]]
    parts: Mapping[str, SafeString] = field(default_factory=dict)
    """What stands below it, by name: the foot, and what is said when there is no row."""
    asks_before_new: bool = False
    """New rows wait until somebody wants to see them."""

    @property
    def foot(self) -> SafeString:
        """Its place in the whole, downloads and the pages before and after."""
        return self.parts.get(f"{self.id}.foot", SafeString(""))

    @property
    def empty(self) -> SafeString:
        """What is said instead of rows."""
        return self.parts.get(f"{self.id}.empty", SafeString(""))


@dataclass(frozen=True, kw_only=True)  # slots and `Column[T](...)` do not go together in Python 3.11
class Description(Generic[T]):
    """What a table is before it has rows."""

    id: str
    caption: str
    columns: Sequence[Column[T]]
    key: Callable[[T], str]
    sort: str | None = None
    """The column that it is sorted by at first, with `-` for descending; None: rows keep their order."""
    head: int = 0
    """The column that names the row."""
    detail: Callable[[T], SafeString] | None = None
    """What an open row tells besides its hidden columns."""
    opens_when_narrow: bool = False
    """Rows without a detail of their own open only where columns have left."""
    row_classes: Callable[[T], str] = lambda _row: ""
    asks_before_new: bool = False
    can_sort: bool = True

    # -- order ---------------------------------------------------------------------------------------------------

    def sort_in_force(self, query: QueryDict) -> str | None:
        """The order that is asked for, if there is such a column."""
        asked = query.get("sort", "")
        known = {column.key for column in self.columns if column.value is not None}
        return asked if self.can_sort and asked.removeprefix("-") in known else self.sort

    def sorted(self, rows: Iterable[T], query: QueryDict) -> list[T]:
        """The rows in order; equal ones by their key, so that they don't change places from second to second."""
        found = sorted(rows, key=self.key)
        order = self.sort_in_force(query)
        column = next((column for column in self.columns if order and column.key == order.removeprefix("-")), None)
        if order is not None and column is not None and column.value is not None:
            value = column.value
            found.sort(key=lambda row: _comparable(value(row)), reverse=order.startswith("-"))
        return found

    def header(self, column: Column[T], query: QueryDict) -> Header:
        """A column's head."""
        order = self.sort_in_force(query) or ""
        is_current = order.removeprefix("-") == column.key
        can_sort = self.can_sort and self.sort is not None and column.value is not None
        descending, ascending = f"-{column.key}", column.key
        first, second = (descending, ascending) if column.is_number else (ascending, descending)
        return Header(
            label=column.label,
            classes=column.all_classes,
            sort=(second if order == first else first) if can_sort else None,
            aria_sort=("descending" if order.startswith("-") else "ascending") if is_current else None,
            selects=column.key == SELECT,
        )

    # -- rendering -----------------------------------------------------------------------------------------------

    def render(self, rows: Iterable[T], query: QueryDict, parts: Mapping[str, SafeString] | None = None) -> Table:
        """Render rows that are in order already."""
        opened = set(query.getlist("open")) - set(query.getlist("close"))
        return Table(
            id=self.id,
            caption=self.caption,
            headers=[self.header(column, query) for column in self.columns],
            rows=[pair for row in rows for pair in self._pairs(row, opened)],
            parts={f"{self.id}.{name}": html for name, html in (parts or {}).items()},
            asks_before_new=self.asks_before_new,
        )

    def _pairs(self, row: T, opened: set[str]) -> Iterable[tuple[str, SafeString]]:
        key = self.key(row)
        is_open = key in opened
        cells = [self._cell(position, column, row, is_open=is_open) for position, column in enumerate(self.columns)]
        yield (
            key,
            format_html(
                '<tr data-key="{}"{}>{}</tr>',
                key,
                _class(self.row_classes(row)),
                SafeString("".join(cells)),
            ),
        )
        if self._opens and is_open:
            html = '<tr data-key="{} detail" class="x{}"><td colspan="{}">{}{}</td></tr>'
            detail = self.detail(row) if self.detail is not None else ""
            shown = (key, self._narrow, len(self.columns), self._hidden_columns(row), detail)
            yield f"{key} detail", format_html(html, *shown)

    @property
    def _opens(self) -> bool:
        return self.detail is not None or self.opens_when_narrow

    @property
    def _narrow(self) -> str:
        return "" if self.detail is not None else " narrow"

    def _cell(self, position: int, column: Column[T], row: T, *, is_open: bool) -> SafeString:
        html = column.cell(row)
        if position == self.head:
            chevron = self._chevron(row, is_open=is_open) if self._opens else ""
            return format_html('<th scope="row"{}>{}{}</th>', _class(column.all_classes), chevron, html)
        return format_html("<td{}>{}</td>", _class(column.all_classes), html)

    def _chevron(self, row: T, *, is_open: bool) -> SafeString:
        return format_html(
            '<button type="submit" form="{}" name="{}" value="{}" class="sl-x{}" aria-expanded="{}" aria-label="{}">'
            '<svg viewBox="0 0 12 12"><use href="#sl-i-x"/></svg></button>',
            FILTERS_FORM,
            "close" if is_open else "open",
            self.key(row),
            self._narrow,
            "true" if is_open else "false",
            _("Details"),
        )

    def _hidden_columns(self, row: T) -> SafeString:
        """The columns that have left because the window is narrow, each shown from where it left."""
        pairs = format_html_join(
            "",
            '<dt class="p0 from{}">{}</dt><dd class="p0 from{}">{}</dd>',
            [
                (column.leaves, column.label, column.leaves, column.cell(row))
                for column in self.columns
                if column.leaves and column.label
            ],
        )
        return format_html('<dl class="sl-dl sl-hidden-columns">{}</dl>', pairs)

    # -- downloads -----------------------------------------------------------------------------------------------

    def as_records(self, rows: Iterable[T]) -> list[dict[str, Value]]:
        """The rows as plain values by column."""
        columns = [(column.key, column.value) for column in self.columns if column.value is not None]
        return [{key: value(row) for key, value in columns} for row in rows]

    def as_csv(self, rows: Iterable[T]) -> str:
        """The rows for a spreadsheet."""
        out = io.StringIO()
        keys = [column.key for column in self.columns if column.value is not None]
        writer = csv.DictWriter(out, keys)
        writer.writeheader()
        for record in self.as_records(rows):
            writer.writerow({key: _harmless(value) for key, value in record.items()})
        return out.getvalue()


def _class(classes: str) -> SafeString:
    return format_html(' class="{}"', classes) if classes else SafeString("")


def _comparable(value: Value) -> tuple[int, float, str]:
    """Numbers before texts, nothing before both."""
    if value is None:
        return (0, 0, "")
    return (2, 0, value.casefold()) if isinstance(value, str) else (1, value, "")


def _harmless(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def foot(place: str, links: Sequence[tuple[str, str]], before: str | None, after: str | None) -> SafeString:
    """Below a table: which rows these are, downloads, and the pages before and after."""
    return format_html(
        '<span>{}</span><span class="end">{}{}{}</span>',
        place,
        format_html_join("", '<a href="{}">{}</a>', links),
        _step(before, _("Previous")) if before or after else "",
        _step(after, _("Next")) if before or after else "",
    )


def _step(url: str | None, label: str) -> SafeString:
    if url is None:
        return format_html('<span class="sl-btn" aria-disabled="true">{}</span>', label)
    return formats.link(url, label, "sl-btn")
