"""Who held a scope when it was full: looked up for the few decisions whose details are kept, in bounded reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sse_limits.core.slots import Scope
from sse_limits.slots import keys, scripts
from sse_limits.slots.redis import gather
from sse_limits.slots.servers import AnyPipeline

from .codec import stream_row
from .replies import pairs, scores_of
from .rows import DecisionRow, StreamRow

USERS_AT_ONCE = 16
CROWDS_AT_ONCE = 4
STREAMS_READ = 500
NODES_READ = 1000
SHOWN = 10
NOBODY = "(anonymous)"

Found = tuple[tuple[tuple[str, int], ...], int]  # holders and others, as in `DecisionRow`
Full = tuple[Scope, str]


def full_scope(row: DecisionRow) -> Full | None:
    """The scope and subject that was full; None for a decision without a limit."""
    if row.limit is None:
        return None
    match row.scope:
        case Scope.USER:
            return Scope.USER, f"{row.tenant or ''}/{row.user}"
        case Scope.CLASS:
            return Scope.CLASS, f"{row.tenant or ''}/{row.stream_class}"
        case Scope.TENANT:
            return Scope.TENANT, row.tenant or ""
        case Scope.ADDRESS:
            return Scope.ADDRESS, row.address or ""
        case Scope.FLEET:
            return Scope.FLEET, ""
        case _:
            return None


def by_age(streams: Sequence[tuple[str, int]], now: int, in_use: int) -> Found:
    """A user's streams with their age in seconds, the oldest first; `acquired` 0 is not known."""
    known = sorted((acquired or now, stream) for stream, acquired in streams)[:SHOWN]
    return tuple((stream, (now - acquired) // 1000) for acquired, stream in known), max(0, in_use - len(known))


def by_holder(rows: Sequence[StreamRow], in_use: int) -> Found:
    """The users (else addresses) of some streams with their counts, most first."""
    counts = Counter(
        f"{row.tenant or ''}/{row.user}" if row.user else row.address or NOBODY for row in rows if row.path
    )
    shown = tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN])
    return shown, max(0, in_use - sum(count for _, count in shown))


def by_tenant(counts: Sequence[tuple[str, int]], in_use: int) -> Found:
    """The tenants that hold most of the fleet."""
    return tuple(counts[:SHOWN]), max(0, in_use - sum(count for _, count in counts[:SHOWN]))


def with_holders(decisions: Sequence[DecisionRow], found: dict[Full, Found]) -> list[DecisionRow]:
    """The decisions, each with who held its scope."""
    told = []
    for row in decisions:
        holders, others = found.get(full_scope(row) or (Scope.NODE, ""), ((), 0))
        told.append(replace(row, holders=holders, others=others) if holders or others else row)
    return told


def wanted(decisions: Sequence[DecisionRow]) -> list[Full]:
    """The distinct scopes to look up; what is beyond the bound stays without holders."""
    distinct = dict.fromkeys(full for row in decisions if (full := full_scope(row)) is not None)
    users = [full for full in distinct if full[0] is Scope.USER]
    crowds = [full for full in distinct if full[0] is not Scope.USER]
    return users[:USERS_AT_ONCE] + crowds[:CROWDS_AT_ONCE]


class HolderReader:
    """Looks holders up over the writer's connection."""

    def __init__(self, pipeline: AnyPipeline) -> None:
        self._pipeline = pipeline
        self._held = scripts.load("held")

    async def tell(self, decisions: Sequence[DecisionRow], now: int) -> list[DecisionRow]:
        """Add who held the full scopes. Raises `StoreUnavailable`."""
        fulls = wanted(decisions)
        if not fulls:
            return list(decisions)
        replies = await gather(self._ask(full, now) for full in fulls)
        rows = await self._rows_of([reply for full, reply in zip(fulls, replies, strict=True) if is_crowd(full)])
        found: dict[Full, Found] = {}
        in_use = {full_scope(row): row.in_use or 0 for row in decisions}
        for full, reply in zip(fulls, replies, strict=True):
            if full[0] is Scope.USER:
                at, held, *streams = reply
                ages = [(stream.decode(), acquired) for stream, acquired in pairs(streams)]
                found[full] = by_age(ages, at, held)
            elif full[0] is Scope.FLEET:
                found[full] = by_tenant(scores_of(reply), in_use[full])
            else:
                found[full] = by_holder(
                    [rows[stream] for stream in map(bytes.decode, reply) if stream in rows], in_use[full]
                )
        return with_holders(decisions, found)

    def _ask(self, full: Full, now: int) -> Any:
        scope, subject = full
        if scope is Scope.USER:
            tenant, _, user = subject.partition("/")
            return self._pipeline.run(
                self._held, [keys.slot(scope, subject), keys.age(tenant or None, user)], (STREAMS_READ,)
            )
        if scope is Scope.FLEET:
            return self._pipeline.call(("ZREVRANGE", keys.top(Scope.TENANT), 0, SHOWN - 1, "WITHSCORES"))
        key = keys.slot(scope, subject)
        return self._pipeline.call(("ZRANGEBYSCORE", key, f"({now}", "+inf", "LIMIT", 0, STREAMS_READ))

    async def _rows_of(self, crowds: Sequence[Sequence[bytes]]) -> dict[str, StreamRow]:
        """The rows of the streams of several slot sets, from the hashes of their nodes."""
        streams = {stream.decode() for crowd in crowds for stream in crowd}
        if not streams:
            return {}
        names = [node.decode() for node in await self._pipeline.call(("ZRANGE", keys.nodes(), 0, NODES_READ - 1))]
        asked = [(node, ids) for node, ids in by_node(streams, names).items()]
        replies = await gather(self._pipeline.call(("HMGET", keys.node_streams(node), *ids)) for node, ids in asked)
        return {
            stream: stream_row(stream, node, text.decode())
            for (node, ids), texts in zip(asked, replies, strict=True)
            for stream, text in zip(ids, texts, strict=True)
            if text is not None
        }


def is_crowd(full: Full) -> bool:
    """Whether a scope's holders are found by the rows of its streams."""
    return full[0] not in (Scope.USER, Scope.FLEET)


def by_node(streams: Iterable[str], nodes: Sequence[str]) -> dict[str, list[str]]:
    """The streams of each living node; an id begins with the last characters of its node's id."""
    node_of = {node.rpartition(":")[2]: node for node in nodes}
    found: dict[str, list[str]] = {}
    for stream in streams:
        node = node_of.get(stream.partition("-")[0])
        if node is not None:
            found.setdefault(node, []).append(stream)
    return found
