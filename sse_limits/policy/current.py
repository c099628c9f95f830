"""The snapshot in force in this process: one thread asks the database each second and tells the event loops.

A process that holds no stream has no such thread (a WSGI worker, a command): it looks when it needs the policy, once a
second at most. Nothing is asked on an event loop. While the database does not answer, what was read stays in force.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from django.core.signals import setting_changed
from django.db import DatabaseError
from django.utils.module_loading import import_string

from sse_limits.conf import SETTING, Conf, get_conf
from sse_limits.core.limits import Policy
from sse_limits.core.revocations import Revoked
from sse_limits.slots.base import SseLimitsError
from sse_limits.slots.memory import epoch_ms

from . import from_settings
from .from_database import Reader, disconnect

log = logging.getLogger("sse_limits.policy")

POLL_SECONDS = 1.0
FIRST_READ_SECONDS = 5.0

TenantResolver = Callable[[str, Policy], str | None]


class PolicyUnavailable(SseLimitsError):
    """The database does not answer, and nothing was read before."""


class Facts(NamedTuple):
    """What is new: a whole policy or None, and revocations."""

    policy: Policy | None
    revoked: Sequence[Revoked]


Tell = Callable[[Facts], None]


class Watch:
    """Keeps the policy and the revocations of one process. Thread-safe."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._revoked: list[Revoked] = []
        self._since: datetime | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Keep what was read, and begin as a process in which nobody has subscribed: a forked child has no thread."""
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._first = threading.Event()
        self._told: list[Tell] = []
        self._thread: threading.Thread | None = None
        self._reader = Reader()
        self._read_at: float | None = None

    def subscribe(self, tell: Tell) -> tuple[Facts, Callable[[], None]]:
        """Return all that is known, and how to end this; from now on `tell` what is new, from the watch's thread.

        The first subscriber starts the thread and waits some seconds for its first reading: a node must not begin with
        limits that nobody set.
        """
        with self._lock:
            self._told.append(tell)
            if self._thread is None:
                self._first.clear()
                self._thread = threading.Thread(target=self._run, name="sse_limits.policy", daemon=True)
                self._thread.start()
        self._first.wait(FIRST_READ_SECONDS)
        with self._lock:  # what is new meanwhile is told twice, which changes nothing
            return Facts(self._policy, tuple(self._revoked)), lambda: self._unsubscribe(tell)

    def policy(self) -> Policy:
        """The policy in force; without a thread it is read here, unless that was done within the last second."""
        if self._thread is None and not _is_on_a_loop():
            with self._lock:
                if self._read_at is None or time.monotonic() - self._read_at >= POLL_SECONDS:
                    self._read_or_keep()
        return self._policy if self._policy is not None else _nothing_known(get_conf())

    def wake(self) -> None:
        """Look at once: this process has committed a change."""
        self._read_at = None
        self._wake.set()

    def forget(self) -> None:
        """Begin anew, as after a change of the settings."""
        with self._lock:
            self._reader = Reader()
            self._policy, self._revoked, self._read_at = None, [], None

    def _unsubscribe(self, tell: Tell) -> None:
        with self._lock:
            if tell in self._told:
                self._told.remove(tell)
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._told:
                    self._thread = None
                    break
                self._wake.clear()
                self._read_safely()
            self._first.set()
            self._wake.wait(POLL_SECONDS)
        disconnect()

    def _read_or_keep(self) -> None:
        try:
            self._read()
        except DatabaseError as exc:
            if self._policy is None:
                raise PolicyUnavailable(
                    f"The limits cannot be read from the database ({exc}). Is it up, and has 'migrate' been run?"
                ) from exc

    def _read_safely(self) -> None:
        try:
            self._read()
        except Exception as exc:  # whatever the database's driver raises: streams go on, and so must the thread
            disconnect()
            if self._since is None:
                self._since = datetime.now(UTC)
                log.warning("the database does not answer (%s): limits and revocations stay as they were", exc)
        else:
            if self._since is not None:
                log.warning("the database answers again, after %s", datetime.now(UTC) - self._since)
                self._since = None

    def _read(self) -> None:
        conf, now = get_conf(), epoch_ms()
        policy = self._reader.policy(conf) if conf.policy is None else None
        revoked = self._reader.revocations(now)
        self._read_at = time.monotonic()
        self._policy = policy or self._policy
        self._revoked = [row for row in self._revoked if row.until > now] + revoked
        if policy is not None or revoked:
            for tell in list(self._told):
                tell(Facts(policy, revoked))


watch = Watch()
os.register_at_fork(after_in_child=watch.begin_anew)


def wake() -> None:
    """Tell this process's watch of a change that it has just committed."""
    watch.wake()


def get_policy() -> Policy:
    """The snapshot in force. Raises `InvalidConfiguration` for a problem in the settings, else `PolicyUnavailable`."""
    conf = get_conf()
    return watch.policy() if conf.policy is None else _from_settings()


@lru_cache(maxsize=1)
def _from_settings() -> Policy:
    return from_settings.build(get_conf())


def resolve_tenant(user: str, policy: Policy, conf: Conf) -> str | None:
    """The tenant that the project's `TENANT_RESOLVER` gives a user; without one, memberships decide in `Policy`."""
    if conf.tenant_resolver is None:
        return None
    resolver: TenantResolver = import_string(conf.tenant_resolver)
    return resolver(user, policy)


def _nothing_known(conf: Conf) -> Policy:
    return Policy(
        version=0,
        tiers={},
        tenants={},
        memberships={},
        users={},
        default_tier=conf.default_tier,
        anonymous_tier=conf.anonymous_tier,
        fleet_limit=conf.fleet_limit,
    )


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        _from_settings.cache_clear()
        watch.forget()


setting_changed.connect(_forget, dispatch_uid="sse_limits.policy")
