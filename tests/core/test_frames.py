"""Frames of an event stream, read back by an independent parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.frames import KEEPALIVE, event

lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60)


def parse(stream: bytes) -> list[dict[str, str]]:
    """Read an event stream as the HTML standard says (9.2.6), for streams that break lines with LF only."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    for line in stream.decode().split("\n"):
        if not line:
            if fields:
                events.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = fields[name] + "\n" + value if name in fields else value.removeprefix(" ")
    assert not fields, "the last event is not complete: a browser would never dispatch it"
    return events


@given(name=lines, data=lines, event_id=st.none() | lines, retry_ms=st.none() | st.integers(0))
def test_what_goes_in_comes_out_as_one_event(name: str, data: str, event_id: str | None, retry_ms: int | None) -> None:
    expected = {"event": name, "data": data}
    expected |= {} if event_id is None else {"id": event_id}
    expected |= {} if retry_ms is None else {"retry": str(retry_ms)}
    assert parse(event(name, data, event_id=event_id, retry_ms=retry_ms)) == [expected]


def test_frames_can_be_joined() -> None:
    stream = KEEPALIVE + event("a", "1") + KEEPALIVE + event("b", "2") + KEEPALIVE
    assert [found["event"] for found in parse(stream)] == ["a", "b"]


def test_the_bytes_on_the_wire() -> None:
    assert event("evicted", "{}", event_id="evicted.1", retry_ms=0) == (
        b"retry: 0\nid: evicted.1\nevent: evicted\ndata: {}\n\n"
    )


def test_an_empty_id_is_sent_for_it_clears_the_last_one() -> None:
    assert b"\nid: \n" in b"\n" + event("a", "1", event_id="")


def test_a_keepalive_is_a_comment_that_dispatches_nothing() -> None:
    assert parse(KEEPALIVE) == []
    assert KEEPALIVE.startswith(b":")


@pytest.mark.parametrize("text", ["ä", "\u2028", "\x85", "\U0001f600"])
def test_only_cr_and_lf_break_lines(text: str) -> None:
    assert parse(event("a", text))[0]["data"] == text
