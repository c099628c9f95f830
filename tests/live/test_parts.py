"""The small parts: rows as text, a value that many threads want, facts of this process, ids explained."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.decisions import DecisionMint, node_name
from sse_limits.core.rejections import CAUSES, Reason, Reject, body_of
from sse_limits.core.slots import Scope
from sse_limits.live import codec, process
from sse_limits.live.explain import explain
from sse_limits.live.journal import ENFORCE
from sse_limits.live.memory import MemoryBoard
from sse_limits.live.rows import Cause, DecisionRow, StreamRow
from sse_limits.live.shared import Shared
from sse_limits.live.writer import LagMeter
from sse_limits.slots.base import Latency, StoreUnavailable

from .fleet import KEY, MemoryFleet, row

texts = st.text(max_size=20)
optional = st.none() | texts
counts = st.integers(0, 10**12)


@given(
    st.builds(
        StreamRow,
        id=st.just("aaaaaaaa-1"),
        node=st.just("web:1:aaaaaaaa"),
        path=texts.map("/".__add__),
        transport=st.sampled_from(["sse", "websocket"]),
        stream_class=texts,
        since=counts,
        tenant=optional,
        user=optional,
        address=optional,
        tier=texts,
        queued=counts,
        lane_events=counts,
        dropped=counts,
    )
)
def test_a_streams_row_is_read_as_it_was_written(found: StreamRow) -> None:
    assert codec.stream_row(found.id, found.node, codec.stream_text(found)) == found


@pytest.mark.parametrize("text", [None, "", "{", "[]", "[1]", "7", '["/", "sse", "c", 1, 2, 3, 4, 5, 6, 7, 8, 9]'])
def test_a_row_that_cannot_be_read_is_that_of_a_stream_nobody_has_described(text: str | None) -> None:
    assert codec.stream_row("aaaaaaaa-1", "web:1:aaaaaaaa", text) == StreamRow(
        "aaaaaaaa-1", "web:1:aaaaaaaa", "", "", "", 0
    )


@given(st.sampled_from(Reason), st.none() | st.sampled_from(Scope), counts, texts, st.lists(st.tuples(texts, counts)))
def test_a_decision_is_read_as_it_was_written_and_its_body_as_it_was_told(
    reason: Reason, scope: Scope | None, number: int, text: str, holders: list[tuple[str, int]]
) -> None:
    reject, decision = Reject(reason, scope, number, number), "d" * 56
    written = DecisionRow(
        id=decision,
        at=number,
        node="web:1:aaaaaaaa",
        reason=reason,
        mode=ENFORCE,
        tenant=text,
        user=None,
        address=text,
        tier=text,
        path=text,
        transport="sse",
        stream_class=text,
        scope=scope,
        limit=number,
        in_use=number,
        policy_version=number,
        status=int(CAUSES[reason].status),
        retry_after=7,
        body=body_of(reject, decision, 7, text).decode(),
        holders=tuple(holders),
        others=number,
        note=text,
    )
    assert codec.decision_row(codec.decision_text(written)) == written


def test_a_nodes_row_is_read_as_it_was_written() -> None:
    written = row("web:1:aaaaaaaa", budget=7, is_draining=True, counters={"x": 1.5}, addresses={"192.0.2.1": 3})
    fields = {name: str(value) for name, value in codec.node_fields(written, 99).items()}
    assert codec.node_row(written.id, fields) == replace(written, seen_at=99)
    assert codec.node_row(written.id, {**fields, "store_away_since": "7"}) == replace(
        written, seen_at=99, store_away_since=7
    )
    del fields["store_away_since"]
    assert codec.node_row(written.id, fields) == replace(written, seen_at=99), "one of the version before"
    assert codec.node_row(written.id, {**fields, "pid": "?"}) is None
    assert codec.node_row(written.id, {}) is None


@pytest.mark.parametrize("reason", Reason)
def test_a_cause_is_read_as_it_was_written(reason: Reason) -> None:
    cause = Cause(CAUSES[reason].layer, reason, ENFORCE)
    assert codec.cause(codec.cause_text(cause)) == cause
    assert codec.tenant_cause(f"|{codec.cause_text(cause)}") == (None, cause)
    assert codec.cause("slots|tomorrow|enforce") is None
    assert codec.tenant_cause("t1") is None


def test_a_shared_value_is_made_once_for_all_who_wait() -> None:
    made = []

    def make() -> int:
        made.append(threading.get_ident())
        time.sleep(0.05)
        return len(made)

    shared = Shared(make, 60)
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: shared.get(), range(32))) == {1}


def test_a_shared_fault_is_raised_for_as_long_and_then_tried_again() -> None:
    asked = 0

    def make() -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("away")
        return asked

    shared = Shared(make, 0.2)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="away"):
            shared.get()
    assert asked == 1
    time.sleep(0.25)
    assert shared.get() == 2


def test_a_decision_is_explained_with_its_details_without_them_and_not_at_all() -> None:
    mint = DecisionMint(KEY, node_name(b"abcde"))
    known, board = mint.mint(Reject(Reason.USER_LIMIT, Scope.USER, 5, 5), 1_700_000_000_000, 3), MemoryBoard()
    found = explain(known.upper(), KEY, board)
    assert found is not None
    assert (found.decision.reason, found.decision.limit, found.details) == (Reason.USER_LIMIT, 5, None)
    assert explain(known[:-1], KEY, board) is None

    class Away(MemoryBoard):
        def decision(self, id: str, at: int) -> DecisionRow | None:
            raise StoreUnavailable("away")

    found = explain(known, KEY, Away())
    assert found is not None
    assert found.details is None


async def test_details_are_found_by_a_decisions_id() -> None:
    fleet = MemoryFleet()
    station = fleet.station()
    decision = station.reject(Reject(Reason.STORE))
    await station.write()
    found = explain(decision.id, KEY, fleet.board())
    assert found is not None
    assert found.details == decision


def test_this_process_knows_itself() -> None:
    assert process.pid() == os.getpid()
    assert process.memory_bytes() > 1_000_000
    assert process.host()
    if os.path.exists("/proc/self/stat"):
        assert process.boot_id()
        assert process.pid_namespace().startswith("pid:")
        assert process.start_ticks() > 0


def test_the_latest_exchanges_have_a_median_and_a_tail() -> None:
    latency = Latency()
    assert latency.quantiles_ms() == (0, 0)
    for number in range(1, 101):
        latency.note(number / 1000)
    assert latency.quantiles_ms() == (51, 100)
    assert dict(latency.seconds.samples("x"))["x_count"] == 100


async def test_a_loop_that_stands_still_is_late() -> None:
    meter = LagMeter(every_seconds=0.01)
    measuring = asyncio.ensure_future(meter.run())
    await asyncio.sleep(0.03)
    time.sleep(0.2)  # noqa: ASYNC251 - what is measured
    await asyncio.sleep(0.03)
    assert meter.worst_ms >= 150
    measuring.cancel()
    await asyncio.wait([measuring])
