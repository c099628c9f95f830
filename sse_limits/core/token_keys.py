"""The keys that sign stream tokens, derived from Django's secrets, and the `sid` that stands for a session.

A `sid` is made with the same keys, so that tokens, open streams and revocations name a session alike and none of them
gives its key away.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

_KEY_PURPOSE = b"sse_limits.token.v1"


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The derived keys, newest first: the first one mints, all of them verify. Immutable, safe to share."""

    by_kid: tuple[tuple[bytes, bytes], ...] = field(repr=False)  # pairs: two keys may share a kid, it has only 16 bits

    @classmethod
    def from_secrets(cls, secret: str | bytes, fallbacks: Sequence[str | bytes] = ()) -> Self:
        """Derive the keys from `SECRET_KEY` and `SECRET_KEY_FALLBACKS`; ValueError if one is empty."""
        if isinstance(fallbacks, str | bytes):
            raise ValueError("The fallback secrets must be a list, not one string.")
        if not (secret and all(fallbacks)):
            raise ValueError("A secret for stream tokens must not be empty: anybody could sign with it.")
        derived = [hmac.digest(_to_bytes(each), _KEY_PURPOSE, "sha256") for each in (secret, *fallbacks)]
        return cls(tuple((hashlib.sha256(key).hexdigest()[:4].encode(), key) for key in derived))

    def session_id(self, session_key: str) -> str:
        """Return the `sid` that stands for a session in tokens and revocations, without giving its key away."""
        return self.session_ids(session_key)[0]

    def session_ids(self, session_key: str) -> tuple[str, ...]:
        """Return each `sid` the session may have in a living token, newest key first: a revocation names them all."""
        digests = [hmac.digest(key, _to_bytes(session_key), "sha256")[:8] for _, key in self.by_kid]
        return tuple(base64.urlsafe_b64encode(digest).rstrip(b"=").decode() for digest in digests)


def _to_bytes(secret: str | bytes) -> bytes:
    return secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
