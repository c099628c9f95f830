"""Stream tokens: minted and verified locally, at the cost of no I/O. JWTs of other issuers: `jwt_tokens.py`.

Our token is `sl1.<kid>.<base64url(JSON)>.<first 22 characters of base64url(HMAC-SHA256)>`; the MAC covers all before
its dot. Verifying never raises, whatever a client sent: a refused token is a `TokenFault`, a value. Where a token is
carried, and what follows from its claims, is not decided here. There is no clock here: `now` is an argument, epoch ms.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from sse_limits.core.token_keys import TokenKeys

MAX_TOKEN_BYTES = 2048
MAX_TEXT_CHARS = 1024  # of a user, tenant, tier, topic or session id
MAX_INSTANT = 2**53  # up to here every JSON reader keeps whole numbers exactly
AUDIENCES = frozenset({"stream", "ticket", "control"})

_PREFIX = b"sl1."
_PAYLOAD_START = len("sl1.0123.")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TENANT_BREAKERS = frozenset("/{}")
_FROM_URLSAFE = bytes.maketrans(b"-_", b"+/")
_TO_URLSAFE = bytes.maketrans(b"+/", b"-_")
_decode_json = json.JSONDecoder().raw_decode  # a third of the cost of json.loads


class TokenFault(StrEnum):
    """Why a token is refused; the values are the rejection reasons of the wire, the metrics and the API."""

    BAD = "bad_token"
    EXPIRED = "expired_token"


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says; its texts hold no control characters and no lone surrogates.

    `topics` None is any topic, empty is none. `expires_at` is the first epoch ms at which the token is expired, a JWT's
    leeway included. `issued_at` is epoch ms too, 0 where a JWT doesn't say, so that every revocation applies to it.
    """

    tenant: str | None
    user: str
    tier: str | None
    topics: tuple[str, ...] | None
    expires_at: int
    issued_at: int
    sid: str | None


def mint(
    keys: TokenKeys,
    *,
    tenant: str | None,
    user: str,
    now: int,
    ttl_seconds: float = 300,
    tier: str | None = None,
    topics: Sequence[str] | None = None,
    sid: str | None = None,
    audience: str = "stream",
) -> str:
    """Return a stream token that `verify` accepts from `now` (epoch ms) for `ttl_seconds`.

    Raises:
        ValueError: a claim can't stand in a token, the lifetime is not positive, or the token would pass 2 KiB.
    """
    if audience not in AUDIENCES:
        raise ValueError(f"A token's audience is one of {', '.join(sorted(AUDIENCES))}, not {audience!r}.")
    if not (0 < ttl_seconds * 1000 < MAX_INSTANT):
        raise ValueError(f"A token's lifetime must be a positive number of seconds, not {ttl_seconds!r}.")
    fields: dict[str, object] = {"t": tenant, "u": user, "exp": now + math.ceil(ttl_seconds * 1000), "iat": now}
    listed = topics if topics is None or isinstance(topics, str) else list(topics)
    fields |= {name: value for name, value in (("tier", tier), ("top", listed), ("sid", sid)) if value is not None}
    claims_from(fields)  # what verify would refuse is never minted
    return _sign(*keys.by_kid[0], {**fields, "aud": audience})


def verify(keys: TokenKeys, token: str | bytes, *, now: int, audience: str = "stream") -> Claims | TokenFault:
    """Return the claims of a stream token, or why it is refused. Never raises; nothing unsigned is parsed.

    A token is valid while `now` (epoch ms) is before its expiry. `EXPIRED` is said only of a token that is otherwise
    good; a token for another audience or under an unknown key is `BAD`.
    """
    raw = token_bytes(token, MAX_TOKEN_BYTES)
    if not raw.startswith(_PREFIX):
        return TokenFault.BAD
    signed, _, mac = raw.rpartition(b".")
    for kid, key in keys.by_kid:
        if signed.startswith(kid, len(_PREFIX)) and hmac.compare_digest(_mac(key, signed), mac):
            break
    else:
        return TokenFault.BAD
    try:
        fields = _parse_payload(signed[_PAYLOAD_START:])
        claims = claims_from(fields)
    except (ValueError, RecursionError):
        return TokenFault.BAD
    if fields.get("aud") != audience:
        return TokenFault.BAD
    return claims if now < claims.expires_at else TokenFault.EXPIRED


