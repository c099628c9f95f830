"""Ending streams from any process: asked, ordered, kept in the history, and proved by the slot being gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from sse_limits.core.slots import Scope
from sse_limits.live.board import Board
from sse_limits.live.rows import StreamRow

from .conftest import ROOM
from .fleet import Fleet, wait_until
from .reading import text_of, words

pytestmark = pytest.mark.django_db
DISCONNECT = f"{ROOM}disconnect/"
BY_SCRIPT = {"HTTP_X_REQUESTED_WITH": "fetch"}


@pytest.fixture
def streams(fleet: Fleet, board: Board) -> Iterator[list[StreamRow]]:
    """Three streams of acme/u2, described by their node."""
    assert fleet.open(3, "acme", "u2") == [200] * 3
    wait_until(lambda: all(row.path for row in of_u2(board)) and len(of_u2(board)) == 3)
    yield of_u2(board)
    fleet.leave()


def of_u2(board: Board) -> list[StreamRow]:
    return board.streams(Scope.USER, "acme/u2")[1]


def test_the_question_says_what_will_happen(admin: Client, streams: list[StreamRow]) -> None:
    said = words(text_of(admin, f"{DISCONNECT}?stream={streams[0].id}&stream={streams[1].id}"))
    assert "Disconnect 2 streams of u2?" in said
    assert "u2 will then hold 1 to 3 of 10." in said
    assert "To keep a user out, suspend the user." in said


def test_the_question_for_the_dialog_is_the_form_alone(admin: Client, streams: list[StreamRow]) -> None:
    html = admin.get(DISCONNECT, {"user": "acme/u2"}, **BY_SCRIPT).content.decode()
    assert html.lstrip().startswith("<form")
    assert "Disconnect 3 streams of u2?" in html


def test_a_stream_is_ended_without_any_script(admin: Client, streams: list[StreamRow], board: Board) -> None:
    asked = {"stream": streams[0].id, "reason": "Idle build tabs", "back": f"{ROOM}streams/?user=acme/u2"}
    response = admin.post(DISCONNECT, asked, follow=True)
    assert response.redirect_chain == [(f"{ROOM}streams/?user=acme/u2", 302)]
    assert "1 stream ended, in 0." in words(response.content.decode())
    assert board.is_held(streams) == [False, True, True]


def test_all_streams_of_a_user_are_ended(admin: Client, streams: list[StreamRow], board: Board) -> None:
    admin.post(DISCONNECT, {"user": "acme/u2", "reason": "left the company"})
    assert board.is_held(streams) == [False] * 3


def test_a_script_is_told_what_was_ordered_and_asks_until_it_is_done(
    admin: Client, streams: list[StreamRow], board: Board
) -> None:
    ids = [stream.id for stream in streams[:2]]
    ordered = admin.post(DISCONNECT, {"stream": ids}, **BY_SCRIPT).json()
    assert [found["id"] for found in ordered["streams"]] == ids
    query = {"stream": [stream.id for stream in streams]}
    wait_until(lambda: sorted(admin.get(f"{ROOM}ended/", query).json()["ended"]) == sorted(ids))


def test_the_history_keeps_who_ended_what_and_why(admin: Client, streams: list[StreamRow]) -> None:
    admin.post(DISCONNECT, {"stream": streams[0].id, "reason": "Idle build tabs"})
    entry = LogEntry.objects.get()
    assert str(entry.user) == "admin"
    assert entry.object_repr == "u2"
    assert entry.change_message == f"Disconnected 1 stream: Idle build tabs ({streams[0].id})"


def test_the_client_is_told_the_reason(admin: Client, streams: list[StreamRow], board: Board) -> None:
    admin.post(DISCONNECT, {"stream": streams[0].id, "reason": "Idle build tabs"})
    wait_until(lambda: any(row.reason == "revoked" for row in board.decisions()))
    row = next(row for row in board.decisions() if row.reason == "revoked")
    said = words(text_of(admin, f"{ROOM}decision/?id={row.id}"))
    assert "A stream of u2 was ended at" in said
    assert "because an operator ended it" in said
    assert "Idle build tabs" in said


def test_streams_that_have_ended_meanwhile_are_said_to(admin: Client, board: Board) -> None:
    response = admin.get(DISCONNECT, {"stream": "aaaaaaaa-1"}, follow=True)
    assert "None of these streams is open any more." in words(response.content.decode())


def test_nothing_named_is_not_everything(admin: Client, streams: list[StreamRow], board: Board) -> None:
    assert admin.post(DISCONNECT, {"reason": "x"}).status_code == 404
    assert board.is_held(streams) == [True] * 3


def test_only_who_may_ends_streams(staff: Callable[..., Client], streams: list[StreamRow], board: Board) -> None:
    client = staff("view_live")
    assert client.get(DISCONNECT, {"user": "acme/u2"}).status_code == 403
    assert client.post(DISCONNECT, {"user": "acme/u2"}).status_code == 403
    assert board.is_held(streams) == [True] * 3


def test_another_site_cannot_end_streams(streams: list[StreamRow], board: Board, admin: Client) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = admin.cookies
    assert strict.post(DISCONNECT, {"user": "acme/u2"}).status_code == 403
    assert board.is_held(streams) == [True] * 3


def test_the_way_back_never_leaves_the_site(admin: Client, streams: list[StreamRow]) -> None:
    response = admin.post(DISCONNECT, {"stream": streams[0].id, "back": "https://example.com/"})
    assert response["Location"] == f"{ROOM}streams/"


def test_while_the_store_is_away_nothing_is_promised(admin: Client, fleet: Fleet, streams: list[StreamRow]) -> None:
    fleet.server.expect("the slot store (does not answer|answers again)", "the display's data")
    with fleet.store.stalled():
        response = admin.post(DISCONNECT, {"stream": streams[0].id}, **BY_SCRIPT)
        assert response.status_code == 409
        assert response.json() == {"error": "The store does not answer: nothing was ended."}
    assert not LogEntry.objects.exists()
