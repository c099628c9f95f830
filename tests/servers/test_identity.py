"""Session users, origins and addresses, as real servers hand them over."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from typing import Any

import pytest

from .client import Clients, until
from .conftest import CORS_ORIGIN, People, Start
from .harness import ServerProcess
from .slots import Store, held, token

EVIL = "https://evil.example"


def session(people: People, name: str, origin: str | None = None) -> list[tuple[str, str]]:
    headers = [("Cookie", f"sessionid={people.sessions[name]}")]
    return headers if origin is None else [*headers, ("Origin", origin)]


async def test_a_session_says_who_it_is_and_which_tenant(
    server: ServerProcess, slots: Store, clients: Clients, people: People
) -> None:
    assert (await clients.get(server, "/raw/", headers=session(people, "gina"))).status == 200
    assert slots.in_use() == held(1, "gina", "globex")
    assert (await clients.get(server, "/raw/", headers=session(people, "marta"))).status == 200
    assert held(1, "marta", "acme").items() - held(1, None).items() <= slots.in_use().items(), "her default tenant"


async def test_a_user_without_a_tenant_holds_no_tenant_slot(
    server: ServerProcess, slots: Store, clients: Clients, people: People
) -> None:
    for _ in range(5):
        assert (await clients.get(server, "/raw/", headers=session(people, "nobody"))).status == 200
    assert (await clients.get(server, "/raw/", headers=session(people, "nobody"))).status == 429
    assert slots.in_use() == held(5, "nobody")


@pytest.mark.parametrize(
    ("cookie", "status", "reason"),
    [
        ("sessionid={torn}", 403, "tenant_ambiguous"),
        ("sessionid={off}", 401, "missing_token"),
        ("sessionid=" + "x" * 32, 401, "missing_token"),
        ("sessionid=", 401, "missing_token"),
        ("sessionid=1", 401, "missing_token"),
    ],
)
async def test_a_session_that_names_nobody_or_too_many_is_refused(
    server: ServerProcess, slots: Store, clients: Clients, people: People, cookie: str, status: int, reason: str
) -> None:
    refused = await clients.get(server, "/raw/", headers=[("Cookie", cookie.format(**people.sessions))])
    assert refused.status == status
    assert reason in (await refused.rest()).decode()


async def test_a_session_is_looked_up_once_however_often_it_comes(
    start: Start, slots: Store, clients: Clients, people: People
) -> None:
    """Its row is gone after the first visit: whoever asks the database again finds nobody."""
    server = start("uvicorn", DATABASE_PATH=people.database, SSE_LIMITS_SESSION_CACHE_SECONDS="2")
    cookie = session(people, "gus")
    assert (await clients.get(server, "/raw/", headers=cookie)).status == 200
    with sqlite3.connect(people.database) as database:
        database.execute("DELETE FROM django_session WHERE session_key = ?", [people.sessions["gus"]])
    database.close()
    answers = await asyncio.gather(*(clients.get(server, "/raw/", headers=cookie) for _ in range(20)))
    assert Counter(answer.status for answer in answers) == {200: 4, 429: 16}

    async def is_nobody() -> bool:
        return await clients.status(server, "/raw/", headers=cookie) == 401

    await until(is_nobody, 4)


async def test_a_database_that_is_away_is_503_for_sessions_only(start: Start, slots: Store, clients: Clients) -> None:
    server = start("uvicorn")
    server.expect("sessions cannot be looked up")
    for number in range(5):
        refused = await clients.get(server, "/raw/", headers=[("Cookie", f"sessionid={number}{'x' * 31}")])
        assert refused.status == 503
        assert "retry-after" in refused.headers
    assert (await clients.get(server, "/raw/", token())).status == 200
    assert server.log().count("sessions cannot be looked up") == 1, "told once, not for each visit"


# -- origins ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cookie", ["session", "token"])
async def test_a_page_of_another_origin_cannot_open_a_websocket_with_the_visitors_cookies(
    server: ServerProcess, slots: Store, clients: Clients, people: People, cookie: str
) -> None:
    """djust-org/djust#653: refused before a slot, and before any look-up."""
    with slots.decisions() as asked:
        header = session(people, "gina")[0] if cookie == "session" else ("Cookie", f"sse_limits_token={token()}")
        for origin in (EVIL, "null", "http://localhost.evil.example", "https://evil.example:443/127.0.0.1", None):
            headers = [header] if origin is None else [header, ("Origin", origin)]
            assert await clients.websocket_status(server, "/echo/", headers=headers) == 403, origin
    assert asked == []
    assert slots.in_use() == {}


async def test_pages_of_allowed_origins_can(
    server: ServerProcess, slots: Store, clients: Clients, people: People
) -> None:
    for origin in (server.url, "https://localhost:8443", CORS_ORIGIN):
        headers = session(people, "alice", origin)
        assert await clients.websocket_status(server, "/echo/", headers=headers) == 101, origin
        assert (await clients.get(server, "/raw/", headers=headers)).status == 200


async def test_an_event_stream_with_cookies_is_refused_to_other_origins_only(
    server: ServerProcess, slots: Store, clients: Clients, people: People
) -> None:
    for origin, status in ((EVIL, 403), ("null", 403), (None, 200)):
        assert (await clients.get(server, "/raw/", headers=session(people, "gina", origin))).status == status


