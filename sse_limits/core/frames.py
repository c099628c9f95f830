"""Frames of an event stream (text/event-stream) as bytes."""

from __future__ import annotations

KEEPALIVE = b":\n\n"


def event(name: str, data: str, *, event_id: str | None = None, retry_ms: int | None = None) -> bytes:
    """One event with one line of data.

    Every argument comes from this package and holds no line break; text from elsewhere needs the encoder for any string
    that comes with publishing.
    """
    lines = [] if retry_ms is None else [f"retry: {retry_ms}"]
    if event_id is not None:
        lines.append(f"id: {event_id}")
    return "\n".join([*lines, f"event: {name}", f"data: {data}", "", ""]).encode()
