"""CORS headers for what the guard answers itself: it stands outside the project's CORS middleware.

The origins come from django-cors-headers' settings where that app is installed, else from `CORS_ORIGINS`. Preflight
requests are not ours: OPTIONS passes to the app.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.apps import apps

from sse_limits.conf import Conf

EXPOSED = b"retry-after, ratelimit, ratelimit-policy"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Readers:
    """Which origins may read answers across sites, and whether with cookies."""

    origins: frozenset[bytes]
    patterns: tuple[re.Pattern[str], ...] = ()
    everyone: bool = False
    credentials: bool = False

    def names(self, origin: bytes) -> bool:
        """Whether the origin is listed; being open to everyone lists nobody."""
        return origin in self.origins or any(pattern.match(origin.decode("latin-1")) for pattern in self.patterns)

    def headers(self, origin: bytes | None) -> Headers:
        """The headers that let `origin` read an answer; none for an origin that may not."""
        if not (self.everyone or self.origins or self.patterns):
            return []
        vary = [(b"vary", b"origin")]
        if origin is None or not (self.everyone or self.names(origin)):
            return vary
        found = [*vary, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED)]
        return [*found, (b"access-control-allow-credentials", b"true")] if self.credentials else found


def readers(conf: Conf) -> Readers:
    """Read the settings that are in force."""
    if not apps.is_installed("corsheaders"):
        return Readers(frozenset(origin.encode() for origin in conf.cors_origins), credentials=True)
    from corsheaders.conf import conf as theirs  # reads the settings' older names too

    return Readers(
        origins=frozenset(origin.encode() for origin in theirs.CORS_ALLOWED_ORIGINS),
        patterns=tuple(re.compile(pattern) for pattern in theirs.CORS_ALLOWED_ORIGIN_REGEXES),
        everyone=theirs.CORS_ALLOW_ALL_ORIGINS,
        credentials=theirs.CORS_ALLOW_CREDENTIALS,
    )
