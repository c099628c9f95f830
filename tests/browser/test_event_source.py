"""What a real EventSource makes of our answers: it cannot see a status, so what it does next is what counts."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from django.conf import settings
from playwright.sync_api import Page, Request

from sse_limits.core.token_keys import TokenKeys
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint
from tests.servers.harness import ServerProcess

OPEN, CLOSED = 1, 2
RECONNECT_MS = 10_000  # Chromium comes back after 3 s by itself

CONNECT = """
() => new Promise(resolve => {
  const source = new EventSource('/events/?topic=news');
  window.seen = [];
  source.onopen = () => { window.source = source; resolve(source.readyState) };
  source.onerror = () => { window.source = source; resolve(source.readyState) };
  source.addEventListener('evicted', event => window.seen.push(event.data));
})
"""


def token(tenant: str, user: str) -> str:
    return mint(TokenKeys.from_secrets(settings.SECRET_KEY), tenant=tenant, user=user, now=epoch_ms())


def requests_of(page: Page) -> list[Request]:
    found: list[Request] = []
    page.on("request", lambda request: found.append(request) if "/events/" in request.url else None)
    return found


@contextlib.contextmanager
def streams(server: ServerProcess, count: int, tenant: str, user: str) -> Iterator[list[int]]:
    """Open streams of a user outside the browser, and tell how each was answered."""
    head = f"GET /events/?topic=news HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token(tenant, user)}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        answers = []
        for _ in range(count):
            connection = stack.enter_context(server.connect())
            connection.settimeout(5)
            connection.sendall(head.encode())
            answers.append(int(connection.recv(4096, socket.MSG_PEEK).split()[1]))
        yield answers


def sign_in(page: Page, server: ServerProcess, tenant: str, user: str) -> None:
    page.context.add_cookies([{"name": "sse_limits_token", "value": token(tenant, user), "url": server.url}])


def test_event_source_opens_with_the_token_cookie(page: Page, demo: ServerProcess) -> None:
    sign_in(page, demo, "globex", "u1")
    assert page.evaluate(CONNECT) == OPEN


def test_event_source_without_a_token_is_told_once_and_stays_away(page: Page, demo: ServerProcess) -> None:
    asked = requests_of(page)
    assert page.evaluate(CONNECT) == CLOSED
    assert len(asked) == 1


def test_event_source_at_the_limit_is_told_once_and_stays_away(page: Page, demo: ServerProcess) -> None:
    sign_in(page, demo, "globex", "u1")
    asked = requests_of(page)
    with streams(demo, 5, "globex", "u1") as answers:
        assert answers == [200] * 5
        assert page.evaluate(CONNECT) == CLOSED
    assert len(asked) == 1


def test_evicted_event_source_is_told_why_and_does_not_come_back(page: Page, demo: ServerProcess) -> None:
    sign_in(page, demo, "acme", "u1")
    asked = requests_of(page)
    assert page.evaluate(CONNECT) == OPEN
    with streams(demo, 10, "acme", "u1") as answers:
        assert answers == [200] * 10
        page.wait_for_function("() => window.seen.length === 1")
        assert '"reason": "evicted"' in page.evaluate("() => window.seen[0]")
        page.wait_for_function(f"() => window.source.readyState === {CLOSED}", timeout=RECONNECT_MS)
    assert len(asked) == 2  # the stream, and the one return that was answered 204
    assert asked[1].all_headers()["last-event-id"].startswith("evicted.")
