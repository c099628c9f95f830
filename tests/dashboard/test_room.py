"""The room in the admin: who sees it, every page from a real store, without any script."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable

import pytest
from django.test import Client

from sse_limits.core.slots import Scope
from sse_limits.dashboard.pages import PAGES
from sse_limits.live.board import Board

from .conftest import ROOM
from .fleet import Fleet, wait_until
from .reading import text_of, words

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def busy(fleet: Fleet, board: Board) -> Fleet:
    """globex/u1 at its limit and refused twice, acme/u2 with three streams, two anonymous ones."""
    assert fleet.open(7, "globex", "u1") == [200] * 5 + [429] * 2
    assert fleet.open(3, "acme", "u2", "/events/?topic=builds") == [200] * 3
    assert fleet.open_anonymous(2) == [200] * 2
    wait_until(lambda: board.snapshot().fleet_in_use == 10 and len(board.snapshot().latest) >= 2)
    wait_until(lambda: all(row.path for row in board.streams(Scope.FLEET, "")[1]))
    wait_until(lambda: any(holder.in_use == 5 for holder in board.snapshot().tops[Scope.USER]))
    return fleet


# -- who sees it ----------------------------------------------------------------------------------------------------


def test_the_admin_lists_the_room_for_those_who_may_see_it(staff: Callable[..., Client], board: Board) -> None:
    client = staff("view_live")
    assert f'href="{ROOM}"' in text_of(client, "/admin/")
    assert client.get(f"{ROOM}add/").status_code == 404


@pytest.mark.parametrize(
    "path", ["", *(f"{slug}/" for slug in PAGES), "overview/now/", "disconnect/?stream=a-1", "ended/"]
)
def test_nothing_is_shown_without_the_permission(path: str, staff: Callable[..., Client]) -> None:
    client = staff()
    assert ROOM not in text_of(client, "/admin/")
    assert client.get(ROOM + path).status_code == 403


@pytest.mark.parametrize("slug", PAGES)
def test_who_is_not_signed_in_is_asked_to(slug: str, client: Client) -> None:
    assert client.get(f"{ROOM}{slug}/").status_code == 302
    assert client.get(f"{ROOM}{slug}/now/").status_code == 302


def test_without_the_second_permission_there_is_no_control(busy: Fleet, staff: Callable[..., Client]) -> None:
    client = staff("view_live")
    for path in ("streams/", "streams/?user=acme/u2", "holders/", "tenants/?open=acme"):
        html = text_of(client, ROOM + path)
        assert "isconnect" not in re.sub(r"<template.*?</template>", "", html, flags=re.S)
        assert "checkbox" not in html
    assert "addresses=show" not in text_of(client, f"{ROOM}holders/?by=address")
    assert "127.0.0.1" not in words(text_of(client, f"{ROOM}streams/?addresses=show"))


def test_the_policy_of_the_page_allows_nothing_inline(admin: Client, busy: Fleet) -> None:
    for slug in PAGES:
        response = admin.get(f"{ROOM}{slug}/")
        assert response["Content-Security-Policy"] == "default-src 'self'"
        html = response.content.decode()
        assert not re.search(r"\sstyle=|<style|\son\w+=", html)
        assert all("src=" in tag or "application/json" in tag for tag in re.findall(r"<script[^>]*>", html))


# -- pages ----------------------------------------------------------------------------------------------------------


def test_overview_says_how_it_stands(admin: Client, busy: Fleet) -> None:
    said = words(text_of(admin, ROOM))
    assert "Streams in use 10 the fleet has no limit" in said
    assert "Nodes 1 alive all on policy" in said
    assert "globex 5 / 50" in said
    assert "u1 globex user_limit" in said


def test_tenants_show_use_and_limits_with_their_origin(admin: Client, busy: Fleet) -> None:
    said = words(text_of(admin, f"{ROOM}tenants/?open=acme"))
    assert "3 tenants, 0 at their limit" in said
    assert "Tenant 200 ← tier pro" in said
    assert "at the limit: evict oldest ← tier pro" in said
    assert "Who holds the 3 u2 3" in said


def test_tenants_are_filtered_and_a_filter_can_be_cleared(admin: Client, busy: Fleet) -> None:
    html = text_of(admin, f"{ROOM}tenants/?q=acm")
    assert 'data-key="acme"' in html
    assert 'data-key="globex"' not in html
    said = text_of(admin, f"{ROOM}tenants/?q=nobody&sort=tenant")
    assert "No tenant matches nobody . Clear the filter" in words(said)
    assert f'href="{ROOM}tenants/?sort=tenant"' in said


def test_tenants_sort_by_the_header(admin: Client, busy: Fleet) -> None:
    html = text_of(admin, f"{ROOM}tenants/?sort=-tenant")
    assert re.findall(r'data-key="(\w+)"', html) == ["initech", "globex", "acme"]
    assert 'aria-sort="descending"' in html
    assert 'name="sort" value="tenant"' in html


def test_holders_by_every_kind(admin: Client, busy: Fleet) -> None:
    said = words(text_of(admin, f"{ROOM}holders/"))
    assert "u1 globex 5 / 5 100" in said
    assert "2 hold 8 streams" in said
    assert "acme 3 / 200" in words(text_of(admin, f"{ROOM}holders/?by=tenant"))
    assert "127.0.0.•" in words(text_of(admin, f"{ROOM}holders/?by=address"))
    assert re.search(r"\w+:\d+ 10 no limit", words(text_of(admin, f"{ROOM}holders/?by=node")))


def test_an_address_is_told_nowhere_until_it_is_asked_for(admin: Client, busy: Fleet) -> None:
    html = text_of(admin, f"{ROOM}holders/?by=address")
    assert "127.0.0.1" not in html
    ref = re.findall(r"streams/\?address=(\w+)", html)[0]
    behind = text_of(admin, f"{ROOM}streams/?address={ref}")
    assert "data-select>" in behind
    assert "127.0.0.1" not in behind
    assert "127.0.0.1" in words(text_of(admin, f"{ROOM}streams/?address={ref}&addresses=show"))


def test_streams_of_a_user(admin: Client, busy: Fleet) -> None:
    html = text_of(admin, f"{ROOM}streams/?user=acme/u2")
    said = words(html)
    assert "Users \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} acme" in said
    assert "In use 3 of 10 ← tier pro" in said
    assert "Share of acme 100" in said
    assert "At the limit evict oldest ← tier pro" in said
    assert html.count("data-select>") == 3


def test_streams_of_the_fleet_are_searched(admin: Client, busy: Fleet) -> None:
    assert text_of(admin, f"{ROOM}streams/?q=public").count('<tr data-key="') == 2
    assert "No stream matches zzz" in words(text_of(admin, f"{ROOM}streams/?q=zzz"))


def test_streams_of_somebody_without_any(admin: Client, busy: Fleet) -> None:
    assert "nobody holds no stream." in words(text_of(admin, f"{ROOM}streams/?user=acme/nobody"))


def test_rejections_by_reason_tenant_and_time(admin: Client, busy: Fleet) -> None:
    said = words(text_of(admin, f"{ROOM}rejections/?tenant=globex"))
    assert re.search(r"slots user_limit \d+", said)
    assert re.search(r"u1 globex user_limit 5 / 5 429", said)
    for minutes in ("5", "60", "1440", "nonsense"):
        assert "By layer and reason" in words(text_of(admin, f"{ROOM}rejections/?minutes={minutes}"))


def test_a_decision_is_told_as_a_story(admin: Client, busy: Fleet, board: Board) -> None:
    row = next(row for row in board.snapshot().latest if row.user == "u1")
    said = words(text_of(admin, f"{ROOM}decision/?id={row.id}"))
    assert "u1 was refused a stream at" in said
    assert "because u1 already held all 5 of 5 slots" in said
    assert "✓" not in said
    assert "refused here User slots none was left 5 / 5 ← tier free" in said
    assert "HTTP/1.1 429 Too Many Requests" in said
    assert f'"decision": "{row.id}"' in said


def test_a_decision_without_details_is_told_from_its_id(admin: Client, busy: Fleet, board: Board) -> None:
    row = next(row for row in board.snapshot().latest if row.user == "u1")
    for key in busy.store.client.scan_iter("sl:1:decisions:*"):
        busy.store.client.delete(key)
    said = words(text_of(admin, f"{ROOM}decision/?id={row.id}"))
    assert "A client was refused a stream at" in said
    assert "because the user already held all 5 of 5 slots" in said
    assert "not kept" in said


def test_what_is_no_decision_is_said_to_be_none(admin: Client, board: Board) -> None:
    assert "no decision id of this site" in words(text_of(admin, f"{ROOM}decision/?id=<b>x"))
    assert "What was checked" not in words(text_of(admin, f"{ROOM}decision/"))


def test_nodes(admin: Client, busy: Fleet, board: Board) -> None:
    node = board.snapshot().nodes[0]
    said = words(text_of(admin, f"{ROOM}nodes/?open={node.id}"))
    assert "1 node alive" in said
    assert f"pid {busy.server.pid}" in said
    assert "10 streams: 10 SSE, 0 WebSocket" in said


# -- the same as data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", PAGES)
def test_live_updates_are_what_was_first_painted(slug: str, admin: Client, busy: Fleet) -> None:
    """But for the ages and the numbers that go on meanwhile."""

    def still(html: str) -> str:
        return re.sub(r"<time.*?</time>|[\d.,]+", "#", html)

    page = still(text_of(admin, f"{ROOM}{slug}/?open=acme"))
    data = json.loads(text_of(admin, f"{ROOM}{slug}/now/?open=acme"))
    for rows in data["tables"].values():
        for _key, html in rows:
            assert still(html) in page
    assert data["away"] is False


@pytest.mark.parametrize("slug", ["streams", "overview", "rejections"])
def test_an_update_is_small(slug: str, admin: Client, busy: Fleet) -> None:
    """A full page of streams stays below 60 kB."""
    rows = json.loads(text_of(admin, f"{ROOM}streams/now/"))["tables"]["streams"]
    longest = max(len(json.dumps(row)) for row in rows)
    size = len(text_of(admin, f"{ROOM}{slug}/now/"))
    assert size + 30 * longest < 60_000


def test_downloads_hold_the_same_facts(admin: Client, busy: Fleet) -> None:
    response = admin.get(f"{ROOM}holders/?format=csv")
    assert response["Content-Disposition"] == 'attachment; filename="holders.csv"'
    first = next(csv.DictReader(io.StringIO(response.content.decode())))
    assert first == {"holder": "u1", "tenant": "globex", "in_use": "5", "limit": "5"}
    rows = admin.get(f"{ROOM}tenants/?format=json").json()
    assert {"tenant": "acme", "tier": "pro", "in_use": 3, "rejected": 0, "top_reason": ""} in rows
    for slug in ("streams", "rejections", "nodes"):
        assert admin.get(f"{ROOM}{slug}/?format=csv").content.count(b"\n") > 1
