"""This process's own nodes, from any thread: what can still be seen and ended while the store is away.

Pages read in threads. A node's row is made on its event loop, and waited for a moment at most; its streams are read
from a copy of their dict, which is one step. A process without a node (WSGI) knows nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import Future

from sse_limits.core.rejections import Reason
from sse_limits.core.slots import Scope
from sse_limits.live.board import NOTE_CHARS
from sse_limits.live.rows import NodeRow, StreamRow
from sse_limits.live.streams import oldest_first
from sse_limits.slots.base import Order

from .node import Node, nodes_here

ANSWER_SECONDS = 0.25


def rows() -> list[NodeRow]:
    """Each node's row as it is now; without those whose event loop does not get to it."""
    asked = [_ask(loop, node) for loop, node in nodes_here()]
    return [row for answer in asked if (row := _answered(answer)) is not None]


def is_store_away() -> bool:
    """Whether a node of this process decides without the store."""
    return any(node.limiter.circuit.is_open for _, node in nodes_here())


def streams(scope: Scope, subject: str) -> list[StreamRow]:
    """A holder's streams that are open here, oldest first."""
    found = (row for _, node in nodes_here() for row in node.rows())
    return oldest_first([row for row in found if _is_of(row, scope, subject)])


def find(ids: Collection[str]) -> list[StreamRow]:
    """Those of these streams that are open here."""
    wanted = frozenset(ids)
    return [row for row in streams(Scope.FLEET, "") if row.id in wanted]


def ended(ids: Sequence[str]) -> list[str]:
    """Those of these streams that were open here and are no more."""
    names = {node.limiter.node: node for _, node in nodes_here()}
    return [id for id in ids if (node := names.get(id.partition("-")[0])) is not None and node.find(id) is None]


def end(ids: Collection[str], note: str) -> None:
    """Order this process's nodes to end streams, as a board does."""
    for loop, node in nodes_here():
        for id in ids:
            if node.find(id) is not None:
                order = Order(f"here-{id}", node.limiter.node, id, Reason.REVOKED, note[:NOTE_CHARS])
                loop.call_soon_threadsafe(node.carry_out, order)


def _ask(loop: asyncio.AbstractEventLoop, node: Node) -> Future[NodeRow]:
    answer: Future[NodeRow] = Future()
    loop.call_soon_threadsafe(lambda: answer.set_result(node.row()))
    return answer


def _answered(answer: Future[NodeRow]) -> NodeRow | None:
    try:
        return answer.result(ANSWER_SECONDS)
    except TimeoutError:
        return None


def _is_of(row: StreamRow, scope: Scope, subject: str) -> bool:
    match scope:
        case Scope.USER:
            return f"{row.tenant or ''}/{row.user}".lstrip("/") == subject.lstrip("/") and row.user is not None
        case Scope.TENANT:
            return row.tenant == subject
        case Scope.ADDRESS:
            return row.address == subject
        case Scope.NODE:
            return row.node == subject
    return True