async def test_a_token_in_a_header_is_welcome_from_any_origin(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    headers = [("Origin", EVIL), ("Cookie", "theme=dark")]
    assert (await clients.get(server, "/raw/", token(), headers=headers)).status == 200
    assert await clients.websocket_status(server, "/echo/", token=token(), headers=headers) == 101


# -- addresses -------------------------------------------------------------------------------------------------------


async def test_anonymous_streams_are_counted_by_address(pair: Any, slots: Store, clients: Clients) -> None:
    answers = await asyncio.gather(*(clients.get(pair[n % 2], "/public/events/") for n in range(30)))
    assert Counter(answer.status for answer in answers) == {200: 20, 429: 10}
    assert slots.in_use() == held(20, None, address="127.0.0.1")
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.headers["ratelimit-policy"] == '"address";q=20;qu="concurrent-requests"'
    assert (await clients.get(pair[0], "/public/events/", token())).status == 200, (
        "who names himself is counted as such"
    )


async def test_anonymous_websockets_and_views_share_the_address(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    for _ in range(7):
        await clients.websocket(server, "/open/")
        assert (await clients.get(server, "/views/limited-open/")).status == 200
    assert slots.in_use() == held(14, None, address="127.0.0.1")


async def test_a_header_from_nobody_we_trust_is_ignored(server: ServerProcess, slots: Store, clients: Clients) -> None:
    answers = await asyncio.gather(
        *(clients.get(server, "/public/events/", headers=[("X-Forwarded-For", f"198.51.100.{n}")]) for n in range(22))
    )
    assert Counter(answer.status for answer in answers) == {200: 20, 429: 2}


SPOOFED = [
    "203.0.113.{n}, 198.51.100.7",
    "unknown, 198.51.100.7",
    ", , 198.51.100.7",
    "198.51.100.7",
    "203.0.113.{n},198.51.100.7:4{n}",
    "10.0.0.{n}\t,\t198.51.100.7",
    "[2001:db8::{n}]:80, ::ffff:198.51.100.7",
    "<script>, \xff\xfe, 198.51.100.7",
    "203.0.113.{n}, 198.51.100.7, 127.0.0.1",
    "x" * 6000 + ", 198.51.100.7",
]


async def test_whatever_a_client_puts_before_it_the_address_is_the_one_our_proxy_saw(
    behind_proxy: ServerProcess, slots: Store, clients: Clients
) -> None:
    """openedx/openedx-platform#30285, jsocol/django-ratelimit#55."""

    async def visit(number: int) -> int:
        text = SPOOFED[number % len(SPOOFED)].replace("{n}", str(number))
        headers = [("X-Forwarded-For", part) for part in text.split(", ")] if number % 3 == 0 else []
        return (
            await clients.get(behind_proxy, "/public/events/", headers=headers or [("X-Forwarded-For", text)])
        ).status

    found = Counter(await asyncio.gather(*(visit(number) for number in range(50))))
    assert found == {200: 20, 429: 30}
    assert slots.in_use() == held(20, None, address="198.51.100.7")


async def test_each_client_of_a_proxy_has_an_address_of_its_own(
    behind_proxy: ServerProcess, slots: Store, clients: Clients
) -> None:
    for number in range(25):
        headers = [("X-Forwarded-For", f"198.51.100.{number}")]
        assert (await clients.get(behind_proxy, "/public/events/", headers=headers)).status == 200
    for number in range(20):
        headers = [("X-Forwarded-For", f"2001:db8:1:2::{number:x}")]
        assert (await clients.get(behind_proxy, "/public/events/", headers=headers)).status == 200
    assert (
        await clients.get(behind_proxy, "/public/events/", headers=[("X-Forwarded-For", "2001:db8:1:2:ffff::")])
    ).status == 429, "an IPv6 network of 64 bits is one client"


async def test_on_a_unix_socket_nobody_shares_the_bucket_of_no_address(
    start: Start, kind: str, slots: Store, clients: Clients
) -> None:
    """Kludex/uvicorn#223: 30 clients without an address are not one client; the operator is told once."""
    server = start(kind, uds=True)
    server.expect("clients come without an address")
    for _ in range(30):
        assert (await clients.get(server, "/public/events/")).status == 200
    assert slots.in_use() == held(30, None)
    assert server.log().count("clients come without an address") == 1


async def test_on_a_unix_socket_a_trusted_proxy_names_the_address(
    start: Start, kind: str, slots: Store, clients: Clients
) -> None:
    server = start(kind, uds=True, SSE_LIMITS_TRUSTED_PROXIES="unix")
    headers = [("X-Forwarded-For", "203.0.113.9, 198.51.100.7")]
    answers = [await clients.get(server, "/public/events/", headers=headers) for _ in range(22)]
    assert Counter(answer.status for answer in answers) == {200: 20, 429: 2}
    assert slots.in_use() == held(20, None, address="198.51.100.7")
    for answer in answers:
        answer.close()
    await until(lambda: slots.in_use() == {}, 1)
