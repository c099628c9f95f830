"""Many streams on one connection (HTTP/2, hypercorn): each is its own, whatever happens to the others."""

from __future__ import annotations

import asyncio
from typing import Self

import h2.config
import h2.connection
import h2.events
import pytest

from .client import until
from .conftest import Start
from .harness import ServerProcess
from .slots import Store, held, token


class Connection:
    """One HTTP/2 connection without TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self.statuses: dict[int, int] = {}
        self.data: dict[int, bytes] = {}

    @classmethod
    async def open(cls, server: ServerProcess) -> Self:
        host, _, port = server.address.rpartition(":")
        found = cls(*await asyncio.open_connection(host, int(port)))
        await found._flush()
        return found

    async def get(self, path: str, user: str) -> int:
        """Open a stream, and return its number when its status has come."""
        number = self._h2.get_next_available_stream_id()
        headers = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        self._h2.send_headers(number, [*headers, ("authorization", f"Bearer {token(user)}")], end_stream=True)
        await self._flush()
        await self.read_until(lambda: number in self.statuses)
        return number

    async def reset(self, number: int) -> None:
        self._h2.reset_stream(number)
        await self._flush()

    async def read_until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(5):
            while not condition():
                data = await self._reader.read(65536)
                assert data, "the connection has ended"
                for event in self._h2.receive_data(data):
                    self._note(event)
                await self._flush()

    def _note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived():
                self.statuses[event.stream_id] = int(dict(event.headers)[":status"])
            case h2.events.DataReceived():
                self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    async def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture
def hypercorn(start: Start) -> ServerProcess:
    return start("hypercorn")


async def test_a_reset_stream_gives_its_slot_back_and_the_connection_lives(
    hypercorn: ServerProcess, slots: Store
) -> None:
    connection = await Connection.open(hypercorn)
    numbers = [await connection.get("/events/?topic=news", "gina") for _ in range(6)]
    assert [connection.statuses[number] for number in numbers] == [200] * 5 + [429]
    assert slots.in_use() == held(5, "gina", "globex")
    await connection.reset(numbers[0])
    await until(lambda: slots.in_use() == held(4, "gina", "globex"), 1)
    again = await connection.get("/events/?topic=news", "gina")
    assert connection.statuses[again] == 200
    await connection.read_until(lambda: connection.data.get(numbers[1], b"").count(b":\n") >= 2)
    await connection.aclose()
    await until(lambda: slots.in_use() == {}, 1)


async def test_a_flood_of_resets_leaves_nothing(hypercorn: ServerProcess, slots: Store) -> None:
    """jetty/jetty.project#829, pgjones/hypercorn#335."""
    connection = await Connection.open(hypercorn)
    for _ in range(100):
        number = await connection.get("/events/?topic=news", "gina")
        await connection.reset(number)
    await until(lambda: slots.in_use() == {}, 2)
    again = await connection.get("/events/?topic=news", "gina")
    assert connection.statuses[again] == 200
    await connection.aclose()
