"""How rows look in the store: compact JSON and flat strings. What this version cannot read is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sse_limits.core.rejections import Layer, Reason, Reject, body_of
from sse_limits.core.slots import Scope

from .rows import Cause, DecisionRow, NodeRow, StreamRow

_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
_NUMBERS = ("pid", "start_ticks", "started_at", "open", "open_sse", "policy_version", "memory_bytes", "blocked")
_FRACTIONS = ("loop_lag_ms", "store_ms", "store_p99_ms")
_TEXTS = ("name", "host", "server", "store", "boot", "pid_namespace")


def stream_text(row: StreamRow) -> str:
    """A stream's row without its id and node, which the key and the field say."""
    return _compact(
        [
            row.path,
            row.transport,
            row.stream_class,
            row.since,
            row.tenant,
            row.user,
            row.address,
            row.tier,
            row.queued,
            row.lane_events,
            row.dropped,
        ]
    )


def stream_row(stream: str, node: str, text: str | None) -> StreamRow:
    """Read a stream's row; without a text the row of a stream that nobody has described."""
    try:
        return StreamRow(stream, node, *json.loads(text or "null"))
    except (ValueError, TypeError):
        return StreamRow(stream, node, "", "", "", 0)


def node_fields(row: NodeRow, seen_at: int) -> dict[str, str | int]:
    """A node's row as the fields of a hash."""
    fields: dict[str, str | int] = {name: getattr(row, name) for name in (*_TEXTS, *_NUMBERS)}
    fields |= {name: format(getattr(row, name), ".3f") for name in _FRACTIONS}
    fields["seen_at"] = seen_at
    fields["budget"] = "" if row.budget is None else row.budget
    fields["store_away_since"] = "" if row.store_away_since is None else row.store_away_since
    fields["is_draining"] = int(row.is_draining)
    fields["counters"] = _compact(dict(row.counters))
    fields["addresses"] = _compact(dict(row.addresses))
    return fields


def node_row(node: str, fields: Mapping[str, str]) -> NodeRow | None:
    """Read a node's row; None when it is not there, or not whole."""
    try:
        values: dict[str, Any] = {name: fields[name] for name in _TEXTS}
        values |= {name: int(fields[name]) for name in (*_NUMBERS, "seen_at")}
        values |= {name: float(fields[name]) for name in _FRACTIONS}
        values["budget"] = int(fields["budget"]) if fields["budget"] else None
        since = fields.get("store_away_since")  # nodes of a version before this field do not tell
        values["store_away_since"] = int(since) if since else None
        values["is_draining"] = fields["is_draining"] == "1"
        values |= {name: json.loads(fields[name]) for name in ("counters", "addresses")}
    except (KeyError, ValueError):
        return None
    return NodeRow(id=node, **values)


def cause_text(cause: Cause) -> str:
    """A cause as a field of a hash."""
    return "|".join(cause)


def cause(text: str) -> Cause | None:
    """Read a cause."""
    try:
        layer, reason, mode = text.split("|")
        return Cause(Layer(layer), Reason(reason), mode)
    except ValueError:
        return None


def tenant_cause(text: str) -> tuple[str | None, Cause] | None:
    """Read a member of the zset of tenants: `<tenant>|<cause>`."""
    tenant, _, rest = text.partition("|")
    found = cause(rest)
    return None if found is None else (tenant or None, found)


def decision_text(row: DecisionRow) -> str:
    """A decision's details; the body is built again from them."""
    return _compact(
        [
            row.id,
            row.at,
            row.node,
            row.reason,
            row.mode,
            row.tenant,
            row.user,
            row.address,
            row.tier,
            row.path,
            row.transport,
            row.stream_class,
            row.scope,
            row.limit,
            row.in_use,
            row.policy_version,
            row.status,
            row.retry_after,
            row.note,
            row.holders,
            row.others,
        ]
    )


def decision_row(text: str) -> DecisionRow | None:
    """Read a decision's details."""
    try:
        id_, at, node, reason, *rest = json.loads(text)
        mode, tenant, user, address, tier, path, transport, stream_class, *rest = rest
        scope, limit, in_use, policy_version, status, retry_after, note, holders, others = rest
        reject = Reject(Reason(reason), None if scope is None else Scope(scope), limit, in_use)
    except (ValueError, TypeError):
        return None
    return DecisionRow(
        id=id_,
        at=at,
        node=node,
        reason=reject.reason,
        mode=mode,
        tenant=tenant,
        user=user,
        address=address,
        tier=tier,
        path=path,
        transport=transport,
        stream_class=stream_class,
        scope=reject.scope,
        limit=limit,
        in_use=in_use,
        policy_version=policy_version,
        status=status,
        retry_after=retry_after,
        body=body_of(reject, id_, retry_after, note).decode(),
        note=note,
        holders=tuple((name, number) for name, number in holders),
        others=others,
    )
