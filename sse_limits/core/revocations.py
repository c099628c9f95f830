"""What no longer counts although it was signed: users, sessions, tenants and tokens that were revoked.

A revocation names a subject and the instant before which nothing of it counts any more; what begins later is new (a
user who logs in again, a token that was minted again).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from .identity import Identity


class RevocationKind(StrEnum):
    """What a revocation's subject is: a user name, a session's `sid`, a tenant's slug, a token's last 22 characters."""

    USER = "user"
    SESSION = "session"
    TENANT = "tenant"
    TOKEN = "token"


class Revoked(NamedTuple):
    """One revocation. `not_before` and `until` are epoch ms; after `until` nothing can be left that it concerns."""

    kind: RevocationKind
    subject: str
    not_before: int
    until: int


Key = tuple[RevocationKind, str]


@dataclass(slots=True)
class Revocations:
    """All revocations that still matter. Grows by `add`; not thread-safe: its owner gives each event loop its own."""

    _not_before: dict[Key, int] = field(default_factory=dict)
    _until: dict[Key, int] = field(default_factory=dict)

    def add(self, rows: Iterable[Revoked], now: int) -> list[Revoked]:
        """Take rows in, again as often as one likes; returns those that say something new at `now` (epoch ms)."""
        fresh = []
        for row in rows:
            key = (row.kind, row.subject)
            if row.until > now and row.not_before > self._not_before.get(key, -1):
                self._not_before[key] = row.not_before
                self._until[key] = max(row.until, self._until.get(key, 0))
                fresh.append(row)
        if fresh:
            self._forget(now)
        return fresh

    def covers(self, identity: Identity) -> bool:
        """Whether an identity by token was revoked: all that it names, and when it was issued, counts.

        An identity by session has no time of issue. It is revoked with its session; whether its user still is who the
        session says, the session itself knows (see `of_user`).
        """
        if not self._not_before:
            return False
        issued_at = identity.issued_at
        for key in _keys(identity):
            not_before = self._not_before.get(key)
            if not_before is not None and (
                (issued_at is not None and issued_at < not_before) or key[0] is RevocationKind.SESSION
            ):
                return True
        return False

    def of_user(self, identity: Identity, since: int) -> int | None:
        """When the user of an identity was revoked, if at or after `since` (epoch ms): its session is asked again."""
        revoked_at = self._not_before.get((RevocationKind.USER, identity.user or ""), -1)
        return revoked_at if identity.user is not None and revoked_at >= since else None

    def __len__(self) -> int:
        return len(self._not_before)

    def _forget(self, now: int) -> None:
        for key in [key for key, until in self._until.items() if until <= now]:
            del self._until[key], self._not_before[key]


def _keys(identity: Identity) -> Iterator[Key]:
    if identity.user is not None:
        yield RevocationKind.USER, identity.user
    if identity.session is not None:
        yield RevocationKind.SESSION, identity.session
    if identity.tenant is not None:
        yield RevocationKind.TENANT, identity.tenant
    if identity.token is not None:
        yield RevocationKind.TOKEN, identity.token