def _mac(key: bytes, signed: bytes) -> bytes:
    return binascii.b2a_base64(_hmac_sha256(key, signed)).translate(_TO_URLSAFE)[:22]


def _hmac_sha256(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104) from hashes that already hold the key.

    The same bytes as `hmac.digest` at a third of its cost, which every forged token would make us pay: OpenSSL 3 looks
    its algorithm up again on each call.
    """
    inner, outer = _keyed_hashes(key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=64)
def _keyed_hashes(key: bytes) -> tuple[hashlib._Hash, hashlib._Hash]:
    block = key.ljust(64, b"\0")  # a derived key has 32 bytes
    return hashlib.sha256(bytes(byte ^ 0x36 for byte in block)), hashlib.sha256(bytes(byte ^ 0x5C for byte in block))


def _sign(kid: bytes, key: bytes, fields: Mapping[str, object]) -> str:
    payload = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    signed = _PREFIX + kid + b"." + base64.urlsafe_b64encode(payload).rstrip(b"=")
    token = signed + b"." + _mac(key, signed)
    if len(token) > MAX_TOKEN_BYTES:
        raise ValueError(f"A token may have {MAX_TOKEN_BYTES} bytes and this one has {len(token)}.")
    return token.decode()


def token_bytes(token: object, max_bytes: int) -> bytes:
    """Return the token as bytes, empty for what can't be one: another type, too long, not ASCII."""
    if isinstance(token, str):
        return token.encode() if len(token) <= max_bytes and token.isascii() else b""
    return token if isinstance(token, bytes) and len(token) <= max_bytes else b""


def _parse_payload(payload: bytes) -> dict[str, object]:
    text = binascii.a2b_base64(payload.translate(_FROM_URLSAFE) + b"==").decode()
    fields, end = _decode_json(text)
    if not isinstance(fields, dict) or end != len(text):
        raise ValueError("A token's payload must be one JSON object.")
    return fields


def claims_from(fields: Mapping[str, object]) -> Claims:
    """Check the fields of a stream token (times in ms); ValueError says which one can't stand in a token."""
    tenant, tier, sid = fields.get("t"), fields.get("tier"), fields.get("sid")
    return Claims(
        None if tenant is None else _text(tenant, "tenant"),
        _text(fields.get("u"), "user"),
        None if tier is None else _text(tier, "tier"),
        _topics(fields["top"]) if "top" in fields else None,
        _instant(fields.get("exp"), "expiry"),
        _instant(fields.get("iat"), "time of issue"),
        None if sid is None else _text(sid, "session id"),
    )


def _text(value: object, name: str) -> str:
    """Return text that can be stored and logged; `isprintable` is the quick answer for nearly all of it."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARS:
        raise ValueError(f"A token's {name} must be text of 1 to {MAX_TEXT_CHARS} characters.")
    if not value.isprintable() and _UNSAFE.search(value):
        raise ValueError(f"A token's {name} must not hold control characters or lone surrogates.")
    if name == "tenant" and not _TENANT_BREAKERS.isdisjoint(value):  # subjects and hash tags would be ambiguous
        raise ValueError("A token's tenant must not hold any of '/', '{' and '}'.")
    return value


def _topics(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("A token's topics must be a list.")
    return tuple([_text(topic, "topic") for topic in value])


def _instant(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value < MAX_INSTANT:  # a bool is an int, but no time
        raise ValueError(f"A token's {name} must be a whole number of ms since the epoch.")
    return value
