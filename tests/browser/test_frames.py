"""Chromium's own EventSource reads what is published: every event once, whatever its text holds."""

from __future__ import annotations

import json
from contextlib import closing
from hashlib import sha256

import pytest
from django.conf import settings
from playwright.sync_api import Page

from sse_limits.core.frames import event
from sse_limits.core.token_keys import TokenKeys
from sse_limits.publishing import RedisPublisher
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint
from tests.conformance.generated import generate
from tests.servers.harness import ServerProcess
from tests.servers.slots import Store

SEED = 21
EVENTS = 50_000
BATCH = 1_000  # fewer than a lane holds

CONNECT = """
() => new Promise((resolve, reject) => {
  const source = new EventSource('/events/?topic=news');
  window.got = [];
  window.errors = 0;
  source.onmessage = event => window.got.push([event.lastEventId, event.data]);
  source.onerror = () => { window.errors += 1; reject(new Error('the stream has ended')) };
  source.addEventListener('hello', () => resolve());
})
"""

# What has come is 63 MB, which takes longest on its way out of the browser: it is fetched only when it is wrong.
DIGEST = """
async () => {
  const came = new TextEncoder().encode(JSON.stringify(window.got));
  return Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', came)));
}
"""


@pytest.fixture
def demo_env() -> dict[str, str]:
    return {"SSE_LIMITS_LANE_EVENTS": str(2 * BATCH), "SSE_LIMITS_LANE_BYTES": "100000000"}


def test_generated_events_arrive_once_each(page: Page, demo: ServerProcess, store: Store) -> None:
    token = mint(TokenKeys.from_secrets(settings.SECRET_KEY), tenant="globex", user="u1", now=epoch_ms())
    page.context.add_cookies([{"name": "sse_limits_token", "value": token, "url": demo.url}])
    page.evaluate(CONNECT)
    expected: list[list[str]] = []
    events = list(generate(SEED, EVENTS))
    with closing(RedisPublisher(store.url, 5.0)) as publisher:
        for start in range(0, EVENTS, BATCH):
            batch = events[start : start + BATCH]
            ids = publisher.publish([("news", event(each.text)) for each in batch])
            expected += [[event_id, each.expected] for event_id, each in zip(ids, batch, strict=True)]
            page.wait_for_function("count => window.got.length >= count", arg=len(expected))
    if bytes(page.evaluate(DIGEST)) != sha256(as_javascript(expected)).digest():
        pytest.fail(difference(json.loads(page.evaluate("() => JSON.stringify(window.got)")), expected))
    assert page.evaluate("() => window.errors") == 0


def as_javascript(value: object) -> bytes:
    """What JSON.stringify makes of it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def difference(found: list[list[str]], expected: list[list[str]]) -> str:
    wrong = [(got, wanted) for got, wanted in zip(found, expected, strict=False) if got != wanted]
    first = f"; the first: {wrong[0][0]!r:.300} instead of {wrong[0][1]!r:.300}" if wrong else ""
    return f"{len(found)} events came instead of {len(expected)}, {len(wrong)} differ{first}"
