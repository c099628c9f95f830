"""The board over real processes: what opens, closes, is refused, evicted, revoked or killed is shown by itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

from sse_limits.core.rejections import Layer, Reason
from sse_limits.core.slots import Scope
from sse_limits.live.board import Snapshot
from sse_limits.live.journal import ENFORCE
from sse_limits.live.redis import RedisBoard
from sse_limits.live.rows import Cause, Holder, NodeRow, StreamRow
from sse_limits.slots import keys

from .client import Clients, until
from .conftest import CORS_ORIGIN, People, Start, two_nodes
from .harness import ServerProcess
from .slots import Store, token

Pair = tuple[ServerProcess, ServerProcess]
LEASE = 3.0
HEARTBEAT = 1.0
SHOWN = 2.5  # a second until it is written, one until it is read again, and a busy machine
USER_LIMIT = Cause(Layer.SLOTS, Reason.USER_LIMIT, ENFORCE)


@pytest.fixture
def board(slots: Store) -> Iterator[RedisBoard]:
    found = RedisBoard(slots.url, lease_seconds=LEASE, timeout_seconds=5, snapshot_seconds=0)
    yield found
    found.close()


@pytest.fixture(scope="module")
def running(kind: str, valkey: Store, people: People) -> Iterator[Pair]:
    """Servers of this module's own: others may have spent the details that a node keeps of its decisions."""
    with two_nodes(kind, valkey, people) as pair:
        yield pair


async def shown(board: RedisBoard, condition: Callable[[Snapshot], Any], seconds: float = SHOWN) -> Snapshot:
    """Wait until the board shows it; fail with what it shows instead."""
    ends = time.monotonic() + seconds
    while True:
        found = await asyncio.to_thread(board.snapshot)
        if condition(found):
            return found
        assert time.monotonic() < ends, found
        await asyncio.sleep(0.05)


def node_of(found: Snapshot, server: ServerProcess) -> NodeRow:
    return next(node for node in found.nodes if node.pid in server.pids())


def counters_of(found: Snapshot, server: ServerProcess) -> Mapping[str, float]:
    """Since the start of the process; empty as long as it has written nothing."""
    return next((node.counters for node in found.nodes if node.pid in server.pids()), {})


def counts(found: Snapshot) -> dict[Cause, int]:
    total: dict[Cause, int] = {}
    for bucket in found.rejections:
        for cause, count in bucket.counts.items():
            total[cause] = total.get(cause, 0) + count
    return total


async def rows_of(board: RedisBoard, scope: Scope, subject: str) -> list[StreamRow]:
    return (await asyncio.to_thread(board.streams, scope, subject))[1]


async def test_what_is_open_is_shown_with_who_holds_it_and_gone_when_it_closes(
    pair: Pair, board: RedisBoard, clients: Clients
) -> None:
    streams = [await clients.get(pair[number % 2], "/raw/", token()) for number in range(3)]
    await clients.websocket(pair[1], "/ws/", token("alice", "acme"))

    # A batch is many commands, and a snapshot may come between two of them; each ten seconds the history begins a span,
    # which the nodes write one after the other.
    def is_whole(found: Snapshot) -> bool:
        latest = found.history[-1] if found.history else None
        return (
            sum(node.open for node in found.nodes) == 4
            and len(found.tops[Scope.USER]) == 2
            and latest is not None
            and (latest.sse, latest.websocket) == (3, 1)
        )

    found = await shown(board, is_whole)
    assert found.fleet_in_use == 4
    assert found.tops[Scope.USER] == [Holder(Scope.USER, "globex/gina", 3), Holder(Scope.USER, "acme/alice", 1)]
    assert found.tops[Scope.TENANT] == [Holder(Scope.TENANT, "globex", 3), Holder(Scope.TENANT, "acme", 1)]
    assert found.tops[Scope.ADDRESS] == [Holder(Scope.ADDRESS, "127.0.0.1", 4)]
    first = node_of(found, pair[0])
    assert (first.open, first.open_sse, first.blocked, first.is_draining) == (2, 2, 0, False)
    assert first.server.startswith(pair[0].name)
    assert first.memory_bytes > 10_000_000
    assert first.counters['sse_admitted_total{tier="free"}'] >= 2
    [socket] = await rows_of(board, Scope.USER, "acme/alice")
    assert (socket.path, socket.transport, socket.stream_class, socket.tier) == ("/ws/", "websocket", "sockets", "pro")
    assert socket.node == node_of(found, pair[1]).id
    rows = await rows_of(board, Scope.TENANT, "globex")
    assert [(row.path, row.user, row.address) for row in rows] == [("/raw/", "gina", "127.0.0.1")] * 3
    for stream in streams:
        stream.close()
    await shown(board, lambda found: [holder.subject for holder in found.tops[Scope.USER]] == ["acme/alice"])
    await shown(board, lambda found: sum(node.open for node in found.nodes) == 1)


