"""The one table of refusals and ends: cause -> status, headers, body, close code, and what the client should do next.

A rejection is a value. Every way out of the guard takes its answer from here, so that HTTP, WebSocket and the metrics
tell the same story. Reasons are wire strings and never renamed; their codes stand in decision ids and are never reused.
Close codes 4000-4499 mean "come back", 4500-4999 "do not" (the rule of centrifugal/centrifuge).
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from .frames import event
from .slots import Scope


class Layer(StrEnum):
    """Which part of the guard decided."""

    IDENTITY = "identity"
    SLOTS = "slots"
    NODE = "node"


class Reason(StrEnum):
    """Why a stream was rejected, or was ended by us."""

    MISSING_TOKEN = "missing_token"
    BAD_TOKEN = "bad_token"
    EXPIRED_TOKEN = "expired_token"
    SUSPENDED = "suspended"
    BLOCKED = "blocked"
    BAD_ORIGIN = "bad_origin"
    TENANT_AMBIGUOUS = "tenant_ambiguous"
    BAD_TOPIC = "bad_topic"
    UNKNOWN_TOPIC = "unknown_topic"
    FORBIDDEN_TOPIC = "forbidden_topic"
    BAD_METHOD = "bad_method"
    USER_LIMIT = "user_limit"
    CLASS_LIMIT = "class_limit"
    TENANT_LIMIT = "tenant_limit"
    ADDRESS_LIMIT = "address_limit"
    FLEET_LIMIT = "fleet_limit"
    STORE = "store"
    EVICTED = "evicted"
    LEASE_LOST = "lease_lost"
    WRITE_DEADLINE = "write_deadline"
    SHUTDOWN = "shutdown"
    DRAINING = "draining"
    SLOW_CONSUMER = "slow_consumer"
    REVOKED = "revoked"


class Cause(NamedTuple):
    """One row: what is answered for a reason.

    `error` is the class that a client switches on. `retry_seconds` (base, spread) is what it is told to wait, None: do
    not come back by itself. `detail` may name %(limit)d, %(in_use)d and %(retry_after)d.
    """

    code: int
    layer: Layer
    error: str
    status: HTTPStatus
    close_code: int
    retry_seconds: tuple[int, int] | None
    detail: str


def _identity(code: int, error: str, status: HTTPStatus, close_code: int, detail: str) -> Cause:
    return Cause(code, Layer.IDENTITY, error, status, close_code, None, detail)


def _limit(code: int, who: str) -> Cause:
    detail = f"{who} holds %(in_use)d of %(limit)d streams. Close one, or try again in %(retry_after)d s."
    return Cause(code, Layer.SLOTS, "too_many_streams", HTTPStatus.TOO_MANY_REQUESTS, 4429, (5, 10), detail)


_UNAUTHORIZED = ("unauthorized", HTTPStatus.UNAUTHORIZED, 4501)
_FORBIDDEN = ("forbidden", HTTPStatus.FORBIDDEN, 4503)

CAUSES: dict[Reason, Cause] = {
    Reason.MISSING_TOKEN: _identity(
        1, *_UNAUTHORIZED, "This stream needs a stream token (Authorization: Bearer ...) or a session."
    ),
    Reason.BAD_TOKEN: _identity(2, *_UNAUTHORIZED, "The stream token is not one of ours, or was changed."),
    Reason.EXPIRED_TOKEN: _identity(3, *_UNAUTHORIZED, "The stream token has expired. Fetch a new one."),
    Reason.SUSPENDED: _identity(4, *_FORBIDDEN, "This account is suspended."),
    Reason.BLOCKED: _identity(5, *_FORBIDDEN, "Streams are not served to this tenant or from this address."),
    Reason.BAD_ORIGIN: _identity(6, *_FORBIDDEN, "A page of this origin may not open streams with your cookies."),
    Reason.TENANT_AMBIGUOUS: _identity(
        7, *_FORBIDDEN, "You belong to several tenants and none is your default. Use a stream token that names one."
    ),
    Reason.BAD_TOPIC: _identity(
        8, "bad_request", HTTPStatus.BAD_REQUEST, 4503,
        "Name one topic, ?topic=news: 1 to 200 characters, without '/' and control characters.",
    ),
    Reason.UNKNOWN_TOPIC: _identity(9, "not_found", HTTPStatus.NOT_FOUND, 4503, "There is no such topic here."),
    Reason.FORBIDDEN_TOPIC: _identity(10, *_FORBIDDEN, "You may not read this topic."),
    Reason.USER_LIMIT: _limit(11, "This user"),
    Reason.CLASS_LIMIT: _limit(12, "This kind of stream"),
    Reason.TENANT_LIMIT: _limit(13, "This tenant"),
    Reason.ADDRESS_LIMIT: _limit(14, "This address"),
    Reason.FLEET_LIMIT: _limit(15, "The service"),
    Reason.STORE: Cause(
        16, Layer.SLOTS, "store_unavailable", HTTPStatus.SERVICE_UNAVAILABLE, 1013, (2, 5),
        "Streams cannot be counted at the moment. Try again in %(retry_after)d s.",
    ),
    Reason.EVICTED: Cause(
        17, Layer.SLOTS, "too_many_streams", HTTPStatus.NO_CONTENT, 4505, None,
        "A newer stream of this user took this one's place.",
    ),
    Reason.LEASE_LOST: Cause(
        18, Layer.SLOTS, "too_many_streams", HTTPStatus.TOO_MANY_REQUESTS, 4429, (5, 10),
        "This stream's slot was lost and its limit is full.",
    ),
    Reason.BAD_METHOD: _identity(
        19, "bad_request", HTTPStatus.METHOD_NOT_ALLOWED, 4503, "An event stream is opened with GET.",
    ),
    Reason.WRITE_DEADLINE: Cause(
        20, Layer.NODE, "overloaded", HTTPStatus.SERVICE_UNAVAILABLE, 1013, (5, 10),
        "The client took nothing for too long.",
    ),
    Reason.SHUTDOWN: Cause(
        21, Layer.NODE, "overloaded", HTTPStatus.SERVICE_UNAVAILABLE, 1012, (1, 10),
        "This server restarts. Come back in %(retry_after)d s.",
    ),
    Reason.DRAINING: Cause(
        22, Layer.NODE, "overloaded", HTTPStatus.SERVICE_UNAVAILABLE, 1012, (1, 10),
        "This server is about to restart. Try again in %(retry_after)d s.",
    ),
    Reason.SLOW_CONSUMER: Cause(
        23, Layer.NODE, "overloaded", HTTPStatus.SERVICE_UNAVAILABLE, 1013, (5, 10),
        "What you sent was not taken for too long.",
    ),
    Reason.REVOKED: _identity(
        24, "unauthorized", HTTPStatus.UNAUTHORIZED, 4504,
        "This stream was ended by an operator, or its session or token was revoked.",
    ),
}  # fmt: skip

# What ends streams that are open: counted beside the rejections, and no part of their rate.
ENDS = frozenset(
    (
        Reason.EVICTED,
        Reason.LEASE_LOST,
        Reason.WRITE_DEADLINE,
        Reason.SLOW_CONSUMER,
        Reason.SHUTDOWN,
        Reason.REVOKED,
    )
)

LIMIT_REASONS = {
    Scope.USER: Reason.USER_LIMIT,
    Scope.CLASS: Reason.CLASS_LIMIT,
    Scope.TENANT: Reason.TENANT_LIMIT,
    Scope.ADDRESS: Reason.ADDRESS_LIMIT,
    Scope.FLEET: Reason.FLEET_LIMIT,
}

# What a native EventSource is told to wait after `event: rejected` when nothing would change by itself.
TERMINAL_RETRY_SECONDS = 3600


Headers = list[tuple[bytes, bytes]]

# Caches may keep these without being asked (RFC 9110, 15.1); the other statuses of the table they never keep.
CACHEABLE = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)


class Reject(NamedTuple):
    """A stream that is not admitted: why, and at a limit whose, how high and how full."""

    reason: Reason
    scope: Scope | None = None
    limit: int | None = None
    in_use: int | None = None


class Answer(NamedTuple):
    """A rejection as the transports send it; `headers` lower-case, as ASGI wants them. With 204 no body is sent."""

    status: int
    headers: Headers
    body: bytes
    close_code: int
    close_reason: str
    retry_after: int | None
    decision: str


def answer(reject: Reject, decision: str, turn: int, note: str = "") -> Answer:
    """Build the answer. `turn` counts rejections: it spreads the waiting times of clients that leave together.

    A `note` (of the operator who ended a stream) stands in for the cause's own detail.
    """
    cause = CAUSES[reject.reason]
    retry_after = None
    if cause.retry_seconds is not None:
        base, spread = cause.retry_seconds
        retry_after = base + turn % spread
    headers, before, after = _prepared(reject, retry_after, len(decision), note)
    body = before + decision.encode() + after
    return Answer(int(cause.status), [*headers], body, cause.close_code, reject.reason, retry_after, decision)


def body_of(reject: Reject, decision: str, retry_after: int | None, note: str = "") -> bytes:
    """The body of an answer that was given, built again: nobody keeps it for each decision."""
    _, before, after = _prepared(reject, retry_after, len(decision), note)
    return before + decision.encode() + after


def rejected_event(refusal: Answer) -> bytes:
    """The same refusal as an event stream, for classes that accept first: `event: rejected`, and when to come back."""
    wait = refusal.retry_after if refusal.retry_after is not None else TERMINAL_RETRY_SECONDS
    return event(refusal.body.decode(), name="rejected", retry_ms=wait * 1000)


def _ratelimit(scope: Scope, limit: int, retry_after: int) -> Headers:
    """The fields of draft-ietf-httpapi-ratelimit-headers-10, with the quota unit `concurrent-requests`."""
    name = scope.encode()
    return [
        (b"ratelimit-policy", b'"%b";q=%d;qu="concurrent-requests"' % (name, limit)),
        (b"ratelimit", b'"%b";r=0;t=%d' % (name, retry_after)),
    ]


@lru_cache(maxsize=1024)
def _prepared(reject: Reject, retry_after: int | None, decision_size: int, note: str) -> tuple[Headers, bytes, bytes]:
    """The headers, and the body (RFC 9457) before and after the decision: all that like rejections share."""
    cause = CAUSES[reject.reason]
    counts = {"limit": reject.limit, "in_use": reject.in_use}
    problem = {
        "type": "about:blank",
        "title": cause.status.phrase,
        "status": int(cause.status),
        "detail": note or cause.detail % {**counts, "retry_after": retry_after},
        "error": cause.error,
        "reason": reject.reason,
        "layer": cause.layer,
        "scope": reject.scope,
        **counts,
        "retry_after": retry_after,
    }
    told = json.dumps({name: value for name, value in problem.items() if value is not None})
    before, after = told[:-1].encode() + b', "decision": "', b'"}'
    size = len(before) + decision_size + len(after)
    return _headers(reject, cause, retry_after, size), before, after


def _headers(reject: Reject, cause: Cause, retry_after: int | None, size: int) -> Headers:
    headers: Headers = []
    if cause.status in CACHEABLE:
        headers.append((b"cache-control", b"no-store"))
    if cause.status != HTTPStatus.NO_CONTENT:
        headers += [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % size)]
    if cause.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    elif cause.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append((b"allow", b"GET, HEAD, OPTIONS"))
    elif retry_after is not None:
        headers.append((b"retry-after", b"%d" % retry_after))
        if reject.limit is not None and reject.scope is not None:
            headers += _ratelimit(reject.scope, reject.limit, retry_after)
    return headers
