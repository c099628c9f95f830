"""How values look: every number, age and bar of the room."""

from __future__ import annotations

import pytest

from sse_limits.core.limits import Source
from sse_limits.core.rejections import CAUSES, Reason
from sse_limits.dashboard import formats

N = formats.NBSP


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (12.9, "12 s"),
        (60, "1 min"),
        (259, "4 min"),
        (3600, "1 h"),
        (18_720, "5 h 12 min"),
        (86_400, "1 d"),
        (792_000, "9 d 4 h"),
        (-3, "0 s"),
    ],
)
def test_age_has_two_units_at_most(seconds: float, said: str) -> None:
    assert formats.age(seconds) == said.replace(" ", N)


def test_duration_keeps_the_seconds_of_the_first_hour() -> None:
    assert formats.duration(102) == f"1{N}min{N}42{N}s"
    assert formats.duration(3700) == f"1{N}h{N}1{N}min"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (formats.number(8412), "8,412"),
        (formats.number(38.24, 1), "38.2"),
        (formats.percent(7, 10), "70 %"),
        (formats.percent(1, 0), "0 %"),
        (formats.milliseconds(0.214), "0.21 ms"),
        (formats.milliseconds(3.14), "3.1 ms"),
        (formats.milliseconds(11.4), "11 ms"),
        (formats.size(86 * 2**20), "86 MiB"),
        (formats.size(3 * 2**29), "1.5 GiB"),
    ],
)
def test_numbers_and_units_hold_together(found: str, said: str) -> None:
    assert found == said.replace(" ", N)


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("203.0.113.7", "203.0.113.•"),
        ("2001:db8:1:2::/64", "2001:db8:1:•"),
    ],
)
def test_an_address_is_masked_unless_it_may_be_seen(address: str, masked: str) -> None:
    assert formats.address(address, is_shown=False) == masked
    assert formats.address(address, is_shown=True) == address
    assert formats.address(None, is_shown=True) == formats.DASH


def test_the_reference_of_an_address_does_not_tell_it() -> None:
    assert formats.address_ref("203.0.113.7") == formats.address_ref("203.0.113.7")
    assert "203" not in formats.address_ref("203.0.113.7")
    assert formats.address_ref("203.0.113.7") != formats.address_ref("203.0.113.8")


@pytest.mark.parametrize(
    ("used", "kind"), [(69, ""), (70, ""), (85, "w"), (97, "w"), (98, "c"), (100, "c"), (124, "c")]
)
def test_shared_capacity_turns_amber_and_red(used: int, kind: str) -> None:
    assert f'<svg class="sl-u {kind}"' in formats.usage(used, 100)


def test_a_user_at_their_limit_is_never_red() -> None:
    assert '<svg class="sl-u "' in formats.usage(20, 20, is_shared=False)


def test_a_bar_ends_at_its_limit_and_the_number_goes_on() -> None:
    html = formats.usage(31, 25)
    assert 'width="100%"' in html
    assert f"124{N}%" in html


def test_a_limit_of_zero_is_full() -> None:
    assert f"100{N}%" in formats.usage(0, 0)


def test_without_a_limit_there_is_no_bar() -> None:
    assert "<svg" not in formats.usage(1306, None)
    assert "no limit" in formats.usage(1306, None)


def test_bars_need_no_style_attribute() -> None:
    assert "style" not in formats.usage(50, 100) + formats.big_bar(50) + formats.spark([1, 2, 3])


def test_a_zero_is_quiet() -> None:
    assert formats.count(0) == '<span class="sl-v q">0</span>'
    assert formats.count(1204) == '<span class="sl-v">1,204</span>'


def test_every_reason_has_a_colour_that_the_page_knows() -> None:
    css = {"identity", "user_limit", "tenant_limit", "address_limit", "store", "other"}
    assert {formats.colour(reason) for reason in CAUSES} <= css
    assert formats.colour(Reason.EXPIRED_TOKEN) == "identity"
    assert formats.colour(Reason.FLEET_LIMIT) == "other"


def test_what_comes_from_outside_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    for html in (
        formats.link("/x", bad),
        formats.mono(bad),
        formats.strong(bad),
        formats.tag(bad),
        formats.provenance(Source("tenant", bad)),
        formats.facts([(bad, bad)]),
    ):
        assert "<script" not in html


def test_a_spark_of_one_value_is_nothing() -> None:
    assert formats.spark([3]) == ""
    assert formats.spark([3, 3]).count(",") == 2


def test_a_node_is_called_by_host_and_process() -> None:
    assert formats.node("web-1:4711:abcdefgh") == "web-1:4711"
    assert formats.node("odd") == "odd"
