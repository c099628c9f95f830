"""Who is asking: which carrier counts, where cookies may speak, and which address it comes from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import jwt
import pytest
from django.contrib.auth import get_user_model
from django.db import connections
from django.http import parse_cookie
from django.test import Client, override_settings
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.conf import Conf, get_conf
from sse_limits.core.identity import Identity
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.token_keys import TokenKeys
from sse_limits.sessions import SessionUsers
from sse_limits.streams import identification
from sse_limits.streams.identification import Identifier, Session, cookie_value, origin_rule, read
from sse_limits.streams.tokens import Claims, TokenFault, mint, verify

NOW = 1_800_000_000_000
SECRET = "the secret key of these tests"
KEYS = TokenKeys.from_secrets(SECRET)
GOOD = mint(KEYS, tenant="acme", user="alice", now=NOW, tier="pro", topics=["news"], sid="sid")
OTHER = mint(KEYS, tenant="acme", user="bob", now=NOW)
EXPIRED = mint(KEYS, tenant="acme", user="alice", now=NOW - 400_000)
FORGED = mint(TokenKeys.from_secrets("another"), tenant="acme", user="mallory", now=NOW)
JWT_SECRET = "j" * 64
JWT = {"key": JWT_SECRET, "algorithms": ["HS256"], "audience": "sse"}
OURS = b"https://app.example"
ELSEWHERE = b"https://evil.example"

Make = Callable[..., Identifier]


def scope(*headers: tuple[bytes, bytes], kind: str = "http", client: Any = ("192.0.2.1", 5000), **more: Any) -> Any:
    return {"type": kind, "headers": list(headers), "query_string": b"", "client": client, **more}


def bearer(token: str, scheme: str = "Bearer") -> tuple[bytes, bytes]:
    return b"authorization", f"{scheme} {token}".encode()


def cookie(**values: str) -> tuple[bytes, bytes]:
    return b"cookie", "; ".join(f"{name}={value}" for name, value in values.items()).encode()


@pytest.fixture(autouse=True)
def demo(settings: Any) -> None:
    settings.SECRET_KEY = SECRET
    settings.ALLOWED_HOSTS = ["app.example"]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Build an identifier by the settings given."""
    made: list[SessionUsers] = []

    def build(**conf: Any) -> Identifier:
        made.append(SessionUsers(60))
        with override_settings(SSE_LIMITS=conf):
            return Identifier(get_conf(), made[-1], lambda: NOW)

    yield build
    for users in made:
        await asyncio.get_running_loop().run_in_executor(users._thread, close_connection)
        users.close()


