"""Whether open streams may still be open: suspensions, revocations, blocked addresses and tokens that have expired.

All of it stands in memory, so looking at every stream each RECHECK_SECONDS costs little. Two things cost a query: a
session whose user was revoked is asked again, and with every twelfth look (once a minute, by default) all users are
looked up that a signal may have missed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from sse_limits.core.identity import Identity
from sse_limits.core.rejections import Reason, Reject
from sse_limits.sessions import SessionsUnavailable

from .identification import Session, read

if TYPE_CHECKING:
    from .node import Node
    from .running import RunningStream

log = logging.getLogger("sse_limits.streams.recheck")

RECHECKS_PER_AUDIT = 12
AT_ONCE = 500
LATE_MS = 5000  # a session may have been looked up this long before its stream was admitted


class Recheck:
    """Holds a node's streams against the policy and the revocations. One per node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked_again: dict[str, int] = {}

    async def run(self) -> None:
        """Look at every stream, again and again."""
        while True:
            for _ in range(RECHECKS_PER_AUDIT):
                await asyncio.sleep(self._node.limiter.conf.recheck_seconds)
                await self.look()
            await self.audit()

    async def look(self) -> None:
        """End the streams that may not go on."""
        streams = self._node.streams()
        self._asked_again = {stream.id: at for stream in streams if (at := self._asked_again.get(stream.id))}
        for number, stream in enumerate(streams, start=1):
            if stream.identity is not None and stream.reason is None:
                reason = self._node.limiter.verdict(stream.identity)
                revoked_at = self._in_doubt_since(stream, stream.identity) if reason is None else None
                if revoked_at is not None:
                    reason = await self._ask_again(stream, stream.identity, revoked_at)
                if reason is not None:
                    stream.end(reason)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def audit(self) -> None:
        """End the streams of users who were deactivated by `update()`, which sends no signal."""
        names = {stream.identity.user or "" for stream in self._node.streams() if stream.identity is not None}
        try:
            inactive = await self._node.limiter.sessions.inactive(sorted(names - {""}))
        except SessionsUnavailable as exc:
            log.debug("users were not looked up: %s", exc)
            return
        for stream in self._node.streams():
            if stream.identity is not None and stream.identity.user in inactive:
                stream.end(Reason.REVOKED)

    def _in_doubt_since(self, stream: RunningStream, identity: Identity) -> int | None:
        """When the user of a stream by session was revoked, as far as nobody has asked the session since."""
        if identity.session is None or identity.issued_at is not None or stream.lease is None:
            return None  # not by session
        since = self._asked_again.get(stream.id, stream.lease.since - LATE_MS)
        return self._node.limiter.revocations.of_user(identity, since)

    async def _ask_again(self, stream: RunningStream, identity: Identity, revoked_at: int) -> Reason | None:
        request = stream.request if stream.request is not None else read(stream.scope)
        found = self._node.identifier.identify(stream.scope, request, anonymous=False)
        if isinstance(found, Session):
            found = await self._node.identifier.by_session(found, anonymous=False)
        if isinstance(found, Reject) and found.reason is Reason.STORE:
            return None  # nobody knows: asked again the next time
        if isinstance(found, Reject) or found.user != identity.user:
            return Reason.REVOKED
        # Up to this revocation, not up to now: the answer may be older than the next one, of which nobody has heard.
        self._asked_again[stream.id] = revoked_at + 1
        return None
