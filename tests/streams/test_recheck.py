"""Open streams by session against revocations that are heard of late: on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.auth.hashers import make_password
from django.test import override_settings

from sse_limits.core.rejections import Reason
from sse_limits.core.revocations import RevocationKind, Revoked
from sse_limits.policy import Facts
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.guard import StreamGuard
from sse_limits.streams.node import Node, close_node, get_node
from sse_limits.streams.recheck import Recheck

pytestmark = pytest.mark.django_db(transaction=True)  # a session is looked up in a thread, with a connection of its own
LONG = 3_600_000


def log_in() -> tuple[Any, str]:
    user = get_user_model().objects.create_user("alice", password="first")
    store = import_module(django_settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = django_settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    return user, store.session_key


async def stays_open(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"open", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with override_settings(SSE_LIMITS={"STORE": "memory", "POLICY": {"tiers": {"free": {}, "anonymous": {}}}}):
        yield get_node()
        await close_node()


async def opened(key: str) -> asyncio.Task[None]:
    """A stream by this session, once its first byte is there."""
    is_open = asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message.get("body"):
            is_open.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/stream/",
        "query_string": b"",
        "headers": [(b"cookie", f"{django_settings.SESSION_COOKIE_NAME}={key}".encode())],
        "client": ("192.0.2.1", 1),
    }
    stream = asyncio.create_task(StreamGuard(stays_open, {"/stream/": "raw"})(scope, receive, send))
    async with asyncio.timeout(5):
        await is_open.wait()
    return stream


def revoked(at: int) -> Facts:
    return Facts(None, [Revoked(RevocationKind.USER, "alice", at, at + LONG)])


async def test_a_revocation_that_is_heard_of_after_a_session_was_asked_again_is_not_missed(node: Node) -> None:
    """It happened before the asking, and the answer came from what was remembered of the session."""
    user, key = await sync_to_async(log_in)()
    node.limiter.learn(revoked(epoch_ms()))  # something earlier: the session is in doubt, and good
    stream = await opened(key)
    recheck = Recheck(node)
    users = get_user_model().objects.filter(pk=user.pk)
    await users.aupdate(password=make_password("another"))  # sends no signal: this process does not hear of it at once
    happened_at = epoch_ms()
    await asyncio.sleep(0.01)
    await recheck.look()
    (open_stream,) = node.streams()
    assert open_stream.reason is None, "nobody has heard of it"
    node.limiter.learn(revoked(happened_at))
    await recheck.look()
    assert open_stream.reason is Reason.REVOKED
    await asyncio.wait_for(stream, 5)


async def test_a_session_that_is_still_good_is_asked_once_for_each_revocation(node: Node) -> None:
    _, key = await sync_to_async(log_in)()
    stream = await opened(key)
    recheck = Recheck(node)
    node.limiter.learn(revoked(epoch_ms()))
    (open_stream,) = node.streams()
    for _ in range(3):
        await recheck.look()
    assert open_stream.reason is None
    assert recheck._in_doubt_since(open_stream, open_stream.identity) is None  # type: ignore[arg-type]
    stream.cancel()
    await asyncio.wait([stream])
