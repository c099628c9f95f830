"""Who gets in, who does not, and what each is told: over real servers, two nodes on one store."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets import InvalidStatus

from .client import Clients, Stream, handshake_bytes, until
from .conftest import CORS_ORIGIN
from .harness import ServerProcess
from .slots import Store, held, token

Pair = tuple[ServerProcess, ServerProcess]
Journal = Callable[[ServerProcess, str], Any]


async def fill(clients: Clients, server: ServerProcess, number: int, path: str = "/raw/", **who: Any) -> list[Stream]:
    """Open so many streams of one user, which must all be admitted."""
    streams = await asyncio.gather(*(clients.get(server, path, token(**who)) for _ in range(number)))
    assert [stream.status for stream in streams] == [200] * number
    return streams


async def refused_websocket(clients: Clients, server: ServerProcess, path: str, *args: Any, **options: Any) -> Any:
    """The HTTP answer to a handshake that must be refused."""
    with pytest.raises(InvalidStatus) as refused:
        await clients.websocket(server, path, *args, **options)
    return refused.value.response


def problem(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return found


@pytest.mark.parametrize("path", ["/raw/", "/events/?topic=news", "/views/limited/", "/tree/branch/"])
async def test_the_stream_beyond_the_limit_is_told_everything(
    server: ServerProcess, slots: Store, clients: Clients, path: str
) -> None:
    await fill(clients, server, 5, path)
    assert slots.in_use() == held(5, "gina", "globex")
    refused = await clients.get(server, path, token())
    assert refused.status == 429
    body = problem(await refused.rest())
    seconds = body.pop("retry_after")
    assert 5 <= seconds < 15
    assert len(body.pop("decision")) == 56
    assert body == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": f"This user holds 5 of 5 streams. Close one, or try again in {seconds} s.",
        "error": "too_many_streams",
        "reason": "user_limit",
        "layer": "slots",
        "scope": "user",
        "limit": 5,
        "in_use": 5,
    }
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == str(seconds)
    assert refused.headers["ratelimit-policy"] == '"user";q=5;qu="concurrent-requests"'
    assert refused.headers["ratelimit"] == f'"user";r=0;t={seconds}'
    assert slots.in_use() == held(5, "gina", "globex"), "a rejection leaves nothing"


async def test_a_slot_that_is_given_back_on_one_node_is_free_on_the_other(
    pair: Pair, slots: Store, clients: Clients
) -> None:
    first, second = pair
    streams = await fill(clients, first, 3) + await fill(clients, second, 2)
    assert (await clients.get(second, "/raw/", token())).status == 429
    streams[0].close()

    async def is_admitted() -> bool:
        return await clients.status(second, "/raw/", token()) == 200

    await until(is_admitted, 1)


@pytest.mark.parametrize("round_", range(3))
async def test_of_fifty_at_once_exactly_the_limit_gets_in(
    pair: Pair, slots: Store, clients: Clients, round_: int
) -> None:
    """Server-sent events and WebSockets together, over two processes (langgenius/dify#39177)."""

    async def attempt(number: int) -> int:
        server = pair[number % 2]
        if number % 4 < 2:
            return (await clients.get(server, "/raw/", token())).status
        try:
            await clients.websocket(server, "/echo/", token())
        except InvalidStatus as refused:
            return refused.response.status_code
        return 200

    found = Counter(await asyncio.gather(*(attempt(number) for number in range(50))))
    assert found[200] == 5
    assert sum(found.values()) == 50
    assert set(found) <= {200, 429}
    assert slots.in_use() == held(5, "gina", "globex")


async def test_a_full_class_takes_nothing_in_any_other_scope(pair: Pair, slots: Store, clients: Clients) -> None:
    answers = await asyncio.gather(*(clients.get(pair[n % 2], "/classed/", token(f"u{n}")) for n in range(20)))
    assert Counter(answer.status for answer in answers) == {200: 3, 429: 17}
    found = slots.in_use()
    assert sorted(found.values()) == [1, 1, 1, 3, 3, 3]
    refused = next(answer for answer in answers if answer.status == 429)
    body = problem(await refused.rest())
    assert (body["reason"], body["scope"], body["limit"], body["in_use"]) == ("class_limit", "class", 3, 3)


async def test_limits_are_per_tenant_though_users_share_a_name(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    await fill(clients, server, 5, user="u1", tenant="globex")
    await fill(clients, server, 5, user="u1", tenant="initech")
    assert (await clients.get(server, "/raw/", token("u1", "globex"))).status == 429
    assert (await clients.get(server, "/raw/", token("u1", "initech"))).status == 200


async def test_a_full_tenant_rejects_a_user_who_holds_nothing(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    for number in range(10):
        await fill(clients, server, 5, user=f"u{number}")
    refused = await clients.get(server, "/raw/", token("new"))
    body = problem(await refused.rest())
    assert (refused.status, body["scope"], body["limit"], body["in_use"]) == (429, "tenant", 50, 50)


@pytest.mark.parametrize("path", ["/raw/", "/events/", "/views/limited/"])
async def test_head_answers_what_get_would_and_takes_nothing(
    server: ServerProcess, slots: Store, clients: Clients, journal: Journal, path: str
) -> None:
    free = await clients.get(server, path + "?run=head", token(), method="HEAD")
    assert free.status == 200
    assert free.headers["content-type"].startswith("text/event-stream")
    assert slots.in_use() == {}
    await fill(clients, server, 5, path)
    full = await clients.get(server, path + "?run=head", token(), method="HEAD", headers=[("Connection", "close")])
    assert full.status == 429
    assert full.headers["content-type"] == "application/problem+json"
    assert await full.is_closed(2)
    assert slots.in_use() == held(5, "gina", "globex")
    assert await journal(server, "head") == [], "the app is not even started"
    assert (await clients.get(server, path, method="HEAD")).status == 401


async def test_the_answer_to_head_has_no_body(server: ServerProcess, slots: Store, clients: Clients) -> None:
    """daphne sends whatever body it is given: none may be given."""
    request = (
        f"HEAD {{}} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAuthorization: Bearer {token()}\r\n\r\n"
    ).format
    await fill(clients, server, 5)
    for path in ("/raw/", "/events/", "/softly/", "/nowhere/"):
        stream = await clients.send(server, request(path).encode())
        await stream.head()
        assert await stream._reader.read() == b"", path


async def test_options_never_needs_a_slot(server: ServerProcess, slots: Store, clients: Clients) -> None:
    """dunglas/mercure#535: a preflight of somebody at the limit must pass."""
    await fill(clients, server, 5)
    with slots.decisions() as asked:
        for path, status in (("/raw/", 200), ("/events/", 204)):
            for who in (token(), None):
                headers = [("Origin", CORS_ORIGIN), ("Access-Control-Request-Method", "GET")]
                assert (await clients.get(server, path, who, method="OPTIONS", headers=headers)).status == status
        assert slots.in_use() == held(5, "gina", "globex")
    assert asked == []


async def test_a_class_may_accept_first_and_then_say_no(server: ServerProcess, slots: Store, clients: Clients) -> None:
    for path in ("/softly/", "/views/limited-event/"):
        admitted = await clients.get(server, path, token("alice", "acme"))
        assert admitted.status == 200
        refused = await clients.get(server, path, token("aron", "acme"))
        assert refused.status == 200
        assert refused.headers["content-type"].startswith("text/event-stream")
        lines = (await refused.rest()).decode().split("\n")
        seconds = json.loads(lines[2].removeprefix("data: "))["retry_after"]
        assert lines[:2] == [f"retry: {seconds * 1000}", "event: rejected"]
        assert lines[3:] == ["", ""]


async def test_a_websocket_of_such_a_class_is_closed_with_a_code(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    await clients.websocket(server, "/softly/", token("alice", "acme"))
    refused = await clients.websocket(server, "/softly/", token("aron", "acme"))
    await asyncio.wait_for(refused.wait_closed(), 2)
    assert refused.close_code == 4429


async def test_a_websocket_is_refused_before_the_upgrade(server: ServerProcess, slots: Store, clients: Clients) -> None:
    await fill(clients, server, 5)
    full = await refused_websocket(clients, server, "/echo/", token())
    nobody = await refused_websocket(clients, server, "/echo/")
    assert (full.status_code, nobody.status_code) == (429, 401)
    body = problem(full.body)
    assert (body["reason"], body["in_use"]) == ("user_limit", 5)
    assert full.headers["retry-after"] == str(body["retry_after"])
    assert full.headers["content-type"] == "application/problem+json"
    assert nobody.headers["www-authenticate"] == "Bearer"


async def test_the_connection_of_a_refused_handshake_is_closed_but_granian_keeps_it_open(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    refused = await (await clients.send(server, handshake_bytes("/echo/"))).head()
    assert refused.status == 401
    assert await refused.is_closed(2) == (server.name != "granian")


BAD_TOKENS = {
    "none": None,
    "empty": "",
    "words": "let me in",
    "another secret": token(secret="another secret"),
    "expired": token(now=1_600_000_000_000),
    "cut": token()[:-5],
    "changed": token()[:20] + "A" + token()[21:],
    "for another use": token(audience="control"),
    "huge": "sl1." + "x" * 6000,
    "not ascii": "sl1.\xe9\xff\x80",
    "dots": "sl1.....",
}


@pytest.mark.parametrize("name", BAD_TOKENS)
async def test_no_token_or_a_bad_one_is_401_before_any_other_work(
    server: ServerProcess, slots: Store, clients: Clients, name: str
) -> None:
    await fill(clients, server, 1)
    with slots.decisions() as asked:
        for path in ("/raw/", "/events/", "/views/limited/"):
            refused = await clients.get(server, path, BAD_TOKENS[name])
            assert refused.status == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
            body = problem(await refused.rest())
            assert body["error"] == "unauthorized"
            reasons = {"none": "missing_token", "expired": "expired_token"}
            if name != "empty":  # servers differ in whether a blank at the end of a header is part of it
                assert body["reason"] == reasons.get(name, "bad_token")
            assert "retry-after" not in refused.headers
    assert asked == []


@pytest.mark.parametrize(
    ("user", "tenant", "reason"),
    [("gina", "unknown", "blocked"), ("gina", "hooli", "suspended"), ("gone", "globex", "suspended")],
)
async def test_whom_the_policy_does_not_serve_is_403(
    server: ServerProcess, slots: Store, clients: Clients, user: str, tenant: str, reason: str
) -> None:
    for path in ("/raw/", "/events/", "/views/limited/"):
        refused = await clients.get(server, path, token(user, tenant))
        assert (refused.status, problem(await refused.rest())["reason"]) == (403, reason)
    denied = await refused_websocket(clients, server, "/echo/", token(user, tenant))
    assert denied.status_code == 403


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?topic=", 400),
        ("?topic=a/b", 400),
        ("?topic=%00", 400),
        ("?topic=%0d%0aid:1", 400),
        ("?topic=%ff", 400),
        ("?topic=" + "x" * 201, 400),
        ("?topic=news&topic=", 400),
        ("?topic=" + "x" * 200, 200),
        ("?topic=%F0%9F%98%80", 200),
        ("?other=1", 200),
        ("?topic=news&topic=sport", 200),
    ],
)
async def test_topics_are_checked_before_a_slot_is_taken(
    server: ServerProcess, slots: Store, clients: Clients, query: str, status: int
) -> None:
    answer = await clients.get(server, "/events/" + query, token())
    assert answer.status == status
    assert slots.in_use() == (held(1, "gina", "globex") if status == 200 else {})


async def test_a_token_may_allow_fewer_topics(server: ServerProcess, slots: Store, clients: Clients) -> None:
    few = token(topics=["news"])
    assert (await clients.get(server, "/events/?topic=news", few)).status == 200
    refused = await clients.get(server, "/events/?topic=news&topic=sport", few)
    assert (refused.status, problem(await refused.rest())["reason"]) == (403, "forbidden_topic")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PROPFIND", "TRACE"])
async def test_an_event_stream_is_opened_with_get(
    server: ServerProcess, slots: Store, clients: Clients, method: str
) -> None:
    answer = await clients.get(server, "/events/", token(), method=method, body=b"x")
    assert answer.status in (400, 405, 501), "400 and 501: the server itself knows no such method"
    if answer.status == 405:
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert slots.in_use() == {}


HOSTILE = {
    "path of nul": ("/raw%00/", []),
    "path not utf-8": ("/%ff%fe/", []),
    "path traversal": ("/../../raw/", []),
    "double slash": ("//raw/", []),
    "long path": ("/" + "x" * 4000, []),
    "odd query": ("/raw/?%ff&=&&;%00", []),
    "odd cookies": ("/raw/", [("Cookie", "a=b; =; sse_limits_token; sessionid; \xff=\xfe; sse_limits_token=\xff")]),
    "quoted cookie": ("/raw/", [("Cookie", 'sse_limits_token="; sessionid="')]),
    "session of odd bytes": ("/raw/", [("Cookie", "sessionid=\xff\x80'\";")]),
    "long session": ("/raw/", [("Cookie", "sessionid=" + "x" * 6000)]),
    "odd origin": ("/raw/", [("Cookie", "sessionid=x"), ("Origin", "http://[::1")]),
    "binary origin": ("/raw/", [("Cookie", "sessionid=x"), ("Origin", "\xff\xfe://\x80")]),
    "last event id": ("/raw/", [("Last-Event-ID", "\xff" + "9" * 6000)]),
    "negative last event id": ("/raw/", [("Last-Event-ID", "-1")]),
    "odd authorization": ("/raw/", [("Authorization", "Bearer\t\xff")]),
    "basic authorization": ("/raw/", [("Authorization", "Basic eDp5")]),
    "forwarded nonsense": ("/public/events/", [("X-Forwarded-For", "unknown, \xff, [, ,,:")]),
    "many headers": ("/raw/", [(f"X-{number}", "y") for number in range(90)]),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_nothing_a_client_writes_is_our_fault(
    server: ServerProcess, slots: Store, clients: Clients, name: str
) -> None:
    path, headers = HOSTILE[name]
    for who in (None, token()):
        answer = await clients.get(server, path, who, headers=headers)
        assert 200 <= answer.status < 500
        answer.close()
    handshake = {key: value for key, value in headers if value.isascii()}
    assert await clients.websocket_status(server, path, token(), headers=handshake.items()) < 500


# -- carriers --------------------------------------------------------------------------------------------------------


async def test_a_cookie_carries_the_token(server: ServerProcess, slots: Store, clients: Clients) -> None:
    for value in (token(), f'"{token()}"'):
        assert (
            await clients.get(server, "/raw/", headers=[("Cookie", f"a=b; sse_limits_token={value}")])
        ).status == 200
    assert slots.in_use() == held(2, "gina", "globex")


async def test_a_subprotocol_carries_the_token_and_is_not_echoed(
    server: ServerProcess, slots: Store, clients: Clients
) -> None:
    offered = ["sse_limits.v1", f"sse_limits.token.{token()}", "chat"]
    found = await clients.websocket(server, "/headers/", subprotocols=offered)
    assert found.subprotocol == "sse_limits.v1"
    assert await found.recv() == "sse_limits.v1,chat", "the app never sees the token"
    assert slots.in_use() == held(1, "gina", "globex")


async def test_a_bad_subprotocol_token_is_refused(server: ServerProcess, slots: Store, clients: Clients) -> None:
    for bad in ("x", token()[:-1]):
        refused = await refused_websocket(
            clients, server, "/headers/", subprotocols=["sse_limits.v1", f"sse_limits.token.{bad}"]
        )
        assert refused.status_code == 401


async def test_the_query_is_not_read_unless_switched_on(server: ServerProcess, slots: Store, clients: Clients) -> None:
    assert (await clients.get(server, f"/raw/?access_token={token()}")).status == 401


async def test_the_query_is_read_where_switched_on(behind_proxy: ServerProcess, slots: Store, clients: Clients) -> None:
    assert (await clients.get(behind_proxy, f"/raw/?access_token={token()}")).status == 200
    await clients.websocket(behind_proxy, f"/echo/?access_token={token()}")
    assert (await clients.get(behind_proxy, "/raw/?access_token=bad")).status == 401
    assert slots.in_use() == held(2, "gina", "globex")


async def test_the_first_carrier_decides_and_a_bad_one_is_not_passed_over(
    behind_proxy: ServerProcess, slots: Store, clients: Clients
) -> None:
    """In this order: Authorization, subprotocol, query, cookie."""
    good, other = token("gina"), token("gus")
    cookie = [("Cookie", f"sse_limits_token={other}")]
    bad_cookie = [("Cookie", "sse_limits_token=bad")]
    assert (await clients.get(behind_proxy, "/raw/", good, headers=bad_cookie)).status == 200
    assert (await clients.get(behind_proxy, "/raw/", "bad", headers=cookie)).status == 401
    assert (await clients.get(behind_proxy, f"/raw/?access_token={good}", headers=bad_cookie)).status == 200
    assert (await clients.get(behind_proxy, "/raw/?access_token=bad", headers=cookie)).status == 401
    assert (await clients.get(behind_proxy, "/raw/?access_token=bad", good)).status == 200
    await clients.websocket(
        behind_proxy, "/echo/?access_token=bad", subprotocols=["sse_limits.v1", f"sse_limits.token.{good}"]
    )
    assert slots.in_use() == held(4, "gina", "globex")


async def test_token_authentication_asks_no_database(
    behind_proxy: ServerProcess, slots: Store, clients: Clients
) -> None:
    """This server's database cannot be opened at all."""
    await fill(clients, behind_proxy, 5, "/views/limited/")
    for who in (token(), token()[:-3], token(now=1_600_000_000_000), None):
        assert (await clients.get(behind_proxy, "/views/limited/", who)).status in (429, 401)


# -- what the app sees, and CORS ---------------------------------------------------------------------------------------


async def test_streams_are_never_compressed(server: ServerProcess, slots: Store, http: httpx.AsyncClient) -> None:
    answer = await http.get(f"{server.url}/headers/", headers={"Authorization": f"Bearer {token()}"})
    assert "accept-encoding" not in answer.text
    assert "authorization" in answer.text
    unguarded = await http.get(f"{server.url}/unguarded/headers/")
    assert "accept-encoding" in unguarded.text


@pytest.mark.parametrize("path", ["/raw/", "/events/"])
async def test_a_page_of_an_allowed_origin_can_read_a_rejection(
    server: ServerProcess, slots: Store, clients: Clients, path: str
) -> None:
    await fill(clients, server, 5, path)
    for who, status in ((token(), 429), (None, 401)):
        for origin in (CORS_ORIGIN, "https://evil.example", None):
            headers = [("Origin", origin)] if origin else []
            refused = await clients.get(server, path, who, headers=headers)
            assert refused.status == status
            assert "origin" in refused.headers["vary"]
            assert refused.headers.get("access-control-allow-origin") == (origin if origin == CORS_ORIGIN else None)
            if origin == CORS_ORIGIN:
                assert "retry-after" in refused.headers["access-control-expose-headers"]
                assert refused.headers["access-control-allow-credentials"] == "true"


async def test_an_unguarded_path_is_passed_through(server: ServerProcess, slots: Store, clients: Clients) -> None:
    stream = await clients.get(server, "/unguarded/raw/")
    assert stream.status == 200
    await clients.websocket(server, "/unguarded/echo/")
    assert slots.in_use() == {}
    answer = await clients.get(server, "/healthz")
    assert (answer.status, await answer.rest()) == (200, b"ok\n")
