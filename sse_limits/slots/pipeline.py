"""One Redis connection of one event loop, over which the calls of one loop tick travel together.

Callers get a future each; one task writes what has gathered, reads the replies in order and gathers again. A caller
that is cancelled leaves the exchange alone, so nobody ever reads another caller's reply. Every exchange has a deadline
that covers the connect; when it passes, the connection is dropped and the calls fail with `StoreUnavailable`.
redis-py's own retries and timeouts stay off: with them a stalled server costs seven seconds (redis-py 8.1, measured).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from .base import Latency, StoreUnavailable
from .scripts import Script

# What a broken link raises. RuntimeError is uvloop's word for a transport that is closed already (0.23).
LINK_FAULTS = (OSError, RedisError, RuntimeError)
BATCH = 512
GRACE_SECONDS = 0.02

Command = tuple[Any, ...]  # of str, int and bytes


class Packed(NamedTuple):
    """A command, and as it goes over the wire."""

    command: Command
    wire: bytes | bytearray


def pack(command: Command) -> Packed:
    """Pack a command: in the caller's call, so that what cannot be sent (a lone surrogate) raises there.

    hiredis does it in 2 µs, redis-py's own packer in 30 (redis-py 8.1, measured).
    """
    return Packed(command, pack_command(command))


class Call(NamedTuple):
    """A command on its way, and the future that its caller waits for."""

    packed: Packed
    script: Script | None
    deadline: float
    reply: asyncio.Future[Any]


class Pipeline:
    """A connection with one exchange under way at a time. Owned by one event loop; not thread-safe."""

    def __init__(self, pool: ConnectionPool, timeout_seconds: float) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self.latency = Latency()
        self._connection: AbstractConnection | None = None
        self._waiting: list[Call] = []
        self._task: asyncio.Task[None] | None = None

    def call(self, command: Command) -> asyncio.Future[Any]:
        """Send a command with the next exchange; the future raises `StoreUnavailable` when there is no good answer."""
        return self.send(pack(command))

    def run(self, script: Script, keys: Sequence[str], args: Sequence[str | int | bytes]) -> asyncio.Future[Any]:
        """Run a script with the next exchange; loaded again where the server has forgotten it."""
        return self.send(pack(script.evalsha(keys, args)), script)

    def send(self, packed: Packed, script: Script | None = None) -> asyncio.Future[Any]:
        """Send a command that was packed before: a script's too, which is then loaded again where it is forgotten."""
        loop = asyncio.get_running_loop()
        call = Call(packed, script, loop.time() + self._timeout_seconds, loop.create_future())
        self.enqueue(call)
        return call.reply

    def enqueue(self, call: Call) -> None:
        """Send a call whose caller already waits."""
        self._waiting.append(call)
        if self._task is None:
            # A context of its own: the exchange serves many callers and must not keep one caller's variables alive.
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._exchange_all(), context=contextvars.Context())

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way."""
        return self._task is None

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        """The positions of the keys that one script may touch together: on one server all."""
        return [list(range(len(keys)))] if keys else []

    def each(self, command: Command) -> list[asyncio.Future[Any]]:
        """Send a command to each server."""
        return [self.call(command)]

    def one_each(self, make: Callable[[int], str]) -> list[str]:
        """Keys of which each server has one, out of those that `make` gives for numbers."""
        return [make(0)]

    async def idle(self) -> None:
        """Wait until no call is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Cancel the calls under way and drop the connection."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._disconnect()

    def refused(self, call: Call, exc: ResponseError) -> None:
        """End a call that the server has answered with an error."""
        fail(call.reply, exc)

    def lost(self) -> None:
        """Hear that an exchange has failed; its connection is dropped."""

    async def _exchange_all(self) -> None:
        batch: list[Call] = []
        try:
            while self._waiting:
                batch = [call for call in self._waiting[:BATCH] if not call.reply.done()]
                del self._waiting[:BATCH]
                if batch:
                    await self._exchange_safely(batch)
                    batch = []  # what was sent on has another connection's word to come
        finally:
            self._task = None
            for call in batch + self._waiting:
                if not call.reply.done():
                    call.reply.cancel()

    async def _exchange_safely(self, batch: list[Call]) -> None:
        began = time.perf_counter()  # a loop's own time may be as coarse as a millisecond (uvloop)
        try:
            async with deadline_at(batch[0].deadline):
                forgotten = await self._exchange(batch)
                if forgotten:
                    await self._exchange(forgotten)
            self.latency.note(time.perf_counter() - began)
        except LINK_FAULTS as exc:
            await self._disconnect()
            self.lost()
            if isinstance(exc, TimeoutError):  # who came meanwhile has waited too, and must not wait a second time
                batch = batch + self._waiting
                self._waiting.clear()
            cause = f"no answer within {self._timeout_seconds:g} s" if isinstance(exc, TimeoutError) else str(exc)
            for call in batch:
                if not call.reply.done():
                    call.reply.set_exception(StoreUnavailable(cause))

    async def _exchange(self, batch: list[Call]) -> list[Call]:
        """Write all calls, read all replies; return those whose script the server does not know, as EVAL."""
        connection = self._connection
        if connection is not None and await connection.can_read():  # nothing is owed: the server has hung up
            await self._disconnect()
            connection = None
        if connection is None:
            connection = self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call] # redis-py leaves it so
            await connection.connect()
        wire = b"".join([call.packed.wire for call in batch])
        await connection.send_packed_command(wire, check_health=False)
        forgotten = []
        stale = False
        for call in batch:
            try:
                reply = await connection.read_response(disable_decoding=True)
            except NoScriptError as exc:
                if call.script is None:
                    self.refused(call, exc)
                else:
                    again = pack(call.script.eval(call.packed.command))
                    forgotten.append(Call(again, None, call.deadline, call.reply))
            except ResponseError as exc:
                stale = stale or isinstance(exc, ReadOnlyError)
                self.refused(call, exc)
            else:
                if not call.reply.done():
                    call.reply.set_result(reply)
        if stale:  # a demoted master keeps its connections: the next exchange looks for the new one
            await self._disconnect()
        return forgotten

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


@contextlib.asynccontextmanager
async def deadline_at(when: float) -> AsyncIterator[None]:
    """Raise `TimeoutError` at `when` (loop time), but not before what has come by then was read.

    After this process stood still, a timer and the reply are both due; a plain timeout would always win.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timeout:
        timer = loop.call_at(when, lambda: timeout.reschedule(loop.time() + GRACE_SECONDS))
        try:
            yield
        finally:
            timer.cancel()


def fail(reply: asyncio.Future[Any], exc: Exception) -> None:
    """End a call that the server has refused."""
    if not reply.done():
        reply.set_exception(StoreUnavailable(str(exc)))