async def test_a_refusal_is_counted_and_explained_by_its_id(pair: Pair, board: RedisBoard, clients: Clients) -> None:
    before = counts(await asyncio.to_thread(board.snapshot))
    for number in range(5):
        await clients.get(pair[number % 2], "/raw/", token())
    refused = [await clients.get(pair[number % 2], "/raw/", token()) for number in range(4)]
    assert await clients.status(pair[0], "/raw/", "sl1.not.a.token") == 401
    assert await clients.websocket_status(pair[1], "/ws/", token()) == 429
    told = json.loads(await refused[0].rest())
    found = await shown(board, lambda found: counts(found).get(USER_LIMIT, 0) - before.get(USER_LIMIT, 0) == 5)
    assert counts(found)[Cause(Layer.IDENTITY, Reason.BAD_TOKEN, ENFORCE)] == 1
    assert (found.tenant_causes[0].tenant, found.tenant_causes[0].count) == ("globex", 5)
    row = next(row for row in found.latest if row.id == told["decision"])
    assert json.loads(row.body) == told
    assert (row.tenant, row.user, row.tier, row.path, row.status) == ("globex", "gina", "free", "/raw/", 429)
    assert (row.scope, row.limit, row.in_use, len(row.holders)) == (Scope.USER, 5, 5, 5)
    assert await asyncio.to_thread(board.decision, row.id, row.at) == row
    unknown = next(row for row in found.latest if row.reason is Reason.BAD_TOKEN)
    assert (unknown.user, unknown.address, unknown.stream_class) == (None, "127.0.0.1", "raw")


async def test_a_client_that_retries_without_a_pause_is_counted_each_time_and_told_what_explains_itself(
    pair: Pair, board: RedisBoard, clients: Clients, http: httpx.AsyncClient
) -> None:
    """One decision may answer several retries; a page of an allowed origin can read its own among them."""
    before = counts(await asyncio.to_thread(board.snapshot))
    for _ in range(5):
        await clients.get(pair[0], "/raw/", token())
    auth = {"Authorization": f"Bearer {token()}"}
    other = {"Authorization": f"Bearer {token('iris')}"}
    told = []
    for number in range(60):
        origin = {"Origin": CORS_ORIGIN} if number % 6 == 5 else {}
        refused = await http.get(f"{pair[0].url}/raw/", headers={**auth, **origin})
        assert refused.status_code == 429
        assert refused.headers.get("access-control-allow-origin") == origin.get("Origin")
        told.append(refused.json())
    assert {row["detail"].partition(".")[0] for row in told} == {"This user holds 5 of 5 streams"}
    assert len({row["retry_after"] for row in told}) > 5
    found = await shown(board, lambda found: counts(found).get(USER_LIMIT, 0) - before.get(USER_LIMIT, 0) == 60)
    assert found.tenant_causes[0].tenant == "globex"
    details = {row.id: row for row in found.latest}
    explained = [row for row in told if row["decision"] in details]
    assert explained
    for row in explained:
        assert json.loads(details[row["decision"]].body) == row
    async with http.stream("GET", f"{pair[0].url}/raw/", headers=other) as stream:
        assert stream.status_code == 200


async def test_an_eviction_is_an_end_with_a_decision(pair: Pair, board: RedisBoard, clients: Clients) -> None:
    oldest = await clients.get(pair[0], "/raw/", token("eve", "small"))
    for _ in range(2):
        assert (await clients.get(pair[1], "/raw/", token("eve", "small"))).status == 200
    said = await oldest.rest()
    evicted = Cause(Layer.SLOTS, Reason.EVICTED, ENFORCE)
    found = await shown(board, lambda found: counts(found).get(evicted) == 1)
    row = next(row for row in found.latest if row.reason is Reason.EVICTED)
    assert row.id.encode() in said
    assert (row.tenant, row.user, row.stream_class) == ("small", "eve", "raw")
    await shown(board, lambda found: counters_of(found, pair[0]).get('sse_ended_total{reason="evicted"}', 0) >= 1)


async def test_a_revoked_stream_ends_in_another_process_within_half_a_second(
    pair: Pair, board: RedisBoard, clients: Clients
) -> None:
    stream = await clients.get(pair[1], "/raw/", token())
    websocket = await clients.websocket(pair[0], "/ws/", token("alice", "acme"))
    await shown(board, lambda found: sum(node.open for node in found.nodes) == 2)
    rows = [*await rows_of(board, Scope.USER, "globex/gina"), *await rows_of(board, Scope.USER, "acme/alice")]
    started = time.monotonic()
    note = "Closed by Ops. Please use one tab."
    assert await asyncio.to_thread(board.revoke, [row.id for row in rows], Reason.REVOKED, note) == 2
    while any(await asyncio.to_thread(board.is_held, rows)):  # noqa: ASYNC110 - it happens in another process
        await asyncio.sleep(0.005)
    assert time.monotonic() - started < 0.5
    said = (await stream.rest()).decode()
    assert "event: revoked\n" in said
    assert "retry:" not in said
    problem = json.loads(said.partition("event: revoked\ndata: ")[2])
    assert (problem["reason"], problem["status"], problem["detail"]) == ("revoked", 401, note)
    await asyncio.wait_for(websocket.wait_closed(), 2)
    assert (websocket.close_code, websocket.close_reason) == (4504, "revoked")
    assert (await clients.get(pair[1], "/raw/", token())).status == 200, "the client may come back at once"
    revoked = Cause(Layer.IDENTITY, Reason.REVOKED, ENFORCE)
    found = await shown(board, lambda found: counts(found).get(revoked) == 2)
    assert {row.note for row in found.latest if row.reason is Reason.REVOKED} == {note}
    assert await asyncio.to_thread(board.stream, rows[0].id) is None


