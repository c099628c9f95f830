"""Frames of an event stream (text/event-stream) as bytes: one call, one event, whatever the text holds.

Source: the WHATWG HTML standard, "Server-sent events". The parsers that we agree with: Chromium, eventsource-parser and
httpx-sse. Line ends in data become LF, since the format has no other; lone surrogates become U+FFFD: UTF-8 has none.
"""

from __future__ import annotations

import re

# A comment, and no blank line behind it: httpx-sse (0.4.3) takes that for another event once it has seen an id.
KEEPALIVE = b":\n"

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOT_IN_A_FIELD = re.compile(r"[\r\n\0]")


def event(data: str, *, name: str | None = None, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    """Encode one event.

    Raises `ValueError` for a name or an id with a line end or NUL, which would begin another field, and for a negative
    `retry_ms`.
    """
    lines = []
    if retry_ms is not None:
        if retry_ms < 0:
            raise ValueError(f"retry_ms is {retry_ms}; it is a whole number of milliseconds from 0")
        lines.append(f"retry: {retry_ms:d}")
    if event_id is not None:
        lines.append(f"id: {_field('id', event_id)}")
    if name is not None:
        lines.append(f"event: {_field('event', name)}")
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return utf8("\n".join([*lines, "", ""]))


def read_event(frame: bytes) -> tuple[str | None, str]:
    """The name and the data of a frame that `event` made."""
    name = None
    data = []
    for line in frame.decode().split("\n"):
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return name, "\n".join(data)


def with_id(event_id: bytes, frame: bytes) -> bytes:
    """Put an id before a frame that was encoded without one."""
    return b"id: " + event_id + b"\n" + frame


def utf8(text: str) -> bytes:
    """Encode any Python string; what UTF-8 cannot hold is replaced by U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def _field(field: str, value: str) -> str:
    if _NOT_IN_A_FIELD.search(value):
        raise ValueError(f"{field} is {value!r}; it holds no line end and no NUL")
    return value
