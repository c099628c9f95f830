"""The one table: order, open rows, downloads."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from django.http import QueryDict
from django.utils.html import format_html
from django.utils.safestring import SafeString

from sse_limits.dashboard.table import Column, Description, Table, foot


class Row(NamedTuple):
    name: str
    count: int | None


ROWS = [Row("b", 2), Row("a", 2), Row("c", 10), Row("d", None)]


def description(**options: object) -> Description[Row]:
    columns = [
        Column[Row](key="name", label="Name", cell=lambda row: format_html("{}", row.name), value=lambda row: row.name),
        Column[Row](
            key="count",
            label="Count",
            cell=lambda row: format_html("{}", row.count),
            value=lambda row: row.count,
            is_number=True,
            leaves=2,
        ),
        Column[Row](key="action", label="Action", cell=lambda row: SafeString("<button>x</button>")),
    ]
    given = {"id": "t", "caption": "Rows", "columns": columns, "key": lambda row: row.name, "sort": "-count"} | options
    return Description[Row](**given)  # type: ignore[arg-type]


def names(query: str) -> list[str]:
    return [row.name for row in description().sorted(ROWS, QueryDict(query))]


def rendered(query: str = "", **options: object) -> Table:
    found = description(**options)
    return found.render(found.sorted(ROWS, QueryDict(query)), QueryDict(query))


def test_equal_rows_keep_their_order_from_second_to_second() -> None:
    assert names("") == ["c", "a", "b", "d"]


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        ("sort=name", "abcd"),
        ("sort=-name", "dcba"),
        ("sort=count", "dabc"),
        ("sort=action", "cabd"),
        ("sort=x", "cabd"),
    ],
)
def test_rows_are_sorted_by_what_has_a_value(asked: str, order: str) -> None:
    assert names(asked) == list(order)


def test_a_header_says_the_order_and_offers_the_other() -> None:
    name, count, action = rendered().headers
    assert (count.aria_sort, count.sort) == ("descending", "count")
    assert (name.aria_sort, name.sort) == (None, "name")
    assert action.sort is None


def test_numbers_begin_with_the_largest() -> None:
    assert rendered("sort=name").headers[1].sort == "-count"


def test_the_first_column_names_the_row() -> None:
    key, html = rendered().rows[0]
    assert key == "c"
    assert html.startswith('<tr data-key="c"><th scope="row">c</th><td class="num p2">10</td>')


def test_only_open_rows_carry_their_detail() -> None:
    table = rendered("open=a&open=b&close=b", detail=lambda row: format_html("<i>{}</i>", row.name))
    assert [key for key, _ in table.rows] == ["c", "a", "a detail", "b", "d"]
    detail = dict(table.rows)["a detail"]
    assert "<i>a</i>" in detail
    assert '<dt class="p0 from2">Count</dt>' in detail


def test_a_row_that_is_called_oddly_stays_harmless() -> None:
    odd = Row('"><script>', 1)
    ((_, html),) = description(detail=lambda row: SafeString("")).render([odd], QueryDict()).rows
    assert "<script>" not in html


def test_csv_holds_values_not_markup_and_no_formula() -> None:
    rows = [Row("=cmd|' /C calc'!A0", 1), Row("-x", 2), Row("plain, with comma", None)]
    assert description().as_csv(rows).splitlines() == [
        "name,count",
        "'=cmd|' /C calc'!A0,1",
        "'-x,2",
        '"plain, with comma",',
    ]


def test_records_are_plain_values() -> None:
    assert description().as_records(ROWS[:1]) == [{"name": "b", "count": 2}]


def test_the_foot_says_where_one_is_and_leads_on() -> None:
    html = foot("1–40 of 62", [("?format=csv", "CSV")], None, "?offset=40")
    assert '<a href="?format=csv">CSV</a>' in html
    assert '<span class="sl-btn" aria-disabled="true">Previous</span>' in html
    assert '<a href="?offset=40" class="sl-btn">Next</a>' in html
    assert "Next" not in foot("1–3 of 3", [], None, None)