async def test_an_order_whose_message_is_lost_is_carried_out_with_the_next_heartbeat_and_once(
    pair: Pair, board: RedisBoard, slots: Store, clients: Clients
) -> None:
    """What the message says is taken from the order's stream: only that is left here."""
    stream = await clients.get(pair[0], "/raw/", token())
    await shown(board, lambda found: sum(node.open for node in found.nodes) == 1)
    [row] = await rows_of(board, Scope.USER, "globex/gina")
    order = {"id": "ops-1", "node": row.node_name, "stream": row.id, "reason": "revoked", "note": "by heartbeat"}
    slots.client.xadd(keys.orders(row.node_name), {"order": json.dumps(order)})
    slots.client.expire(keys.orders(row.node_name), 60)
    said = await stream.rest(2 * HEARTBEAT)
    assert said.count(b"event: revoked") == 1
    assert b"by heartbeat" in said
    revoked = Cause(Layer.IDENTITY, Reason.REVOKED, ENFORCE)
    await shown(board, lambda found: counts(found).get(revoked) == 1)


async def test_a_killed_process_is_gone_by_the_end_of_its_lease_and_the_counts_are_right(
    server: ServerProcess, start: Start, board: RedisBoard, clients: Clients
) -> None:
    doomed = start(server.name)
    for _ in range(2):
        await clients.get(doomed, "/raw/", token())
    await clients.get(server, "/raw/", token())
    found = await shown(board, lambda found: sum(node.open for node in found.nodes) == 3)
    dead = node_of(found, doomed).id
    doomed.kill()
    found = await shown(board, lambda found: dead not in [node.id for node in found.nodes], LEASE + SHOWN)
    await shown(board, lambda found: found.fleet_in_use == 1, SHOWN)
    found = await shown(board, lambda found: found.tops[Scope.TENANT] == [Holder(Scope.TENANT, "globex", 1)])
    assert found.tops[Scope.ADDRESS] == [Holder(Scope.ADDRESS, "127.0.0.1", 1)]
    assert [row.node_name for row in await rows_of(board, Scope.FLEET, "")] == [node_of(found, server).name]


async def test_after_a_flush_everything_is_shown_again(
    pair: Pair, board: RedisBoard, slots: Store, clients: Clients
) -> None:
    for number in range(4):
        await clients.get(pair[number % 2], "/raw/", token())
    await shown(board, lambda found: sum(node.open for node in found.nodes) == 4)
    slots.client.flushall()

    def is_whole(found: Snapshot) -> bool:
        return found.fleet_in_use == 4 and found.tops[Scope.USER] == [Holder(Scope.USER, "globex/gina", 4)]

    await shown(board, is_whole, 2 * HEARTBEAT + SHOWN)
    ends = time.monotonic() + 2 * HEARTBEAT + SHOWN
    while not all(row.path for row in await rows_of(board, Scope.USER, "globex/gina")):
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)


async def test_a_process_that_stops_takes_its_row_with_it(start: Start, board: RedisBoard, clients: Clients) -> None:
    server = start("uvicorn")
    await clients.get(server, "/raw/", token())
    await shown(board, lambda found: sum(node.open for node in found.nodes) == 1)
    server.process.terminate()
    await asyncio.to_thread(server.process.wait, 10)
    found = await asyncio.to_thread(board.snapshot)
    assert server.pid not in [node.pid for node in found.nodes]
    assert counts(found) == {Cause(Layer.NODE, Reason.SHUTDOWN, ENFORCE): 1}
    assert await rows_of(board, Scope.FLEET, "") == []


async def test_events_are_measured_from_publishing_to_writing(
    server: ServerProcess, board: RedisBoard, clients: Clients, slots: Store
) -> None:
    websocket = await clients.websocket(server, "/ws/", token("alice", "acme"))
    await websocket.send(json.dumps({"type": "subscribe", "topic": "news"}))
    await websocket.recv()
    await websocket.send(json.dumps({"type": "publish", "topic": "news", "data": "hello"}))
    await websocket.recv()

    def is_measured(found: Snapshot) -> bool:
        counters = counters_of(found, server)
        written = counters.get("sse_publish_to_write_seconds_count", 0)
        return written >= 1 and counters.get('ws_messages_total{outcome="admitted"}', 0) >= 2

    found = await shown(board, is_measured)
    assert counters_of(found, server)["sse_publish_to_write_seconds_sum"] < 5
    await until(lambda: slots.immortal_keys() == [], 1)
