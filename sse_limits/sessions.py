"""Who is behind a Django session: the only database access on the connect path, cached in this process.

The guard stands outside `AuthMiddlewareStack`, so it asks here. One look-up per session and cache time, whoever asks
and however often; concurrent askers share it. The look-up runs in a thread of its own, so that a slow sync view of the
project does not hold up connects, and gives its database connection back.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from time import monotonic
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user, get_user_model
from django.db import close_old_connections
from django.http import HttpRequest

from sse_limits.core.token_keys import TokenKeys
from sse_limits.slots.base import SseLimitsError

CACHE_SIZE = 10_000
LOOK_UP_SECONDS = 2.0
NAMES_PER_QUERY = 500


class SessionsUnavailable(SseLimitsError):
    """The project's session store or user database did not answer."""


class SessionUsers:
    """Finds the user name of a session key. One instance serves one event loop."""

    def __init__(self, cache_seconds: float) -> None:
        self._cache_seconds = cache_seconds
        self._sid = TokenKeys.from_secrets(settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS).session_id
        self._known: OrderedDict[str, tuple[float, str | None]] = OrderedDict()
        self._asked: dict[str, asyncio.Future[str | None]] = {}
        self._times_forgotten = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sse_limits.sessions")

    async def find(self, session_key: str) -> str | None:
        """The name of the logged-in, active user, else None. Raises `SessionsUnavailable`."""
        sid = self._sid(session_key)  # keys are secrets, and of any length
        known = self._known.get(sid)
        if known is not None and known[0] > monotonic():
            return known[1]
        asked = self._asked.get(sid)
        if asked is None:
            asked = self._asked[sid] = asyncio.ensure_future(self._look_up(session_key, sid))
            asked.add_done_callback(lambda done: self._forget_asked(done, sid))
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise SessionsUnavailable(f"no answer within {LOOK_UP_SECONDS:g} s") from None

    def forget(self, *, users: Set[str], sids: Set[str]) -> None:
        """Drop what is remembered of these users and sessions: the next asker asks the database."""
        if not users and not sids:
            return
        self._times_forgotten += 1
        self._asked.clear()
        for sid in [sid for sid, (_, name) in self._known.items() if sid in sids or name in users]:
            del self._known[sid]

    async def inactive(self, users: Sequence[str]) -> set[str]:
        """Those of the users who are in the database and not active: what `update()` has changed without a signal."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, read_inactive, users)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

    def _forget_asked(self, done: asyncio.Future[str | None], sid: str) -> None:
        if self._asked.get(sid) is done:
            del self._asked[sid]
        if not done.cancelled():
            done.exception()  # seen, also when nobody waits any more

    async def _look_up(self, session_key: str, sid: str) -> str | None:
        before = self._times_forgotten
        name = await asyncio.get_running_loop().run_in_executor(self._thread, read_user, session_key)
        if before != self._times_forgotten:  # asked before a revocation: good for this connect, the recheck comes
            return name
        self._known[sid] = (monotonic() + self._cache_seconds, name)
        self._known.move_to_end(sid)
        if len(self._known) > CACHE_SIZE:
            self._known.popitem(last=False)
        return name


class _Snapshot(dict[str, Any]):
    """A session's data without its store: what `get_user` would write, the browser would never hear of.

    After a change of SECRET_KEY it gives the session a new key, and the user would be logged out.
    """

    def cycle_key(self) -> None:
        """Keep the key."""

    def flush(self) -> None:
        """Keep the row: the next page ends the session."""


def read_user(session_key: str) -> str | None:
    """Ask Django's session engine and authentication backends; blocks."""
    close_old_connections()
    try:
        request = HttpRequest()
        found = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
        request.session = _Snapshot(found.items())  # type: ignore[assignment] # all that `get_user` needs
        user = get_user(request)
        return (str(user.get_username()) or None) if user.is_authenticated else None
    except Exception as exc:  # whatever engine and backends the project chose may raise: never a 500 for a connect
        raise SessionsUnavailable(str(exc)) from exc
    finally:
        close_old_connections()


def read_inactive(users: Sequence[str]) -> set[str]:
    """Ask the user table, some hundred names at a time; blocks."""
    close_old_connections()
    try:
        model = get_user_model()
        name = model.USERNAME_FIELD
        found: set[str] = set()
        for start in range(0, len(users), NAMES_PER_QUERY):
            asked = {f"{name}__in": users[start : start + NAMES_PER_QUERY], "is_active": False}
            found.update(model._default_manager.filter(**asked).values_list(name, flat=True))
        return found
    except Exception as exc:  # as above
        raise SessionsUnavailable(str(exc)) from exc
    finally:
        close_old_connections()
