"""What the display shows, as plain values: the rows that nodes write once a second and every page reads.

Rows are for people. No decision is ever taken from them: the truth of a slot is its member in a slot set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sse_limits.core.rejections import Layer, Reason
from sse_limits.core.slots import Scope


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One open stream. `since` is epoch ms; `address` is the grouped address; `transport` is `sse` or `websocket`."""

    id: str
    node: str
    path: str
    transport: str
    stream_class: str
    since: int
    tenant: str | None = None
    user: str | None = None
    address: str | None = None
    tier: str = ""
    queued: int = 0
    lane_events: int = 0
    dropped: int = 0

    @property
    def node_name(self) -> str:
        """The 8 characters with which the ids of this node's streams and decisions begin."""
        return self.id.partition("-")[0]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One living node. Instants are epoch ms of the store's clock where it has one; `counters` never go down."""

    id: str
    name: str
    host: str
    pid: int
    server: str
    started_at: int
    seen_at: int
    open: int
    open_sse: int
    budget: int | None
    is_draining: bool
    policy_version: int
    loop_lag_ms: float
    memory_bytes: int
    blocked: int
    store: str
    store_ms: float
    """The median of the latest exchanges with the store."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Metric sample name with its labels (never of a user) -> value since the node's start."""
    addresses: Mapping[str, int] = field(default_factory=dict)
    """The 200 addresses that hold most on this node."""
    store_p99_ms: float = 0.0
    boot: str = ""
    pid_namespace: str = ""
    start_ticks: int = 0
    """With `boot`, `pid_namespace` and `pid`: what proves on the same machine that a process is gone."""
    store_away_since: int | None = None
    """Since when the node decides without the store; None while it answers."""


class Holder(NamedTuple):
    """How much one subject holds over all nodes; `subject` is as in slot keys: a user is `<tenant>/<user>`."""

    scope: Scope
    subject: str
    in_use: int


class Cause(NamedTuple):
    """Why something was rejected or ended, as counted; `mode` is `enforce` or, later, `observe`."""

    layer: Layer
    reason: Reason
    mode: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rejections of one span of time that begins `at` (epoch ms) and lasts `seconds`."""

    at: int
    seconds: int
    counts: Mapping[Cause, int]


@dataclass(frozen=True, slots=True)
class TenantCauses:
    """How often a tenant's streams were rejected for a cause in the asked span; tenant None: no tenant."""

    tenant: str | None
    cause: Cause
    count: int


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """The details of a rejection or an end, kept for 24 h as far as the cap allows. `at` is epoch ms."""

    id: str
    at: int
    node: str
    reason: Reason
    mode: str
    tenant: str | None
    user: str | None
    address: str | None
    tier: str
    path: str
    transport: str
    stream_class: str
    scope: Scope | None
    limit: int | None
    in_use: int | None
    policy_version: int
    status: int
    retry_after: int | None
    body: str
    holders: tuple[tuple[str, int], ...] = ()
    """Who held the full scope then, most first (users of a tenant; a user's stream ids with their age in seconds)."""
    others: int = 0
    """How much of the scope was held by those that `holders` leaves out."""
    note: str = ""
    """The operator's word to the client, at an end that one has ordered."""
