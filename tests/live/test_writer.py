"""The writer by itself: what it hands over, and that it goes on whatever the board does."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sse_limits.core.rejections import Reason, Reject
from sse_limits.live import writer as module
from sse_limits.live.report import Report
from sse_limits.slots import keys
from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.memory import epoch_ms
from tests.slots.backends import until

from .fleet import LEASE_SECONDS, MemoryFleet, Station


class Board:
    """A board that keeps every report, and can be away."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.is_away = False
        self.offset_ms = 0

    async def write(self, report: Report) -> int:
        if self.is_away:
            raise StoreUnavailable("away")
        self.reports.append(report)
        return epoch_ms() + self.offset_ms

    async def leave(self, node: str) -> None:
        if self.is_away:
            raise StoreUnavailable("away")

    async def aclose(self) -> None:
        """Nothing to close."""


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def station(board: Board) -> Station:
    return Station(1, MemoryFleet(LEASE_SECONDS).store, board)


async def opened(station: Station, count: int) -> list[str]:
    found = [await station.open(f"u{number}") for number in range(count)]
    return [stream for stream in found if isinstance(stream, str)]


async def test_what_is_new_is_told_at_once_and_everything_within_a_heartbeat(station: Station, board: Board) -> None:
    streams = await opened(station, 9)
    await station.write()
    assert {row.id for row in board.reports[0].rows} == set(streams)
    assert {keys.user("t1", f"u{number}") for number in range(9)} <= set(board.reports[0].touched)
    for _ in range(3):
        await station.write()
    assert {row.id for report in board.reports[1:] for row in report.rows} == set(streams)
    assert all(len(report.rows) <= 3 for report in board.reports[1:])


async def test_more_streams_than_one_write_takes_are_told_one_write_after_the_other(
    station: Station, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAMS_PER_WRITE", 40)
    monkeypatch.setattr(module, "SUBJECTS_PER_WRITE", 30)
    station = Station(2, station.store, board)
    streams = await opened(station, 100)
    for _ in range(4):
        await station.write()
    assert all(len(report.rows) <= 40 for report in board.reports)
    assert {row.id for report in board.reports for row in report.rows} == set(streams)
    touched = {key for report in board.reports for key in report.touched}
    assert touched == {keys.tenant("t1"), *(keys.user("t1", f"u{number}") for number in range(100))}


async def test_subjects_that_wait_are_bounded(station: Station, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBJECTS_WAITING", 10)
    board.is_away = True
    await opened(station, 50)
    with pytest.raises(StoreUnavailable):
        await station.write()
    station.leases.clear()
    board.is_away = False
    await station.write()
    assert len(board.reports[0].touched) <= 10 + 18, "and a third of the 52 slot sets that are held"


async def test_what_happened_while_the_board_was_away_is_told_once(station: Station, board: Board) -> None:
    board.is_away = True
    [stream] = await opened(station, 1)
    decision = station.reject(Reject(Reason.STORE))
    with pytest.raises(StoreUnavailable):
        await station.write()
    station.reject(Reject(Reason.STORE))
    board.is_away = False
    for _ in range(3):
        await station.write()
    first, second, third = board.reports
    assert [row.id for row in first.rows] == [stream]
    assert first.decisions[0] == decision
    assert [sum(report.batch.counts.values()) if report.batch else 0 for report in board.reports] == [1, 1, 0]
    assert first.batch is not None
    assert second.batch is not None
    assert (first.batch.number, second.batch.number, len(third.decisions)) == (1, 2, 0)


async def test_the_nodes_clock_follows_the_stores(station: Station, board: Board) -> None:
    board.offset_ms = -7_200_000
    await station.write()
    assert abs(station.journal.now_ms() - epoch_ms() + 7_200_000) < 5_000


async def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    station: Station, board: Board, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(module.log, "propagate", True)
    caplog.set_level(logging.INFO, module.log.name)
    board.is_away = True
    running = asyncio.ensure_future(station.writer.run())
    await until(lambda: caplog.messages)
    await asyncio.sleep(0.1)
    board.is_away = False
    await until(lambda: len(board.reports) > 3)
    running.cancel()
    await asyncio.wait([running])
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    await station.writer.aclose()


async def test_a_node_ends_in_time_though_the_board_is_away(station: Station, board: Board) -> None:
    board.is_away = True
    async with asyncio.timeout(5):
        await station.writer.aclose()
