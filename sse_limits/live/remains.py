"""What a dead node has left: which nodes there are, what a node's streams were, and what still bears its name.

Read over the sink's connection, in steps of bounded size. What a node told of its streams is up to a second old: those
that it admitted after that are found by their ids, which begin with the node's own 8 characters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping, Sequence
from typing import Any, Protocol

from sse_limits.slots import keys
from sse_limits.slots.batches import chunked
from sse_limits.slots.redis import gather
from sse_limits.slots.servers import AnyPipeline

from .codec import stream_row
from .death import Incarnation
from .holders import NODES_READ
from .replies import pairs
from .rows import StreamRow

ROWS_PER_SCAN = 100
MEMBERS_PER_SCAN = 500
SETS_AT_ONCE = 50
FACTS = Incarnation._fields


class Remains(Protocol):
    """Reads what nodes have left. Every call raises `StoreUnavailable`."""

    async def nodes(self, without: Container[str]) -> Mapping[str, Incarnation]:
        """The nodes that have written within a lease, and which process each was; those without a row are left out."""

    def streams(self, node: str) -> AsyncIterator[Sequence[StreamRow]]:
        """A node's streams as it told them last, in parts."""

    async def held(self, streams: Sequence[str]) -> list[str]:
        """Those of some streams that stand in the fleet's slot set."""

    def members(self, slots: Sequence[str], name: str) -> AsyncIterator[tuple[str, Sequence[str]]]:
        """The streams whose ids begin with a node's 8 characters, slot set by slot set, in parts."""


class RedisRemains:
    """What nodes have left in Redis or Valkey. Owned by one event loop."""

    def __init__(self, pipeline: AnyPipeline) -> None:
        self._pipeline = pipeline

    async def nodes(self, without: Container[str]) -> Mapping[str, Incarnation]:
        """The nodes that have written within a lease, and which process each was; those without a row are left out."""
        listed = [node.decode() for node in await self._pipeline.call(("ZRANGE", keys.nodes(), 0, NODES_READ - 1))]
        asked = [node for node in listed if node not in without]
        replies = await gather(self._pipeline.call(("HMGET", keys.node(node), *FACTS)) for node in asked)
        found = ((node, incarnation(reply)) for node, reply in zip(asked, replies, strict=True))
        return {node: was for node, was in found if was is not None}

    async def streams(self, node: str) -> AsyncIterator[Sequence[StreamRow]]:
        """A node's streams as it told them last, in parts."""
        cursor = 0
        while True:
            reply = await self._pipeline.call(("HSCAN", keys.node_streams(node), cursor, "COUNT", ROWS_PER_SCAN))
            cursor = int(reply[0])
            yield [stream_row(stream.decode(), node, text.decode()) for stream, text in pairs(reply[1])]
            if cursor == 0:
                return

    async def held(self, streams: Sequence[str]) -> list[str]:
        """Those of some streams that stand in the fleet's slot set."""
        if not streams:
            return []
        scores = await self._pipeline.call(("ZMSCORE", keys.fleet(), *streams))
        return [stream for stream, score in zip(streams, scores, strict=True) if score is not None]

    async def members(self, slots: Sequence[str], name: str) -> AsyncIterator[tuple[str, Sequence[str]]]:
        """The streams whose ids begin with a node's 8 characters, slot set by slot set, in parts."""
        for part in chunked(slots, SETS_AT_ONCE):
            cursors = dict.fromkeys(part, 0)
            while cursors:
                replies = await gather(
                    self._pipeline.call(("ZSCAN", key, cursor, "MATCH", f"{name}-*", "COUNT", MEMBERS_PER_SCAN))
                    for key, cursor in cursors.items()
                )
                scanned = list(zip(cursors, replies, strict=True))
                cursors = {key: int(reply[0]) for key, reply in scanned if int(reply[0])}
                for key, (_, found) in scanned:
                    if found:
                        yield key, [stream.decode() for stream, _ in pairs(found)]


def incarnation(fields: Sequence[Any]) -> Incarnation | None:
    """Read which process a node was; None when its row is not there, or not whole."""
    try:
        boot, pid_namespace, pid, start_ticks = (field.decode() for field in fields)
        return Incarnation(boot, pid_namespace, int(pid), int(start_ticks))
    except (AttributeError, ValueError):
        return None
