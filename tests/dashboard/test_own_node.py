"""While the store is away a server process still shows and ends the streams of its own node, and no others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest

from sse_limits.core.slots import Scope
from sse_limits.live.board import Board

from .conftest import ROOM
from .fleet import Fleet, signed_in, wait_until
from .reading import words

DISCONNECT = f"{ROOM}disconnect/"
ELSEWHERE = "aaaaaaaa-1"


@pytest.fixture(scope="module")
def of_user(fleet: Fleet, board: Board) -> Iterator[dict[str, list[str]]]:
    """Three streams of each of three users of acme, on a node whose store is away."""
    fleet.server.expect("the slot store (does not answer|answers again)", "the display's data")
    for user in ("u1", "u2", "u3"):
        assert fleet.open(3, "acme", user) == [200] * 3
    wait_until(lambda: board.in_use([(Scope.TENANT, "acme")]) == [9])
    found = {user: [row.id for row in board.streams(Scope.USER, f"acme/{user}")[1]] for user in ("u1", "u2", "u3")}
    with signed_in(fleet.server) as reader, fleet.store.stalled():
        wait_until(lambda: "of this node" in reader.get(f"{ROOM}streams/").text)
        yield found
    fleet.leave()


def post(browser: httpx.Client, **data: object) -> httpx.Response:
    headers = {"X-CSRFToken": browser.cookies["csrftoken"]}
    return browser.post(DISCONNECT, data=data, headers=headers, follow_redirects=True)  # type: ignore[arg-type]


def test_the_pages_show_them(browser: httpx.Client, of_user: dict[str, list[str]]) -> None:
    ids = of_user["u1"]
    for query in ("", "?user=acme/u1", "?tenant=acme", "?q=u1"):
        said = words(browser.get(f"{ROOM}streams/{query}").text)
        assert "streams of this node" in said, query
        assert all(id in said for id in ids), query
    for query in ("?user=acme/u9", "?tenant=globex", "?node=elsewhere"):
        said = words(browser.get(f"{ROOM}streams/{query}").text)
        assert "This node holds none. What others hold nobody knows while the store is away." in said
    assert [row["stream"] for row in browser.get(f"{ROOM}streams/?user=acme/u1&format=json").json()] == ids
    said = words(browser.get(ROOM).text)
    assert "Nodes 1 of 1 all seen" in said
    assert "Disconnecting works only on this node until the store is back." in said


def test_those_here_are_ended_and_others_are_said_to_be_out_of_reach(
    browser: httpx.Client, fleet: Fleet, of_user: dict[str, list[str]]
) -> None:
    ids = of_user["u2"]
    asked = words(browser.get(DISCONNECT, params={"stream": [ids[0], ELSEWHERE]}).text)
    assert "Disconnect 1 stream of u2?" in asked
    assert "1 stream is on another node and cannot be reached until the store is back." in asked
    said = words(post(browser, stream=[ids[0], ELSEWHERE], reason="Idle build tabs").text)
    assert "1 stream ended, in 0." in said
    assert "1 stream is on another node and cannot be reached until the store is back." in said
    assert ids[0] not in browser.get(f"{ROOM}streams/").text
    with closing(sqlite3.connect(fleet.env["DATABASE_PATH"])) as database:
        [(kept,)] = database.execute("SELECT change_message FROM django_admin_log WHERE object_repr = 'u2'").fetchall()
    assert kept == f"Disconnected 1 stream: Idle build tabs ({ids[0]})"
    query = {"stream": [*ids, ELSEWHERE]}
    assert browser.get(f"{ROOM}ended/", params=query).json() == {"ended": ids[:1]}


def test_all_of_a_user_are_those_here(browser: httpx.Client, of_user: dict[str, list[str]]) -> None:
    asked = words(browser.get(DISCONNECT, params={"user": "acme/u3"}).text)
    assert "Disconnect 3 streams of u3?" in asked
    assert "only streams on this node are ended" in asked
    assert "3 streams ended, in 0." in words(post(browser, user="acme/u3").text)


@pytest.mark.usefixtures("of_user")
def test_without_any_here_nothing_is_promised(browser: httpx.Client) -> None:
    said = "None of these streams is on this node, and the others cannot be reached until the store is back."
    assert said in words(post(browser, stream=ELSEWHERE).text)
    assert said in words(post(browser, user="acme/u9").text)
