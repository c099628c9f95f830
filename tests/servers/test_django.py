"""Django's own async views behind the guard, and `@limited_stream` where there is no guard."""

from __future__ import annotations

import json
import time
from io import BytesIO
from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application

from .client import Clients, until
from .harness import ServerProcess
from .slots import Store, held, token
from .test_release import Journal, until_noted


@pytest.mark.parametrize("path", ["/views/clock/", "/views/ticks/", "/views/limited/"])
async def test_events_flow_as_they_are_made_though_gzip_stands_in_front(
    server: ServerProcess, slots: Store, clients: Clients, path: str
) -> None:
    """adamchainz/django-browser-reload#161: GZipMiddleware would hold them until its window is full."""
    began = time.monotonic()
    stream = await clients.get(server, path, token(), headers=[("Accept-Encoding", "gzip, deflate, br")])
    assert stream.status == 200
    assert "content-encoding" not in stream.headers
    assert stream.headers["content-type"].startswith("text/event-stream")
    await stream.until(b"data: ")
    assert time.monotonic() - began < 4, "zlib's window would take minutes to fill"
    if path != "/views/clock/":
        await stream.until(b"data: tick\n\n" * 3)
    assert slots.in_use() == held(1, "gina", "globex")


@pytest.mark.parametrize("path", ["/views/ticks/", "/views/limited/"])
async def test_the_generator_of_a_view_is_closed_when_its_client_leaves(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal, path: str
) -> None:
    run = server.name + path
    stream = await clients.get(server, f"{path}?run={run}", token())
    await stream.until(b"data: tick")
    stream.close()
    await until(lambda: slots.in_use() == {}, 1)
    await until_noted(journal, server, run, "finally", 3)


async def test_the_generator_of_an_evicted_view_is_closed(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal
) -> None:
    run = f"{server.name}-evicted-view"
    oldest = await clients.get(server, f"/views/limited/?run={run}", token("u1", "small"))
    for _ in range(2):
        assert (await clients.get(server, "/raw/", token("u1", "small"))).status == 200
    assert b"event: evicted\n" in await oldest.rest()
    await until_noted(journal, server, run, "finally", 3)


async def test_a_view_may_have_a_limit_of_its_own(server: ServerProcess, slots: Store, clients: Clients) -> None:
    assert (await clients.get(server, "/views/limited-class/", token("alice", "acme"))).status == 200
    refused = await clients.get(server, "/views/limited-class/", token("aron", "acme"))
    assert (refused.status, json.loads(await refused.rest())["scope"]) == (429, "class")
    assert (await clients.get(server, "/views/limited-class/", token("gina", "globex"))).status == 200, "per tenant"


@pytest.mark.django_db  # the end of a request looks after the connections of the thread
def test_under_wsgi_a_limited_view_says_that_it_cannot_be_served(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.servers.urls"
    answer: dict[str, Any] = {}
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/views/limited/",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "HTTP_HOST": "localhost",
        "wsgi.input": BytesIO(),
        "wsgi.url_scheme": "http",
    }
    response = get_wsgi_application()(environ, lambda status, headers: answer.update(status=status, headers=headers))
    body = json.loads(b"".join(response))
    response.close()
    assert answer["status"] == "501 Not Implemented"
    assert dict(answer["headers"])["Content-Type"] == "application/problem+json"
    assert body["status"] == 501
    assert "ASGI" in body["detail"]
