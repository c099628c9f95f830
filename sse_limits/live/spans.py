"""Rejections and history by spans of time, read from the store; those that are over never change: remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sse_limits.slots import keys
from sse_limits.slots.blocking import Command

from .board import TOP_ROWS, Point
from .codec import cause, tenant_cause
from .connection import Connection
from .replies import fields_of, scores_of
from .rows import Bucket, Cause, TenantCauses

OVER_MS = 15_000  # so long after its end a span changes no more: writers ask for the time just before they write
REMEMBERED = 8_000
KEYS_PER_EXCHANGE = 500


class SpanReader:
    """Reads spans over a board's connection, and remembers those that are over. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._over: dict[str, Any] = {}
        self._lock = threading.Lock()

    def rejections(self, now: int, minutes: int) -> list[Bucket]:
        """The spans of the last minutes, oldest first, the running one last."""
        seconds = 10 if minutes <= 60 else 60
        starts = starts_of(now, minutes, seconds)
        found = self._read(now, seconds, {keys.rejected(seconds, start): start for start in starts}, _hash, _counts)
        return [Bucket(start * 1000, seconds, counts) for start, counts in zip(starts, found, strict=True)]

    def tenant_causes(self, now: int, minutes: int) -> list[TenantCauses]:
        """Rejections by tenant over the last minutes, most first."""
        starts = starts_of(now, minutes, 60)
        found = self._read(now, 60, {keys.rejected_tenants(start): start for start in starts}, _zset, _tenants)
        total: dict[tuple[str | None, Cause], int] = {}
        for counts in found:
            for key, count in counts.items():
                total[key] = total.get(key, 0) + count
        return most(total)

    def history(self, now: int, minutes: int) -> list[Point]:
        """Streams in use over the last minutes, one point each ten seconds, oldest first."""
        starts = starts_of(now, minutes, 10)
        found = self._read(now, 10, {keys.history(start): start for start in starts}, _hash, _sums)
        return [Point(start * 1000, *sums) for start, sums in zip(starts, found, strict=True)]

    def _read(
        self,
        now: int,
        seconds: int,
        spans: Mapping[str, int],
        command: Callable[[str], Command],
        parse: Callable[[Any], Any],
    ) -> list[Any]:
        with self._lock:
            known = {key: self._over[key] for key in spans if key in self._over}
        missing = [key for key in spans if key not in known]
        fresh: dict[str, Any] = {}
        for start in range(0, len(missing), KEYS_PER_EXCHANGE):
            part = missing[start : start + KEYS_PER_EXCHANGE]
            replies = self._connection.exchange([command(key) for key in part])
            fresh |= {key: parse(reply) for key, reply in zip(part, replies, strict=True)}
        with self._lock:
            self._over |= {key: fresh[key] for key in fresh if (spans[key] + seconds) * 1000 + OVER_MS < now}
            for key in list(self._over)[: max(0, len(self._over) - REMEMBERED)]:
                del self._over[key]
        return [known[key] if key in known else fresh[key] for key in spans]


def starts_of(now: int, minutes: int, seconds: int) -> list[int]:
    """The starts (epoch seconds) of the spans of the last minutes, the running one included."""
    running = now // 1000 // seconds * seconds
    return [running - seconds * back for back in range(minutes * 60 // seconds - 1, -1, -1)]


def most(total: Mapping[tuple[str | None, Cause], int]) -> list[TenantCauses]:
    """The rows that count most."""
    rows = [TenantCauses(tenant, found, count) for (tenant, found), count in total.items()]
    return sorted(rows, key=lambda row: (-row.count, row.tenant or "", row.cause))[:TOP_ROWS]


def _hash(key: str) -> Command:
    return ("HGETALL", key)


def _zset(key: str) -> Command:
    return ("ZREVRANGE", key, 0, TOP_ROWS - 1, "WITHSCORES")


def _counts(reply: Any) -> dict[Cause, int]:
    return {found: int(count) for text, count in fields_of(reply).items() if (found := cause(text)) is not None}


def _tenants(reply: Any) -> dict[tuple[str | None, Cause], int]:
    return {found: count for text, count in scores_of(reply) if (found := tenant_cause(text)) is not None}


def _sums(reply: Any) -> tuple[int, int, int]:
    rows = [tuple(map(int, value.split("|"))) for value in fields_of(reply).values()]
    return tuple(map(sum, zip(*rows, strict=True))) if rows else (0, 0, 0)  # type: ignore[return-value]
