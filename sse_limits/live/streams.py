"""Rows of single streams, read from the slot sets (who is there) and the hashes of their nodes (what they are)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sse_limits.core.slots import Scope
from sse_limits.slots import keys

from .codec import stream_row
from .connection import Connection
from .holders import NODES_READ, by_node
from .replies import fields_of, scores_of
from .rows import StreamRow

SORTED_AT_MOST = 2000
SCANNED_NODES = 20
SCANS_PER_NODE = 20
SCAN_COUNT = 1000


class StreamReader:
    """Reads streams over a board's connection. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def page(self, scope: Scope, subject: str, offset: int, count: int) -> tuple[int, list[StreamRow]]:
        """How many streams there are, and some of them, oldest first.

        Beyond 2,000 streams of one holder the order is that in which their leases end, and only a page is sorted.
        """
        match scope:
            case Scope.NODE:
                return self._of_node(subject, offset, count)
            case Scope.ADDRESS:
                return self._of_address(subject, offset, count)
            case _:
                return self._of_slots(keys.slot(scope, subject), offset, count)

    def one(self, stream: str) -> StreamRow | None:
        """One stream's row; None when it holds no slot."""
        return self._rows([stream])[0] if self.are_held([stream])[0] else None

    def are_held(self, streams: Sequence[str]) -> list[bool]:
        """Whether each stream holds a slot in the fleet."""
        if not streams:
            return []
        time, scores = self._connection.exchange([("TIME",), ("ZMSCORE", keys.fleet(), *streams)])
        now = ms_of(time)
        return [score is not None and float(score) > now for score in scores]

    def _of_slots(self, key: str, offset: int, count: int) -> tuple[int, list[StreamRow]]:
        [time] = self._connection.exchange([("TIME",)])
        living = f"({ms_of(time)}", "+inf"
        total, first = self._connection.exchange(
            [("ZCOUNT", key, *living), ("ZRANGEBYSCORE", key, *living, "LIMIT", 0, SORTED_AT_MOST)]
        )
        if total <= SORTED_AT_MOST:
            return total, oldest_first(self._rows(first))[offset : offset + count]
        [part] = self._connection.exchange([("ZRANGEBYSCORE", key, *living, "LIMIT", offset, count)])
        return total, oldest_first(self._rows(part))

    def _of_node(self, node: str, offset: int, count: int) -> tuple[int, list[StreamRow]]:
        """A node's streams are numbered in the order in which they came; it has no more than its budget."""
        [streams] = self._connection.exchange([("HKEYS", keys.node_streams(node))])
        page = sorted(streams, key=number_of)[offset : offset + count]
        return len(streams), self._described({node: page}, page)

    def _of_address(self, address: str, offset: int, count: int) -> tuple[int, list[StreamRow]]:
        """By searching the nodes: a slot set has only those streams that an address limit holds for."""
        rows = [row for node in self._nodes()[:SCANNED_NODES] for row in self._scan(node) if row.address == address]
        return len(rows), oldest_first(rows)[offset : offset + count]

    def _scan(self, node: str) -> list[StreamRow]:
        cursor, rows = "0", []
        for _ in range(SCANS_PER_NODE):
            [(cursor, found)] = self._connection.exchange(
                [("HSCAN", keys.node_streams(node), cursor, "COUNT", SCAN_COUNT)]
            )
            rows += [stream_row(stream, node, text) for stream, text in fields_of(found).items()]
            if int(cursor) == 0:
                break
        return rows

    def _rows(self, streams: Sequence[str]) -> list[StreamRow]:
        return self._described(by_node(streams, self._nodes()), streams)

    def _described(self, asked: dict[str, list[str]], streams: Sequence[str]) -> list[StreamRow]:
        """The rows of streams in their order; of those whose node is dead or has not described them, an empty one."""
        pairs = [(node, ids) for node, ids in asked.items() if ids]
        replies = self._connection.exchange([("HMGET", keys.node_streams(node), *ids) for node, ids in pairs])
        rows = {
            stream: stream_row(stream, node, text)
            for (node, ids), texts in zip(pairs, replies, strict=True)
            for stream, text in zip(ids, texts, strict=True)
        }
        return [rows[stream] if stream in rows else stream_row(stream, "", None) for stream in streams]

    def _nodes(self) -> list[str]:
        time, members = self._connection.exchange(
            [("TIME",), ("ZRANGE", keys.nodes(), 0, NODES_READ - 1, "WITHSCORES")]
        )
        return [node for node, deadline in scores_of(members) if deadline > ms_of(time)]


def ms_of(time: Sequence[Any]) -> int:
    """The reply of TIME in epoch ms."""
    return int(time[0]) * 1000 + int(time[1]) // 1000


def number_of(stream: str) -> int:
    """The number in a stream's id."""
    number = stream.partition("-")[2]
    return int(number) if number.isdecimal() else 0


def oldest_first(rows: Sequence[StreamRow]) -> list[StreamRow]:
    """Rows by age; those that nobody has described last, as they are mostly new."""
    return sorted(rows, key=lambda row: (not row.path, row.since, number_of(row.id)))
