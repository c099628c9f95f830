"""Frames of an event stream, read back by independent parsers; `tests/browser` asks Chromium too."""

from __future__ import annotations

import re

import pytest
from httpx_sse import ServerSentEvent
from httpx_sse._decoders import SSEDecoder
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.frames import KEEPALIVE, event, read_event, utf8, with_id

ANY = st.text(st.characters(), max_size=60) | st.text("\r\n\0\u2028\x85 :\ufeff\ud800\udc00a", max_size=20)
FIELD = st.text(st.characters(exclude_characters="\r\n\0"), min_size=1, max_size=30)


def expected(text: str) -> str:
    """What the format can carry: line ends are LF, and UTF-8 has no surrogates."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def parse(stream: bytes) -> list[dict[str, str]]:
    """Read an event stream as the HTML standard says (9.2.6)."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    for line in re.split("\r\n|\r|\n", stream.decode()):
        if not line:
            if fields:
                events.append(fields)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = fields[name] + "\n" + value if name in fields else value
    assert not fields, "the last event is not complete: a browser would never dispatch it"
    return events


def parse_with_httpx_sse(stream: bytes) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    found = (decoder.decode(line) for line in re.split("\r\n|\r|\n", stream.decode())[:-1])
    return [one for one in found if one is not None]


@given(data=ANY, name=st.none() | FIELD, event_id=st.none() | FIELD, retry_ms=st.none() | st.integers(0, 10**9))
def test_any_text_arrives_as_one_event(data: str, name: str | None, event_id: str | None, retry_ms: int | None) -> None:
    frame = event(data, name=name, event_id=event_id, retry_ms=retry_ms)
    fields = {"data": expected(data)}
    fields |= {} if name is None else {"event": expected(name)}
    fields |= {} if event_id is None else {"id": expected(event_id)}
    fields |= {} if retry_ms is None else {"retry": str(retry_ms)}
    assert parse(KEEPALIVE + frame) == [fields]
    [read] = parse_with_httpx_sse(KEEPALIVE + frame + KEEPALIVE)
    assert read.data == expected(data)
    assert read.event == ("message" if name is None else expected(name))


@given(st.lists(ANY, max_size=5))
def test_frames_can_be_joined(texts: list[str]) -> None:
    stream = KEEPALIVE + b"".join(event(text) + KEEPALIVE for text in texts)
    assert [found["data"] for found in parse(stream)] == [expected(text) for text in texts]


@given(data=ANY, name=st.none() | FIELD)
def test_a_frame_can_be_read_back(data: str, name: str | None) -> None:
    assert read_event(event(data, name=name)) == (None if name is None else expected(name), expected(data))


def test_an_id_can_be_put_before_a_frame() -> None:
    assert with_id(b"1-0", event("x")) == b"id: 1-0\ndata: x\n\n"


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b"])
def test_a_name_or_id_that_would_begin_another_field_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="holds no line end"):
        event("x", name=bad)
    with pytest.raises(ValueError, match="holds no line end"):
        event("x", event_id=bad)


def test_a_negative_retry_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0"):
        event("x", retry_ms=-1)


def test_the_bytes_on_the_wire() -> None:
    frame = event("{}", name="evicted", event_id="evicted.1", retry_ms=0)
    assert frame == b"retry: 0\nid: evicted.1\nevent: evicted\ndata: {}\n\n"


def test_an_empty_id_is_sent_for_it_clears_the_last_one() -> None:
    assert b"id: \n" in event("1", event_id="")


def test_a_keepalive_is_a_comment_that_dispatches_nothing() -> None:
    assert parse(KEEPALIVE) == []
    assert KEEPALIVE.startswith(b":")


def test_a_huge_text_arrives() -> None:
    text = "ä\n" * 100_000
    assert parse(event(text))[0]["data"] == text


@given(ANY)
def test_utf8_never_fails(text: str) -> None:
    assert utf8(text).decode() == re.sub("[\ud800-\udfff]", "\ufffd", text)
