"""JSON Web Tokens of other issuers, verified locally by PyJWT with one pinned key, as claims of our own kind.

As in `tokens.py` verifying never raises, whatever a client sent, and `now` is an argument, epoch ms. PyJWT is imported
when a verifier is made: without the `jwt` extra everything else works.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .tokens import MAX_INSTANT, Claims, TokenFault, claims_from, token_bytes

MAX_JWT_BYTES = 8192

_HMAC = frozenset({"HS256", "HS384", "HS512"})
_ASYMMETRIC = frozenset({*(kind + size for kind in ("RS", "PS", "ES") for size in ("256", "384", "512")), "EdDSA"})
_CLAIMS = {"user": ("u", "sub"), "tenant": ("t", "tenant"), "tier": ("tier", "tier"), "topics": ("top", "topics")}
# PyJWT parses the unsigned header: what json and cryptography may raise on it is a bad token too.
_HOSTILE_INPUT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class JwtVerifier:
    """Verifies another issuer's JWTs with one pinned key. Not changed after construction, safe to share.

    `key` is the HMAC secret or the public key in PEM; `algorithms` are all HMAC or all asymmetric; `audience` is what
    `aud` must hold (one of several); `issuer` None accepts any; `leeway_seconds` is by how much the issuer's clock may
    differ; `claims` renames the claims read for `user` (sub), `tenant`, `tier` and `topics`.

    Raises ValueError for an unsafe configuration or a key that does not fit, ImportError without PyJWT or cryptography.
    """

    __slots__ = ("_checks", "_leeway_ms", "_names")

    def __init__(
        self,
        key: str | bytes,
        algorithms: Sequence[str],
        audience: str | Sequence[str],
        issuer: str | Sequence[str] | None = None,
        leeway_seconds: float = 0,
        claims: Mapping[str, str] | None = None,
    ) -> None:
        if not audience or not all(audience):
            raise ValueError("A JWT verifier needs an audience: without one, tokens for other services would pass.")
        if not (0 <= leeway_seconds < math.inf):
            raise ValueError(f"A JWT's leeway must be zero or more seconds, not {leeway_seconds!r}.")
        renamed = claims or {}
        if unknown := sorted(set(renamed) - set(_CLAIMS)):
            raise ValueError(f"JWT claims can be named for {', '.join(_CLAIMS)}, not for {', '.join(unknown)}.")
        _check_algorithms(algorithms)
        self._checks: dict[str, Any] = {"key": _prepare_key(key, algorithms), "algorithms": list(algorithms)}
        # PyJWT would look at its own clock: it requires `exp`, and times are checked here, against `now`.
        own = {"require": ["exp", "aud"], "verify_exp": False, "verify_iat": False, "verify_nbf": False}
        self._checks |= {"audience": audience, "issuer": issuer, "options": own}
        self._leeway_ms = round(leeway_seconds * 1000)
        self._names = {short: renamed.get(name, default) for name, (short, default) in _CLAIMS.items()}

    def verify(self, token: str | bytes, now: int) -> Claims | TokenFault:
        """Return the claims of a JWT, or why it is refused. Never raises. `now` is epoch ms."""
        import jwt

        raw = token_bytes(token, MAX_JWT_BYTES)
        try:
            claims = self._read(jwt.decode(raw, **self._checks), now)
        except (jwt.PyJWTError, *_HOSTILE_INPUT):
            return TokenFault.BAD
        return claims if now < claims.expires_at else TokenFault.EXPIRED

    def _read(self, payload: Mapping[str, object], now: int) -> Claims:
        expires_at, issued_at, not_before = (_milliseconds(payload.get(name, 0)) for name in ("exp", "iat", "nbf"))
        if now < not_before - self._leeway_ms:
            raise ValueError("This token is not valid yet.")
        fields = {short: payload[name] for short, name in self._names.items() if name in payload}
        return claims_from({**fields, "exp": expires_at + self._leeway_ms, "iat": issued_at})


def _check_algorithms(algorithms: Sequence[str]) -> None:
    accepted = _HMAC | _ASYMMETRIC
    if isinstance(algorithms, str) or not algorithms:
        raise ValueError("A JWT verifier needs a list of the algorithms it accepts.")
    if not accepted.issuperset(algorithms):
        raise ValueError(f"JWT algorithms must be among {', '.join(sorted(accepted))}, not {list(algorithms)}.")
    if not (_HMAC.issuperset(algorithms) or _HMAC.isdisjoint(algorithms)):
        raise ValueError("HMAC and asymmetric JWT algorithms don't mix: the public key would pass as the secret.")


def _prepare_key(key: str | bytes, algorithms: Sequence[str]) -> object:
    try:
        import jwt

        handlers = [jwt.get_algorithm_by_name(name) for name in algorithms]
    except (ImportError, NotImplementedError) as exc:  # the second: PyJWT without cryptography
        raise ImportError("JSON Web Tokens need PyJWT and cryptography: pip install sse-limits[jwt]") from exc
    try:
        prepared = [handler.prepare_key(key) for handler in handlers]
    except (jwt.PyJWTError, TypeError, ValueError) as exc:
        raise ValueError(f"The JWT key does not fit {', '.join(algorithms)}: {exc}") from exc
    for handler, each in zip(handlers, prepared, strict=True):
        if weakness := handler.check_key_length(each):
            raise ValueError(f"The JWT key is too weak: {weakness}")
    return prepared[0]


def _milliseconds(seconds: object) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds * 1000 < MAX_INSTANT:
        raise ValueError("A JWT's times must be seconds since the epoch.")  # NaN too: it compares false
    return round(seconds * 1000)
