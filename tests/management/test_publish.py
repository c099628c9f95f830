"""`manage.py publish`: one event, or a load of numbered ones."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from sse_limits.publishing import memory_topics


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    with override_settings(SSE_LIMITS={"STORE": "memory"}):
        yield


def test_one_event_is_published_and_its_id_printed() -> None:
    out = StringIO()
    call_command("publish", topic="news", data="hello", event="greet", tenant="acme", stdout=out)
    [logged] = memory_topics().entries("acme/news")
    assert out.getvalue().strip() == logged.id
    assert logged.frame == b"event: greet\ndata: hello\n\n"


def test_a_load_is_numbered_and_has_its_size() -> None:
    call_command("publish", topic="news", count=30, rate=10_000, size=50, stdout=StringIO())
    data = [entry.frame.decode().removeprefix("data: ").rstrip("\n") for entry in memory_topics().entries("news")]
    assert [line.split(" ")[0] for line in data] == [str(number) for number in range(1, 31)]
    assert {len(line) for line in data} == {50}


@pytest.mark.parametrize("options", [{}, {"data": "x", "count": 1}, {"count": 0}, {"count": 1, "rate": 0}])
def test_options_that_do_not_fit_are_told(options: dict[str, object]) -> None:
    with pytest.raises(CommandError):
        call_command("publish", topic="news", **options)


def test_a_store_that_is_away_is_told() -> None:
    with (
        override_settings(SSE_LIMITS={"REDIS_URL": "unix:///nowhere/at/all"}),
        pytest.raises(CommandError, match="Not"),
    ):
        call_command("publish", topic="news", data="x")
