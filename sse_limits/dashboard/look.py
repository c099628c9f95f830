"""One look at the board: everything that a page is made from, taken once, whatever state the store is in.

While the store is away the last snapshot of this process is shown with its age, and the process's own nodes as they are
now. Nothing here writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from django.core.signals import setting_changed
from django.http import QueryDict
from django.urls import reverse

from sse_limits import limiter
from sse_limits.conf import SETTING
from sse_limits.core.identity import Identity
from sse_limits.core.limits import Limits, Policy
from sse_limits.core.slots import Scope
from sse_limits.live.board import Board, Snapshot
from sse_limits.live.rows import NodeRow
from sse_limits.policy import get_policy
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams import here

T = TypeVar("T")

NO_TENANT = ""
# While the store is away each attempt waits for its deadline, and sync views share one thread with the whole site.
ASK_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a viewer asks for: of which admin site, which page with which filters, and what they may do."""

    site: str
    slug: str
    query: QueryDict
    may_revoke: bool = False
    may_change_tenants: bool = False
    may_change_users: bool = False

    @property
    def shows_addresses(self) -> bool:
        """Addresses are masked until somebody who may end streams asks to see them."""
        return self.may_revoke and self.query.get("addresses") == "show"

    def url(self, slug: str, **query: str | int) -> str:
        """The path of a page of the room; empty filters are left out."""
        found = QueryDict(mutable=True)
        found.update({name: str(value) for name, value in query.items() if value != ""})
        return f"{reverse(f'{self.site}:sse_limits_live_{slug}')}{'?' if found else ''}{found.urlencode()}"

    def here(self, **changes: str | int | None) -> str:
        """The path of this page with some filters changed; None drops one."""
        found = self.query.copy()
        for name, value in changes.items():
            found.pop(name, None)
            if value is not None:
                found[name] = str(value)
        base = reverse(f"{self.site}:sse_limits_live_{self.slug}")
        return f"{base}{'?' if found else ''}{found.urlencode()}"


class Look:
    """The state that one page shows. `away_seconds` is None while the store answers.

    `own` are this process's nodes, where they know more than the store: while it is away, for the process or for them.
    """

    def __init__(self, asked: Asked, board: Board, policy: Policy) -> None:
        self.asked = asked
        self.board = board
        self.policy = policy
        last, self.away_seconds = _memory.read(board)
        self.counted_at = last.at
        self.own = _memory.own
        self.snapshot = _with_own(last, self.own, is_away=self.is_away)

    @property
    def is_away(self) -> bool:
        """Whether the store does not answer."""
        return self.away_seconds is not None

    @property
    def sees_own(self) -> bool:
        """Whether the store is away and this process has a node of its own, whose streams it can show and end."""
        return self.is_away and bool(self.own)

    @property
    def now(self) -> int:
        """The instant that is shown, epoch ms."""
        return self.snapshot.at

    def ask(self, question: Callable[[], T], otherwise: T) -> T:
        """Ask the board for more; while the store is away there is no answer, and asking would only wait."""
        if self.is_away:
            return otherwise
        try:
            return question()
        except StoreUnavailable:
            return otherwise

    # -- what holds ----------------------------------------------------------------------------------------------

    def user_limits(self, subject: str) -> Limits | None:
        """What holds for a user; None when they may not stream."""
        tenant, user = split_user(subject)
        found = self.policy.resolve(Identity(user=user, tenant=tenant or None))
        return found if isinstance(found, Limits) else None

    @cached_property
    def anonymous_limits(self) -> Limits | None:
        """What holds for those who name nobody."""
        found = self.policy.resolve(Identity())
        return found if isinstance(found, Limits) else None

    def limit(self, scope: Scope, subject: str) -> int | None:
        """The limit of a holder; None: it has none, or nobody knows it any more."""
        return self.capacity if scope is Scope.FLEET else self.policy.of_holder(scope, subject)[0]

    @cached_property
    def capacity(self) -> int | None:
        """How many streams the fleet takes: its limit, else the sum of the nodes' budgets, if each has one."""
        if self.policy.fleet_limit is not None:
            return self.policy.fleet_limit
        budgets = [node.budget for node in self.snapshot.nodes if node.budget is not None]
        return sum(budgets) if budgets and len(budgets) == len(self.snapshot.nodes) else None


def take_look(asked: Asked) -> Look:
    """Look at the board; blocks, with a deadline. Never raises because the store is away."""
    return Look(asked, limiter.get_board(), get_policy())


def split_user(subject: str) -> tuple[str, str]:
    """A user's subject as tenant (perhaps empty) and name."""
    tenant, slash, name = subject.partition("/")
    return (tenant, name) if slash else (NO_TENANT, subject)


class _Memory:
    """The last snapshot that this process has read."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after a change of the settings."""
        self.last: Snapshot | None = None
        self.own: Sequence[NodeRow] = ()
        self._failing_since: float | None = None
        self._failed_at = 0.0

    def read(self, board: Board) -> tuple[Snapshot, float | None]:
        """The state of the fleet, and for how many seconds the store has not answered."""
        if self._failing_since is None or time.monotonic() - self._failed_at >= ASK_AGAIN_SECONDS:
            try:
                self.last = board.snapshot()
            except StoreUnavailable:
                self._failed_at = time.monotonic()
                self._failing_since = self._failing_since or self._failed_at
            else:
                self._failing_since = None
            self.own = here.rows() if self._failing_since is not None or here.is_store_away() else ()
        if self._failing_since is None and self.last is not None:
            return self.last, None
        return self.last or _nothing(), time.monotonic() - (self._failing_since or time.monotonic())


def _with_own(last: Snapshot, own: Sequence[NodeRow], *, is_away: bool) -> Snapshot:
    """What was read last, with this process's nodes as they are now."""
    if not own:
        return last
    nodes = {node.id: node for node in (*last.nodes, *own)}
    found = replace(last, nodes=sorted(nodes.values(), key=lambda node: (node.host, node.started_at, node.id)))
    if not is_away:
        return found
    return replace(found, at=max(node.seen_at for node in own), fleet_in_use=sum(node.open for node in nodes.values()))


def _nothing() -> Snapshot:
    return Snapshot(epoch_ms(), 0, (), {}, (), (), (), ())


_memory = _Memory()


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        _memory.forget()


setting_changed.connect(_forget, dispatch_uid="sse_limits.dashboard.look")
