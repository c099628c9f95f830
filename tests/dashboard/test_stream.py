"""Live updates over our own event stream: exempt, shared, ended with the permission and with the process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx

from tests.servers.harness import ServerProcess

from .conftest import ROOM
from .fleet import Fleet, signed_in, wait_until


def views(response: httpx.Response) -> Iterator[dict[str, object]]:
    """The views that a stream sends."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_a_view_comes_each_second_and_takes_no_slot(fleet: Fleet, browser: httpx.Client) -> None:
    with browser.stream("GET", f"{ROOM}overview/events/") as response:
        assert response.headers["content-type"] == "text/event-stream"
        found = views(response)
        first, second = next(found), next(found)
        assert first["clock"] != second["clock"]
        assert set(first) == {"clock", "away", "own", "parts", "tables", "charts"}
        assert fleet.store.in_use() == {}


def test_the_stream_shows_what_the_page_shows(fleet: Fleet, browser: httpx.Client) -> None:
    fleet.open(2, "acme", "u2")
    with browser.stream("GET", f"{ROOM}streams/events/?user=acme/u2") as response:
        assert any(
            json.dumps(view["tables"]).count('<td class=\\"p2\\">/events/</td>') == 2 for view in views(response)
        )
    fleet.leave()


def test_nobody_else_gets_the_stream(fleet: Fleet) -> None:
    assert httpx.get(f"{fleet.url}{ROOM}overview/events/").status_code == 403


def test_the_stream_ends_when_the_viewer_is_signed_out(fleet: Fleet, browser: httpx.Client) -> None:
    with browser.stream("GET", f"{ROOM}overview/events/") as response:
        lines = response.iter_lines()
        next(lines)
        headers = {"X-CSRFToken": browser.cookies["csrftoken"], "Referer": fleet.url}
        httpx.post(f"{fleet.url}/admin/logout/", cookies=dict(browser.cookies), headers=headers)
        assert sum(line.startswith("data: ") for line in lines) < 10


def test_beyond_the_most_viewers_of_a_node_the_page_is_left_to_poll(fleet: Fleet, browser: httpx.Client) -> None:
    streams = [browser.send(browser.build_request("GET", f"{ROOM}nodes/events/"), stream=True) for _ in range(50)]
    try:
        assert [stream.status_code for stream in streams] == [200] * 50
        assert browser.get(f"{ROOM}nodes/events/").status_code == 204
        assert browser.get(f"{ROOM}nodes/now/").status_code == 200
    finally:
        for stream in streams:
            stream.close()
    wait_until(lambda: is_admitted(browser))


def is_admitted(browser: httpx.Client) -> bool:
    with browser.stream("GET", f"{ROOM}nodes/events/") as response:
        return response.status_code == 200


def test_a_process_that_ends_says_goodbye_to_its_viewers(fleet: Fleet) -> None:
    leaving = ServerProcess("uvicorn", fleet.env, app="project.asgi:application")
    leaving.wait_until_ready()
    with signed_in(leaving) as browser, browser.stream("GET", f"{ROOM}overview/events/") as response:
        lines = response.iter_lines()
        next(lines)
        leaving.process.terminate()
        assert "event: shutdown" in list(lines)
    leaving.stop()
