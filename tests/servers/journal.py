"""What the test apps of one process have done, by the `run` that a client names in its query; read at /journal/."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any
from urllib.parse import parse_qs

_entries: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)


def query(scope: dict[str, Any]) -> dict[str, str]:
    return {"run": ""} | {key: values[-1] for key, values in parse_qs(scope["query_string"].decode("latin-1")).items()}


def note(run: str, what: str) -> None:
    _entries[run].append((what, time.time()))


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Tell what was noted for `?run=`: a JSON list of [what, epoch seconds]."""
    body = json.dumps(_entries[query(scope)["run"]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
