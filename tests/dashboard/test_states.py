"""The room when there is nothing yet, and when the store is away."""

from __future__ import annotations

import re

import httpx
import pytest
from django.test import Client

from sse_limits.core.slots import Scope
from sse_limits.dashboard.pages import PAGES
from sse_limits.live.board import Board

from .conftest import ROOM
from .fleet import Fleet, wait_until
from .reading import text_of, words

pytestmark = pytest.mark.django_db


def scrape(fleet: Fleet) -> str:
    """What the node itself answers to Prometheus."""
    answer = httpx.get(f"{fleet.url}/metrics", timeout=10)
    assert answer.status_code == 200
    return answer.text


def test_overview_without_streams_says_what_to_try(admin: Client, board: Board) -> None:
    assert board.snapshot().fleet_in_use == 0
    html = text_of(admin, ROOM)
    assert "No stream is open yet" in words(html)


def test_pages_without_rows_say_so(admin: Client, board: Board) -> None:
    assert "Nobody holds a stream." in words(text_of(admin, f"{ROOM}holders/"))
    assert "No stream is open." in words(text_of(admin, f"{ROOM}streams/"))
    said = words(text_of(admin, f"{ROOM}rejections/"))
    assert "Nobody was refused in this time." in said
    assert "No decision is kept" in said


def test_while_the_store_is_away_the_last_counts_are_shown(admin: Client, fleet: Fleet, board: Board) -> None:
    assert fleet.open(5, "globex", "u1") == [200] * 5
    wait_until(lambda: any(holder.in_use == 5 for holder in board.snapshot().tops.get(Scope.TENANT, ())))
    text_of(admin, ROOM)
    fleet.server.expect("the slot store (does not answer|answers again)", "the display's data")
    with fleet.store.stalled():
        wait_until(lambda: "Redis has not answered for" in text_of(admin, ROOM))
        said = words(text_of(admin, ROOM))
        assert "Everything below is what it said at" in said
        assert "globex 5 / 50" in said
        assert "Store away local decisions" in said
        assert "Nodes 0 of 1 unseen since" in said
        assert "free, pro, realtime: each node enforces its share of the limit ( local )." in said
        assert "anonymous: refused with 503 ( closed )." in said
        assert "Disconnecting does not work until the store is back." in said
        for slug in PAGES:
            assert "Redis has not answered for" in words(text_of(admin, f"{ROOM}{slug}/"))
        assert "Nobody knows which streams are open" in words(text_of(admin, f"{ROOM}streams/"))
        assert admin.get("/metrics").status_code == admin.get("/metrics/tenants").status_code == 503
        told = scrape(fleet)
        assert 'transport="sse"} 5' in told
        assert re.search(r'^sse_store_away\{node="[^"]+"\} 1$', told, re.MULTILINE)
        assert not re.search("^sse_nodes ", told, re.MULTILINE), "one process cannot know"
    wait_until(lambda: "sse_nodes 1" in scrape(fleet))
    wait_until(lambda: "Redis has not answered for" not in text_of(admin, ROOM))
