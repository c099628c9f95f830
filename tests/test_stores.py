"""Where things are kept follows the settings: slots, reports and the board of one deployment meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from django.test import override_settings

from sse_limits.core.identity import Identity
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.slots import Scope
from sse_limits.limiter import Lease, build_limiter, explain_decision, get_board
from sse_limits.live.board import Board
from sse_limits.live.memory import MemoryBoard
from sse_limits.live.redis import RedisBoard
from sse_limits.streams.node import Node
from tests.slots.servers import ClusterServer, Server

POLICY = {"tiers": {"free": {"user_limit": 1}, "anonymous": {}}, "tenants": {"acme": {"tier": "free"}}}
EVENTS = StreamClass("events")
ALICE = Identity(user="alice", tenant="acme", address="192.0.2.1")
SCOPE = {"type": "http", "path": "/events/", "headers": [], "client": ("192.0.2.1", 1)}


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.redis) for kind in ("valkey", "cluster"))])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        with override_settings(SSE_LIMITS={"STORE": "memory", "POLICY": POLICY}):
            yield "memory"
        return
    server: Server | ClusterServer = request.getfixturevalue(request.param)
    server.client.flushall()
    with override_settings(SSE_LIMITS={"REDIS_URL": server.url, "STORE_TIMEOUT_SECONDS": 5, "POLICY": POLICY}):
        yield request.param


@pytest.fixture
async def node(store: str) -> AsyncIterator[Node]:
    found = Node(build_limiter())
    yield found
    await found.aclose()


def test_the_board_is_where_the_slots_are_and_made_once(store: str) -> None:
    board = get_board()
    assert isinstance(board, MemoryBoard if store == "memory" else RedisBoard)
    assert get_board() is board
    with override_settings(SSE_LIMITS={"STORE": "memory"}):
        assert get_board() is not board


async def test_what_a_node_does_is_on_the_board_and_its_decisions_explain_themselves(node: Node) -> None:
    board: Board = get_board()
    limiter = node.limiter
    lease = await limiter.admit(ALICE, EVENTS)
    assert isinstance(lease, Lease)
    refused = await limiter.admit(ALICE, EVENTS)
    assert refused == Reject(Reason.USER_LIMIT, Scope.USER, 1, 1)
    told = node.answer(refused, SCOPE, None, ALICE, "events")
    await node.write()
    explained = await asyncio.to_thread(explain_decision, told.decision)
    assert explained is not None
    assert (explained.decision.reason, explained.decision.node) == (Reason.USER_LIMIT, limiter.node)
    details = explained.details
    assert details is not None
    assert (details.user, details.stream_class, details.status) == ("alice", "events", 429)
    assert [name for name, _ in details.holders] == [lease.held.stream]
    found = await asyncio.to_thread(board.snapshot)
    [row] = found.nodes
    assert (row.id, row.store, row.addresses) == (limiter.node_id, limiter.store.name, {"192.0.2.1": 1})
    assert row.counters['sse_admitted_total{tier="free"}'] == 1
    assert row.counters["sse_conns_per_user_count"] == 1
    assert await asyncio.to_thread(board.in_use, [(Scope.USER, "acme/alice")]) == [1]
    limiter.release(lease)
    await limiter.store.usage(lease.held.keys)
    assert await asyncio.to_thread(board.in_use, [(Scope.USER, "acme/alice")]) == [0]


async def test_a_node_that_ends_leaves_no_row_and_no_top_behind(store: str) -> None:
    node = Node(build_limiter())
    assert isinstance(await node.limiter.admit(ALICE, EVENTS), Lease)
    await node.write()
    await node.aclose()
    found = await asyncio.to_thread(get_board().snapshot)
    assert found.nodes == []
    assert not any(found.tops.values())
    assert found.fleet_in_use == 0


async def test_ids_of_others_are_not_explained(store: str) -> None:
    assert explain_decision("a" * 56) is None
