"""`manage.py sse_limits`: the same facts as the pages, as text for people and as JSON for scripts."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from sse_limits.core.rejections import Reason
from tests.api.conftest import Scene, scene

__all__ = ["scene"]

pytestmark = pytest.mark.redis


def run(*words: str) -> str:
    out = StringIO()
    call_command("sse_limits", *words, stdout=out, no_color=True)
    return out.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_holders_stand_with_their_limits(scene: Scene) -> None:
    assert rows(run("holders"))[:2] == [
        ["user", "in", "use", "limit", "limit", "from"],
        ["globex/gina", "3", "3", "tenant", "globex"],
    ]
    assert rows(run("holders", "--scope", "tenant"))[1] == ["globex", "3", "50", "tier", "free"]
    found = json.loads(run("holders", "--scope", "address", "--json"))
    assert found["holders"][0] == {
        "scope": "address",
        "subject": "192.0.2.1",
        "in_use": 4,
        "limit": 20,
        "limit_source": "tier anonymous",
    }


def test_streams_of_a_holder_or_of_all(scene: Scene) -> None:
    text = run("streams", "--user", "globex/gina")
    assert [row[0] for row in rows(text)[1:-1]] == scene.streams[:3]
    assert text.endswith("3 of 3 streams\n")
    assert json.loads(run("streams", "--json"))["count"] == 4
    assert json.loads(run("streams", "--node", scene.stations[1].id, "--json"))["streams"][0]["id"] == scene.streams[1]


def test_a_decision_is_explained(scene: Scene) -> None:
    text = run("explain", scene.refused.id)
    assert text.startswith("This user holds 3 of 3 streams.")
    assert "globex" in text
    assert json.loads(run("explain", scene.refused.id, "--json"))["user"] == "gina"
    with pytest.raises(CommandError, match="not a decision id of this site"):
        run("explain", "nonsense")


def test_top_shows_the_fleet_and_ends_when_asked(scene: Scene) -> None:
    text = run("top", "--seconds", "0")
    assert "4 streams on 2 nodes, 1 rejected in a minute" in text
    assert "globex/gina" in text
    assert "user_limit" in text
    assert json.loads(run("top", "--seconds", "0", "--json"))["in_use"] == 4


async def test_a_stream_that_was_ended_is_no_rejection(scene: Scene) -> None:
    scene.stations[0].end(Reason.EVICTED)
    await scene.stations[0].write()
    assert "1 rejected in a minute" in await asyncio.to_thread(run, "top", "--seconds", "0")


def test_without_the_store_it_says_so(settings: Any) -> None:
    settings.SSE_LIMITS = {"REDIS_URL": "redis://127.0.0.1:1", "POLICY": {}}
    with pytest.raises(CommandError, match="does not answer"):
        run("holders")
