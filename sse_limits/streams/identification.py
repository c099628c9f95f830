"""From an ASGI scope to an `Identity`, or the reason why nobody is recognised; no I/O but a cached session look-up.

The first carrier present decides: Authorization, WebSocket subprotocol, query (where switched on), cookie, session. A
bad one is 401 whatever the others say. The origin is checked before, and only where cookies speak for the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlparse

from channels.security.websocket import OriginValidator
from django.conf import settings

from sse_limits.conf import Conf
from sse_limits.core.identity import Identity, TrustedProxies, group_address
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.token_keys import TokenKeys
from sse_limits.sessions import SessionsUnavailable, SessionUsers

from . import cors
from .jwt_tokens import JwtVerifier
from .tokens import MAX_TOKEN_BYTES, Claims, TokenFault, verify

log = logging.getLogger("sse_limits.streams.identification")

TOKEN_COOKIE = "sse_limits_token"
TOKEN_COOKIE_BYTES = TOKEN_COOKIE.encode()
SUBPROTOCOL = "sse_limits.v1"
TOKEN_SUBPROTOCOL = "sse_limits.token."
OWN_TOKEN = "sl1."
OWN_TOKEN_BYTES = OWN_TOKEN.encode()
TOKENS_REMEMBERED = 1024
ADDRESSES_REMEMBERED = 64  # of each token
SIGNATURE_CHARS = 22  # of a token's end: enough to name it in a revocation, and no secret without the rest
FAULTS = {fault: Reject(Reason(fault)) for fault in TokenFault}
MISSING = Reject(Reason.MISSING_TOKEN)

Scope = dict[str, Any]


class Request(NamedTuple):
    """What the guard reads from the headers of a scope, in one pass."""

    authorization: bytes | None
    cookie: bytes | None
    origin: bytes | None
    last_event_id: bytes | None
    forwarded_for: list[bytes]
    accept_encoding: bool


WANTED = frozenset((b"authorization", b"cookie", b"origin", b"last-event-id", b"x-forwarded-for", b"accept-encoding"))


def read(scope: Scope) -> Request:
    """Find the headers that matter; of a repeated one the last counts, cookies and X-Forwarded-For excepted."""
    found: dict[bytes, bytes] = {}
    forwarded_for: list[bytes] = []
    for name, value in scope["headers"]:
        if name in WANTED:
            if name == b"x-forwarded-for":
                forwarded_for.append(value)
            elif name == b"cookie" and name in found:
                found[name] += b"; " + value
            else:
                found[name] = value
    get = found.get
    return Request(
        get(b"authorization"),
        get(b"cookie"),
        get(b"origin"),
        get(b"last-event-id"),
        forwarded_for,
        b"accept-encoding" in found,
    )


class Session(NamedTuple):
    """A session cookie whose user is not known yet, and where it came from."""

    key: str
    address: str | None


class GoodToken(NamedTuple):
    """What a token that was verified says, and who has come with it, by address."""

    claims: Claims
    identities: dict[str | None, Identity]


class Identifier:
    """Recognises clients by token or session. One instance serves one event loop."""

    def __init__(self, conf: Conf, sessions: SessionUsers, clock: Callable[[], int]) -> None:
        self._keys = TokenKeys.from_secrets(settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS)
        self._jwt = JwtVerifier(**conf.jwt) if conf.jwt else None
        self._sessions = sessions
        self._clock = clock
        self._proxies = TrustedProxies(conf.trusted_proxies)
        self._ipv6_prefix = conf.ipv6_prefix
        self._query_token = conf.query_token
        self._session_cookie = settings.SESSION_COOKIE_NAME.encode()
        self._origin_is_allowed = lru_cache(maxsize=1024)(origin_rule(conf))
        self._address_is_missing = False
        self._sessions_answer = True
        self._good_tokens: dict[bytes | str, GoodToken] = {}
        self._refused_tokens: dict[bytes | str, Reject] = {}

    def identify(self, scope: Scope, request: Request, *, anonymous: bool) -> Identity | Reject | Session:
        """Say who is asking, without I/O. A `Session` still has to be looked up, by `by_session`."""
        if request.cookie is not None and not self._may_use_cookies(scope, request):
            return Reject(Reason.BAD_ORIGIN)
        token = self._token(scope, request)
        if token is not None:
            return self._by_token(token, scope, request)
        session_key = cookie_value(request.cookie, self._session_cookie)
        if session_key:
            return Session(session_key.decode("latin-1"), self.address(scope, request))
        return Identity(address=self.address(scope, request)) if anonymous else MISSING

    async def by_session(self, session: Session, *, anonymous: bool) -> Identity | Reject:
        """Look a session up; one that belongs to nobody is as good as none."""
        try:
            user = await self._sessions.find(session.key)
        except SessionsUnavailable as exc:
            if self._sessions_answer:
                log.warning(
                    "sessions cannot be looked up (%s): their streams are rejected with 503 until they can", exc
                )
            self._sessions_answer = False
            return Reject(Reason.STORE)
        self._sessions_answer = True
        if user is not None:
            return Identity(user=user, address=session.address, session=self._keys.session_id(session.key))
        return Identity(address=session.address) if anonymous else MISSING

    def _may_use_cookies(self, scope: Scope, request: Request) -> bool:
        if request.origin is None and scope["type"] == "http":
            return True  # browsers name the origin of every cross-site request, and of every WebSocket handshake
        speaks = cookie_value(request.cookie, self._session_cookie) or cookie_value(request.cookie, TOKEN_COOKIE_BYTES)
        return not speaks or self._origin_is_allowed(request.origin)

    def address(self, scope: Scope, request: Request) -> str | None:
        """The grouped address of a client; None where there is none."""
        client = scope.get("client")
        peer = client[0] if client else None
        address = self._proxies.client_address(peer, request.forwarded_for)
        if address is not None:
            return group_address(address, self._ipv6_prefix)
        if not self._address_is_missing and not (peer is None and is_tcp(scope)):
            self._address_is_missing = True
            log.warning("clients come without an address (peer %r): address limits do not hold for them", peer)
        return None

    def _token(self, scope: Scope, request: Request) -> bytes | str | None:
        if request.authorization is not None:
            scheme, _, bearer = request.authorization.partition(b" ")
            if scheme.lower() == b"bearer":
                return bearer.strip()
        for protocol in scope.get("subprotocols") or ():
            if protocol.startswith(TOKEN_SUBPROTOCOL):
                return str(protocol.removeprefix(TOKEN_SUBPROTOCOL))
        if self._query_token and b"access_token=" in scope["query_string"]:
            found = parse_qs(scope["query_string"].decode("latin-1")).get("access_token")
            if found:
                return str(found[0])
        return cookie_value(request.cookie, TOKEN_COOKIE_BYTES) or None

    def _by_token(self, token: bytes | str, scope: Scope, request: Request) -> Identity | Reject:
        """Verify a token; a good one is remembered, so that its next streams share one `Identity`."""
        good = self._good_tokens.get(token) or self._refused_tokens.get(token) or self._verify(token)
        if isinstance(good, Reject):
            return good
        if good.claims.expires_at <= self._clock():
            return FAULTS[TokenFault.EXPIRED]
        address = self.address(scope, request)
        identity = good.identities.get(address)
        if identity is None:
            make_room(good.identities, ADDRESSES_REMEMBERED)
            identity = good.identities[address] = identity_of(good.claims, address, token[-SIGNATURE_CHARS:])
        return identity

    def _verify(self, token: bytes | str) -> GoodToken | Reject:
        own = token.startswith(OWN_TOKEN) if isinstance(token, str) else token.startswith(OWN_TOKEN_BYTES)
        now = self._clock()
        seen = verify(self._keys, token, now=now) if own or self._jwt is None else self._jwt.verify(token, now)
        if not isinstance(seen, TokenFault):
            make_room(self._good_tokens, TOKENS_REMEMBERED)
            good = self._good_tokens[token] = GoodToken(seen, {})
            return good
        refused = FAULTS[seen]
        if own and len(token) <= MAX_TOKEN_BYTES:
            # Refused once, refused for ever (not so a JWT, whose keys may come later): a client that goes on with an
            # expired token doesn't make us verify it each time.
            make_room(self._refused_tokens, TOKENS_REMEMBERED)
            self._refused_tokens[token] = refused
        return refused


def identity_of(claims: Claims, address: str | None, signature: bytes | str) -> Identity:
    """Who comes with a token from an address."""
    return Identity(
        user=claims.user,
        tenant=claims.tenant,
        tier=claims.tier,
        address=address,
        topics=claims.topics,
        expires_at=claims.expires_at,
        issued_at=claims.issued_at,
        session=claims.sid,
        token=signature if isinstance(signature, str) else signature.decode(),
    )


def make_room(remembered: dict[Any, Any], at_most: int) -> None:
    """Let the oldest entry go where there are too many."""
    if len(remembered) >= at_most:
        remembered.pop(next(iter(remembered)))


def is_tcp(scope: Scope) -> bool:
    """Whether the server listens on a port. There a client without an address is one that has gone already."""
    server: tuple[str, int | None] = scope.get("server") or ("", None)
    return server[1] is not None


def cookie_value(header: bytes | None, name: bytes) -> bytes | None:
    """The value of a cookie, without quotes; None when it is not there. The last of a name counts, as for Django."""
    if header is None or name not in header:
        return None
    found = None
    for part in header.split(b";"):
        key, equals, value = part.strip().partition(b"=")
        if key == name and equals:
            found = value.strip(b'" ')
    return found


def origin_rule(conf: Conf) -> Callable[[bytes | None], bool]:
    """Channels' rule for origins, over ALLOWED_ORIGINS or else ALLOWED_HOSTS, plus those that CORS lets in."""
    allowed = conf.allowed_origins
    if allowed is None:
        allowed = tuple(settings.ALLOWED_HOSTS)
        if settings.DEBUG and not allowed:
            allowed = ("localhost", "127.0.0.1", "[::1]")
    validator = OriginValidator(None, list(allowed))
    readers = cors.readers(conf)

    def is_allowed(origin: bytes | None) -> bool:
        if origin is not None and readers.credentials and readers.names(origin):
            return True
        try:
            parsed = None if origin is None else urlparse(origin.decode("latin-1"))
            return bool(validator.valid_origin(parsed))
        except ValueError:
            return False

    return is_allowed