def close_connection() -> None:
    """End this thread's connection for good: Django keeps one to an in-memory database open, and so unclosed."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            connection.connection.close()
            connection.connection = None


async def identify(identifier: Identifier, found: Any, *, anonymous: bool = True) -> Identity | Reject:
    who = identifier.identify(found, read(found), anonymous=anonymous)
    return await identifier.by_session(who, anonymous=anonymous) if isinstance(who, Session) else who


async def user(identifier: Identifier, found: Any) -> str | None:
    identity = await identify(identifier, found)
    assert isinstance(identity, Identity), identity
    return identity.user


class TestToken:
    async def test_all_that_it_says_becomes_the_identity(self, make: Make) -> None:
        assert await identify(make(), scope(bearer(GOOD))) == Identity(
            user="alice",
            tenant="acme",
            tier="pro",
            address="192.0.2.1",
            topics=("news",),
            expires_at=NOW + 300_000,
            issued_at=NOW,
            session="sid",
            token=GOOD[-22:],
        )

    @pytest.mark.parametrize("token", ["", "sl1.", "x", FORGED, GOOD[:-1], GOOD + "x", "sl1." + "x" * 3000])
    async def test_a_bad_one_is_not_nobody(self, make: Make, token: str) -> None:
        assert await identify(make(), scope(bearer(token))) == Reject(Reason.BAD_TOKEN)

    async def test_an_expired_one_says_so(self, make: Make) -> None:
        assert await identify(make(), scope(bearer(EXPIRED))) == Reject(Reason.EXPIRED_TOKEN)

    async def test_the_key_before_this_one_still_verifies(self, make: Make, settings: Any) -> None:
        settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the next one", [SECRET]
        assert await user(make(), scope(bearer(GOOD))) == "alice"

    async def test_nothing_presented_is_anonymous_and_not_a_fault(self, make: Make) -> None:
        assert await identify(make(), scope()) == Identity(address="192.0.2.1")

    @pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer ", "Bearer  "])
    async def test_the_scheme_is_read_in_any_case(self, make: Make, scheme: str) -> None:
        assert await user(make(), scope(bearer(GOOD, scheme))) == "alice"

    @pytest.mark.parametrize("value", [b"Bearer", b"bearer", b"Bearer "])
    async def test_a_scheme_without_a_token_is_a_bad_token(self, make: Make, value: bytes) -> None:
        assert await identify(make(), scope((b"authorization", value))) == Reject(Reason.BAD_TOKEN)

    @pytest.mark.parametrize("value", [b"", b"Basic YTpi", b"BearerX", b"Digest bearer x", GOOD.encode()])
    async def test_another_scheme_is_not_ours_to_judge(self, make: Make, value: bytes) -> None:
        assert await user(make(), scope((b"authorization", value))) is None


class TestNobody:
    @pytest.mark.parametrize("headers", [(), ((b"authorization", b"Basic YTpi"),), (cookie(theme="dark"),)])
    async def test_where_somebody_is_needed_nobody_is_refused(self, make: Make, headers: Any) -> None:
        assert await identify(make(), scope(*headers), anonymous=False) == Reject(Reason.MISSING_TOKEN)

    async def test_a_bad_token_is_refused_as_such_even_where_nobody_would_do(self, make: Make) -> None:
        for anonymous in (True, False):
            found = await identify(make(), scope(bearer(FORGED)), anonymous=anonymous)
            assert found == Reject(Reason.BAD_TOKEN)


class TestRememberedTokens:
    """A good token is verified once: what is remembered must never outlive it, nor speak for another client."""

    @pytest.fixture
    def clock(self) -> list[int]:
        return [NOW]

    @pytest.fixture
    def identifier(self, clock: list[int]) -> Iterator[Identifier]:
        users = SessionUsers(60)
        yield Identifier(Conf(jwt=JWT), users, lambda: clock[0])
        users.close()

    async def test_the_second_stream_of_a_token_is_the_same_identity(self, identifier: Identifier) -> None:
        assert await identify(identifier, scope(bearer(GOOD))) is await identify(identifier, scope(bearer(GOOD)))

    async def test_it_expires_all_the_same(self, identifier: Identifier, clock: list[int]) -> None:
        assert await user(identifier, scope(bearer(GOOD))) == "alice"
        clock[0] = NOW + 300_000 - 1
        assert await user(identifier, scope(bearer(GOOD))) == "alice"
        clock[0] += 1
        assert await identify(identifier, scope(bearer(GOOD))) == Reject(Reason.EXPIRED_TOKEN)

    async def test_one_of_another_issuer_expires_too(self, identifier: Identifier, clock: list[int]) -> None:
        token = TestJwt().token()
        assert await user(identifier, scope(bearer(token))) == "jane"
        clock[0] = NOW + 60_000
        assert await identify(identifier, scope(bearer(token))) == Reject(Reason.EXPIRED_TOKEN)

    async def test_each_client_keeps_its_own_address(self, identifier: Identifier) -> None:
        for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
            identity = await identify(identifier, scope(bearer(GOOD), client=(address, 1)))
            assert isinstance(identity, Identity)
            assert identity.address == address

    async def test_a_changed_one_is_still_bad_beside_a_good_one(self, identifier: Identifier) -> None:
        assert await user(identifier, scope(bearer(GOOD))) == "alice"
        assert await identify(identifier, scope(bearer(GOOD[:-1] + "!"))) == Reject(Reason.BAD_TOKEN)
        assert await user(identifier, scope(bearer(OTHER))) == "bob"

    async def test_memory_is_bounded(self, identifier: Identifier, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identification, "TOKENS_REMEMBERED", 3)
        for number in range(10):
            token = mint(KEYS, tenant="acme", user=f"u{number}", now=NOW)
            assert await user(identifier, scope(bearer(token))) == f"u{number}"
            assert await identify(identifier, scope(bearer(FORGED))) == Reject(Reason.BAD_TOKEN)
        assert len(identifier._good_tokens) == 3
        for number in range(10):
            forged = mint(KEYS, tenant="acme", user=f"u{number}", now=NOW)[:-4] + "AAAA"
            assert await identify(identifier, scope(bearer(forged))) == Reject(Reason.BAD_TOKEN)
        assert len(identifier._refused_tokens) == 3

    async def test_addresses_of_a_token_are_bounded(
        self, identifier: Identifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(identification, "ADDRESSES_REMEMBERED", 3)
        for number in range(10):
            identity = await identify(identifier, scope(bearer(GOOD), client=(f"192.0.2.{number}", 1)))
            assert isinstance(identity, Identity)
            assert identity.address == f"192.0.2.{number}"
        [good] = identifier._good_tokens.values()
        assert len(good.identities) == 3

    async def test_what_is_refused_once_is_not_verified_again_but_for_another_issuers(
        self, identifier: Identifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        verified: list[str | bytes] = []

        def counted(keys: TokenKeys, token: str | bytes, *, now: int) -> Claims | TokenFault:
            verified.append(token)
            return verify(keys, token, now=now)

        monkeypatch.setattr(identification, "verify", counted)
        expired = mint(KEYS, tenant="acme", user="eve", now=NOW - 400_000)
        for _ in range(3):
            assert await identify(identifier, scope(bearer(FORGED))) == Reject(Reason.BAD_TOKEN)
            assert await identify(identifier, scope(bearer(expired))) == Reject(Reason.EXPIRED_TOKEN)
            assert await identify(identifier, scope(bearer("a.b.c"))) == Reject(Reason.BAD_TOKEN)
            assert await identify(identifier, scope(bearer("sl1." + "x" * 5000))) == Reject(Reason.BAD_TOKEN)
        assert sorted(map(len, verified)) == sorted([len(FORGED), len(expired), *[5004] * 3])
        assert b"a.b.c" not in identifier._refused_tokens


class TestCarriers:
    def subprotocols(self, *values: str) -> dict[str, Any]:
        return {"kind": "websocket", "subprotocols": list(values)}

    async def test_a_websocket_may_carry_it_as_a_subprotocol(self, make: Make) -> None:
        found = scope(**self.subprotocols("sse_limits.v1", f"sse_limits.token.{GOOD}"))
        assert await user(make(), found) == "alice"

    async def test_other_subprotocols_carry_nothing(self, make: Make) -> None:
        assert await user(make(), scope(**self.subprotocols("chat", "sse_limits.v1"))) is None

    async def test_a_cookie_may_carry_it(self, make: Make) -> None:
        assert await user(make(), scope(cookie(a="b", sse_limits_token=GOOD, c="d"))) == "alice"

    async def test_a_cookie_that_was_emptied_is_not_there(self, make: Make) -> None:
        assert await user(make(), scope(cookie(sse_limits_token=""))) is None
        assert await user(make(), scope(cookie(sse_limits_token='""'))) is None

    async def test_the_query_carries_it_only_where_that_is_switched_on(self, make: Make) -> None:
        found = scope() | {"query_string": b"topic=a&access_token=" + GOOD.encode()}
        assert await user(make(), found) is None
        assert await user(make(QUERY_TOKEN=True), found) == "alice"

    @pytest.mark.parametrize("query", [b"", b"topic=a", b"xaccess_token=x", b"access_token"])
    async def test_a_query_without_it_is_not_a_carrier(self, make: Make, query: bytes) -> None:
        assert await user(make(QUERY_TOKEN=True), scope() | {"query_string": query}) is None

    @pytest.mark.parametrize(
        "query", [b"access_token=x", b"access_token=%ff%00", b"access_token=\xff", b"access_token=\xc3\xa4"]
    )
    async def test_a_bad_one_in_the_query_is_refused(self, make: Make, query: bytes) -> None:
        found = scope() | {"query_string": query}
        assert await identify(make(QUERY_TOKEN=True), found) == Reject(Reason.BAD_TOKEN)

    @pytest.mark.parametrize("first", range(4))
    @pytest.mark.parametrize("token", [GOOD, FORGED])
    async def test_the_first_carrier_decides_whatever_the_others_say(self, make: Make, first: int, token: str) -> None:
        """Header, subprotocol, query, cookie: a bad one is refused even when a later one is good."""
        tokens = [None] * first + [token] + [OTHER] * (3 - first)
        header, subprotocol, query, in_cookie = tokens
        headers = [bearer(header)] if header else []
        headers += [cookie(sse_limits_token=in_cookie)] if in_cookie else []
        found = scope(
            *headers,
            (b"origin", OURS),
            kind="websocket",
            subprotocols=[f"sse_limits.token.{subprotocol}"] if subprotocol else [],
        ) | {"query_string": f"access_token={query}".encode() if query else b""}
        identity = await identify(make(QUERY_TOKEN=True), found)
        if token == FORGED:
            assert identity == Reject(Reason.BAD_TOKEN)
        else:
            assert isinstance(identity, Identity)
            assert identity.user == "alice"


class TestJwt:
    def token(self, **changes: Any) -> str:
        payload = {"sub": "jane", "aud": "sse", "exp": NOW // 1000 + 60, "tenant": "acme"} | changes
        return jwt.encode(payload, JWT_SECRET, algorithm="HS256")

    async def test_it_is_read_where_it_is_configured(self, make: Make) -> None:
        identity = await identify(make(JWT=JWT), scope(bearer(self.token())))
        assert isinstance(identity, Identity)
        assert (identity.user, identity.tenant) == ("jane", "acme")

    async def test_elsewhere_it_is_a_bad_token(self, make: Make) -> None:
        assert await identify(make(), scope(bearer(self.token()))) == Reject(Reason.BAD_TOKEN)

    async def test_our_own_tokens_go_on_working_beside_it(self, make: Make) -> None:
        assert await user(make(JWT=JWT), scope(bearer(GOOD))) == "alice"

    async def test_faults_are_told_apart(self, make: Make) -> None:
        identifier = make(JWT=JWT)
        assert await identify(identifier, scope(bearer(self.token(exp=1)))) == Reject(Reason.EXPIRED_TOKEN)
        assert await identify(identifier, scope(bearer(self.token(aud="x")))) == Reject(Reason.BAD_TOKEN)


@pytest.mark.django_db(transaction=True)
class TestSession:
    @pytest.fixture
    def key(self) -> str:
        client = Client()
        client.force_login(get_user_model().objects.create_user("alice"))
        key = client.session.session_key
        assert key is not None
        return key

    async def test_a_logged_in_user_needs_no_token(self, make: Make, key: str) -> None:
        identity = await identify(make(), scope(cookie(sessionid=key)))
        assert identity == Identity(user="alice", address="192.0.2.1", session=KEYS.session_id(key))

    @pytest.mark.parametrize("value", ["", "x" * 32, "short"])
    async def test_a_session_that_is_none_is_anonymous(self, make: Make, value: str) -> None:
        assert await identify(make(), scope(cookie(sessionid=value))) == Identity(address="192.0.2.1")

    async def test_the_project_s_name_of_the_cookie_is_read(self, make: Make, key: str, settings: Any) -> None:
        settings.SESSION_COOKIE_NAME = "__Host-s"
        assert await user(make(), scope((b"cookie", f"__Host-s={key}".encode()))) == "alice"
        assert await user(make(), scope(cookie(sessionid=key))) is None

    async def test_a_token_comes_before_the_session_even_a_bad_one(self, make: Make, key: str) -> None:
        assert await user(make(), scope(bearer(OTHER), cookie(sessionid=key))) == "bob"
        assert await identify(make(), scope(bearer(FORGED), cookie(sessionid=key))) == Reject(Reason.BAD_TOKEN)

    async def test_of_two_cookies_of_a_name_the_same_one_counts_as_for_django(self, make: Make, key: str) -> None:
        for header in (f"sessionid=stale; sessionid={key}", f"sessionid={key}; sessionid=stale"):
            expected = "alice" if parse_cookie(header)["sessionid"] == key else None
            assert await user(make(), scope((b"cookie", header.encode()))) == expected

    async def test_cookies_in_several_headers_are_one_list_as_in_http_2(self, make: Make, key: str) -> None:
        assert await user(make(), scope(cookie(a="b"), cookie(sessionid=key), cookie(c="d"))) == "alice"

    async def test_sessions_that_cannot_be_looked_up_are_503_and_said_once_until_they_can(
        self, make: Make, key: str, settings: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine, settings.SESSION_ENGINE = settings.SESSION_ENGINE, "no.such.engine"
        identifier = make()
        for _ in range(3):
            assert await identify(identifier, scope(cookie(sessionid=key))) == Reject(Reason.STORE)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert caplog.records[0].message.startswith("sessions cannot be looked up (")
        settings.SESSION_ENGINE = engine
        assert await user(identifier, scope(cookie(sessionid=key))) == "alice"
        settings.SESSION_ENGINE = "no.such.engine"
        for _ in range(3):
            assert await identify(identifier, scope(cookie(sessionid="x" * 32))) == Reject(Reason.STORE)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


class TestOrigin:
    SPEAKING = (cookie(sse_limits_token=GOOD), cookie(sessionid="x" * 32))

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    @pytest.mark.parametrize("speaking", SPEAKING)
    async def test_a_page_from_elsewhere_may_not_use_our_cookies(self, make: Make, kind: str, speaking: Any) -> None:
        found = scope(speaking, (b"origin", ELSEWHERE), kind=kind)
        assert await identify(make(), found) == Reject(Reason.BAD_ORIGIN)

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    async def test_it_is_refused_before_its_token_is_looked_at(self, make: Make, kind: str) -> None:
        found = scope(bearer(FORGED), cookie(sse_limits_token=GOOD), (b"origin", ELSEWHERE), kind=kind)
        assert await identify(make(), found) == Reject(Reason.BAD_ORIGIN)

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    async def test_our_own_page_may(self, make: Make, kind: str) -> None:
        assert await user(make(), scope(cookie(sse_limits_token=GOOD), (b"origin", OURS), kind=kind)) == "alice"

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    @pytest.mark.parametrize("headers", [(), (cookie(theme="dark"),), (cookie(sse_limits_token=""),)])
    async def test_where_no_cookie_speaks_any_page_may_bring_a_token(self, make: Make, kind: str, headers: Any) -> None:
        assert await user(make(), scope(*headers, bearer(GOOD), (b"origin", ELSEWHERE), kind=kind)) == "alice"

    async def test_a_request_without_origin_is_same_site_but_a_handshake_without_one_is_no_browser_s(
        self, make: Make
    ) -> None:
        assert await user(make(), scope(cookie(sse_limits_token=GOOD))) == "alice"
        found = scope(cookie(sse_limits_token=GOOD), kind="websocket")
        assert await identify(make(), found) == Reject(Reason.BAD_ORIGIN)

    @pytest.mark.parametrize("origin", [b"null", b"", b"app.example", b"https://", b"http://[", b"\xff", b"//"])
    async def test_what_is_no_origin_is_refused_and_raises_nothing(self, make: Make, origin: bytes) -> None:
        found = scope(cookie(sse_limits_token=GOOD), (b"origin", origin), kind="websocket")
        assert await identify(make(), found) == Reject(Reason.BAD_ORIGIN)


class TestOriginRule:
    @pytest.mark.parametrize(
        ("allowed", "origin", "expected"),
        [
            (["https://a.example"], b"https://a.example", True),
            (["https://a.example"], b"http://a.example", False),
            (["https://a.example"], b"https://a.example:8443", False),
            (["https://a.example:443"], b"https://a.example", True),
            ([".a.example"], b"https://x.a.example", True),
            ([".a.example"], b"https://xa.example", False),
            (["a.example"], b"https://b.a.example", False),
            (["*"], b"https://anything.example", True),
            (["*"], None, True),
            ([], b"https://a.example", False),
            (["http://["], b"https://a.example", False),
        ],
    )
    def test_allowed_origins_are_read_as_channels_does(
        self, allowed: list[str], origin: bytes | None, expected: bool
    ) -> None:
        assert origin_rule(Conf(allowed_origins=tuple(allowed)))(origin) is expected

    def test_without_them_allowed_hosts_count(self, settings: Any) -> None:
        settings.ALLOWED_HOSTS = [".example"]
        assert origin_rule(Conf())(b"https://any.example")
        assert not origin_rule(Conf())(b"https://localhost")

    @pytest.mark.parametrize(("debug", "expected"), [(True, True), (False, False)])
    def test_in_debug_without_hosts_this_machine_may(self, settings: Any, debug: bool, expected: bool) -> None:
        settings.ALLOWED_HOSTS, settings.DEBUG = [], debug
        for origin in (b"http://localhost:8000", b"http://127.0.0.1:8000", b"http://[::1]:8000"):
            assert origin_rule(Conf())(origin) is expected

    def test_who_may_read_with_cookies_may_open_with_them(self) -> None:
        rule = origin_rule(Conf(cors_origins=("https://partner.example",)))
        assert rule(b"https://partner.example")
        assert not rule(b"https://partner.example.evil.example")

    @given(st.none() | st.binary(max_size=60) | st.text("htps:/[]@.%aA0\\?#", max_size=20).map(str.encode))
    def test_no_origin_raises(self, origin: bytes | None) -> None:
        assert origin_rule(Conf(allowed_origins=("https://a.example", ".b.example")))(origin) is False


class TestAddress:
    async def address(self, identifier: Identifier, *headers: tuple[bytes, bytes], client: Any) -> str | None:
        identity = await identify(identifier, scope(*headers, client=client))
        assert isinstance(identity, Identity)
        return identity.address

    @pytest.mark.parametrize("kind", ["http", "websocket"])
    async def test_it_is_the_peer_s_whatever_an_untrusted_peer_claims(self, make: Make, kind: str) -> None:
        found = scope((b"x-forwarded-for", b"198.51.100.7"), kind=kind)
        assert await identify(make(), found) == Identity(address="192.0.2.1")

    async def test_a_trusted_proxy_names_the_client_over_several_headers(self, make: Make) -> None:
        headers = [(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-for", b"198.51.100.7, 10.0.0.2")]
        identifier = make(TRUSTED_PROXIES=["10.0.0.0/8"])
        assert await self.address(identifier, *headers, client=("10.0.0.1", 1)) == "198.51.100.7"

    async def test_ipv6_counts_by_network(self, make: Make) -> None:
        assert await self.address(make(), client=("2001:db8::1", 1)) == "2001:db8::/64"
        assert await self.address(make(IPV6_PREFIX=48), client=("2001:db8::1", 1)) == "2001:db8::/48"

    @pytest.mark.parametrize("client", [None, ("", 0), ("/run/app.sock", None), ["testclient", 1]])
    async def test_no_address_is_none_never_a_shared_one_and_said_once(
        self, make: Make, client: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "sse_limits")
        identifier = make()
        for _ in range(3):
            assert await self.address(identifier, client=client) is None
        assert ["clients come without an address" in record.message for record in caplog.records] == [True]


class TestCookieValue:
    @pytest.mark.parametrize(
        ("header", "expected"),
        [
            (None, None),
            (b"", None),
            (b"a=1", b"1"),
            (b"xa=1", None),
            (b"ax=1", None),
            (b"b=a=1", None),
            (b'b=2; a="1" ;c=3', b"1"),
            (b";;a=1;", b"1"),
            (b"a", None),
            (b"a=", b""),
            (b"a=x=y", b"x=y"),
        ],
    )
    def test_it_is_the_value_of_exactly_that_name(self, header: bytes | None, expected: bytes | None) -> None:
        assert cookie_value(header, b"a") == expected

    @given(
        st.lists(st.tuples(st.sampled_from(["a", "b", "aa"]), st.text("xyz019-_.", min_size=1, max_size=5)), max_size=5)
    )
    def test_it_is_what_django_reads(self, pairs: list[tuple[str, str]]) -> None:
        header = "; ".join(f"{name}={value}" for name, value in pairs)
        found = cookie_value(header.encode(), b"a")
        assert (None if found is None else found.decode()) == parse_cookie(header).get("a")


names = st.sampled_from([b"authorization", b"cookie", b"origin", b"x-forwarded-for", b"last-event-id", b"host"])
values = (
    st.binary(max_size=60)
    | st.binary(max_size=30).map(lambda text: b"Bearer " + text)
    | st.binary(max_size=30).map(lambda text: b"sse_limits_token=" + text)
)


class TestHostileClients:
    @given(
        headers=st.lists(st.tuples(names, values), max_size=6),
        kind=st.sampled_from(["http", "websocket"]),
        query=st.binary(max_size=40) | st.binary(max_size=30).map(lambda text: b"access_token=" + text),
        subprotocols=st.lists(
            st.text(max_size=20) | st.text(max_size=20).map("sse_limits.token.{}".format), max_size=2
        ),
        client=st.none() | st.tuples(st.text(max_size=20), st.none() | st.integers()),
    )
    def test_whatever_they_send_nothing_raises_and_nobody_is_recognised(
        self, headers: Any, kind: str, query: bytes, subprotocols: list[str], client: Any
    ) -> None:
        users = SessionUsers(60)
        identifier = Identifier(Conf(query_token=True, trusted_proxies=("unix",)), users, lambda: NOW)
        found = scope(*headers, kind=kind, client=client, subprotocols=subprotocols) | {"query_string": query}
        identity = asyncio.run(identify(identifier, found))
        assert isinstance(identity, Reject) or identity.user is None
        users.close()


class TestRead:
    def test_what_the_guard_needs_is_read_in_one_pass(self) -> None:
        request = read(scope((b"last-event-id", b"7"), (b"accept-encoding", b"gzip"), (b"origin", OURS)))
        assert (request.last_event_id, request.accept_encoding, request.origin) == (b"7", True, OURS)
        assert read(scope()) == (None, None, None, None, [], False)
