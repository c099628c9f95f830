"""Connections to a Redis Cluster: one pipeline per master and purpose, and the map of who serves which hash slot.

The map is read when it is first needed, and again when a call was sent on (MOVED), a connection was lost or nobody is
known to serve a hash slot. A call that is sent on keeps its future and its deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as ConnectionFault

from .base import Latency, StoreUnavailable
from .hash_slots import by_hash_slot, hash_slot, key_of, nobody, read_owners
from .pipeline import LINK_FAULTS, Call, Command, Packed, Pipeline, fail, pack
from .scripts import Script
from .topology import Address, Topology

READ_SECONDS = 0.1  # a server that does not answer must leave a decision time to ask the next one
READ_AGAIN_SECONDS = 0.05
KEYS_TRIED = 1000
TRY_AGAIN_SECONDS = 0.01
SILENT = f"no answer within {READ_SECONDS:g} s"
UNSERVED = "no server of the Cluster serves this hash slot"

log = logging.getLogger("sse_limits.slots.cluster_pipeline")


class Cluster:
    """Who serves which hash slot, and connections to each. Owned by one event loop."""

    def __init__(self, topology: Topology) -> None:
        self.owners = nobody()
        self._topology = topology
        self._pools: dict[Address, ConnectionPool] = {}
        self._turn = itertools.count()
        self._pipelines: list[ClusterPipeline] = []
        self._is_stale = False
        self._reading: asyncio.Task[None] | None = None

    def pipeline(self, timeout_seconds: float) -> ClusterPipeline:
        """Connections of their own to every master."""
        found = ClusterPipeline(self, timeout_seconds)
        self._pipelines.append(found)
        return found

    def subscriber(self, key: str) -> ConnectionPool:
        """Connections to the master of a key: a message is heard on all, but counted as received on its own only."""
        return self._topology.pool(choose=lambda: self.address_of(key))

    def pool(self, address: Address) -> ConnectionPool:
        """Connections to one server."""
        if address not in self._pools:
            self._pools[address] = self._topology.pool(address)
        return self._pools[address]

    def masters(self) -> set[Address]:
        """Those that serve a hash slot."""
        return {owner for owner in self.owners if owner is not None}

    async def address_of(self, key: str) -> Address:
        """The master of a key, read anew. Raises what redis-py does when there is none."""
        causes = await self._read()
        owner = self.owners[hash_slot(key)]
        if owner is None:
            raise ConnectionFault(causes[-1] if causes else UNSERVED)
        return owner

    def refresh(self) -> None:
        """Read the map again, soon."""
        self._is_stale = True
        if self._reading is None:
            loop = asyncio.get_running_loop()
            self._reading = loop.create_task(self._keep_up(), context=contextvars.Context())

    async def aclose(self) -> None:
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _keep_up(self) -> None:
        try:
            while self._is_stale:
                self._is_stale = False
                causes = await self._read()
                if SILENT in causes:  # a busy machine, or a lost packet: those who wait have deadlines of their own
                    self._is_stale = any(pipeline.is_waiting for pipeline in self._pipelines)
                elif causes:
                    for pipeline in self._pipelines:
                        pipeline.give_up(causes[-1])
                await asyncio.sleep(READ_AGAIN_SECONDS)
        finally:
            self._reading = None

    async def _read(self) -> list[str]:
        """Ask one server after the other, beginning with another one each time; why nobody has answered, if so."""
        candidates = list(dict.fromkeys([*sorted(self.masters()), *self._topology.addresses]))
        first = next(self._turn)
        causes = []
        for at in range(len(candidates)):
            try:
                self.owners = await self._ask(candidates[(first + at) % len(candidates)])
            except TimeoutError:
                causes.append(SILENT)
            except (*LINK_FAULTS, ValueError) as exc:
                causes.append(str(exc))
            else:
                for pipeline in self._pipelines:
                    pipeline.resume()
                return []
        log.debug("no server of the Cluster has told who serves what: %s", causes)
        return causes

    async def _ask(self, address: Address) -> list[Address | None]:
        connection = self.pool(address).make_connection()  # type: ignore[no-untyped-call] # redis-py leaves it so
        try:
            async with asyncio.timeout(READ_SECONDS):
                await connection.connect()
                await connection.send_command("CLUSTER", "SLOTS")
                return read_owners(await connection.read_response(disable_decoding=True), address)
        finally:
            await connection.disconnect(nowait=True)


class ClusterPipeline:
    """What `Pipeline` is for one server, for all masters of a Cluster. All keys of a call share a hash slot."""

    def __init__(self, cluster: Cluster, timeout_seconds: float) -> None:
        self.latency = Latency()
        self._cluster = cluster
        self._timeout_seconds = timeout_seconds
        self._pipelines: dict[Address | None, _MasterPipeline] = {}
        self._waiting: list[Call] = []  # for the map
        self._retiring: set[asyncio.Task[None]] = set()

    def call(self, command: Command) -> asyncio.Future[Any]:
        """Send a command to the master of its key; the future raises `StoreUnavailable` without a good answer."""
        return self.send(pack(command))

    def run(self, script: Script, keys: Sequence[str], args: Sequence[str | int | bytes]) -> asyncio.Future[Any]:
        """Run a script on the master of its keys."""
        packed = pack(script.evalsha(keys, args))
        owner = self._cluster.owners[hash_slot(keys[0])]
        return self._wait(packed, script) if owner is None else self._pipeline(owner).send(packed, script)

    def send(self, packed: Packed, script: Script | None = None) -> asyncio.Future[Any]:
        """Send a command that was packed before."""
        owner = self._cluster.owners[hash_slot(key_of(packed.command))]
        return self._wait(packed, script) if owner is None else self._pipeline(owner).send(packed, script)

    def _wait(self, packed: Packed, script: Script | None) -> asyncio.Future[Any]:
        """Keep a call until the map has been read."""
        loop = asyncio.get_running_loop()
        call = Call(packed, script, loop.time() + self._timeout_seconds, loop.create_future())
        self._waiting.append(call)
        self._limit(call)
        self._cluster.refresh()
        return call.reply

    @property
    def is_waiting(self) -> bool:
        """Whether a call waits for the map."""
        return any(not call.reply.done() for call in self._waiting)

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        """The positions of the keys that one script may touch together: those of one hash slot."""
        return list(by_hash_slot(keys).values())

    def each(self, command: Command) -> list[asyncio.Future[Any]]:
        """Send a command to each master; to one as long as they are not known."""
        masters = sorted(self._cluster.masters())
        return [self._pipeline(address).call(command) for address in masters] or [self.call(command)]

    def one_each(self, make: Callable[[int], str]) -> list[str]:
        """Keys of which each master has one, out of those that `make` gives for numbers."""
        found: dict[Address, str] = {}
        masters = self._cluster.masters()
        for number in range(KEYS_TRIED):
            owner = self._cluster.owners[hash_slot(make(number))]
            if owner is not None:
                found.setdefault(owner, make(number))
            if len(found) == len(masters):
                break
        return list(found.values())

    async def idle(self) -> None:
        """Wait until no call is under way."""
        for pipeline in list(self._pipelines.values()):
            await pipeline.idle()

    async def aclose(self) -> None:
        """Cancel the calls under way and drop the connections."""
        for call in self._waiting:
            call.reply.cancel()
        for pipeline in self._pipelines.values():
            await pipeline.aclose()
        if self._retiring:
            await asyncio.wait(self._retiring)

    def resume(self) -> None:
        """Send what has waited for the map, and drop the connections to servers that are no masters any more."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            owner = self._cluster.owners[hash_slot(key_of(call.packed.command))]
            if owner is None:
                unavailable(call.reply, UNSERVED)
            elif not call.reply.done():
                self._resend(owner, call)
        for address in self._pipelines.keys() - self._cluster.masters():
            if self._pipelines[address].is_idle:
                closing = asyncio.get_running_loop().create_task(self._pipelines.pop(address).aclose())
                self._retiring.add(closing)
                closing.add_done_callback(self._retiring.discard)

    def give_up(self, cause: str) -> None:
        """End what has waited for the map in vain."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            unavailable(call.reply, cause)

    def send_on(self, address: Address, call: Call, exc: ResponseError) -> None:
        """Follow where a master has sent a call, or end it."""
        match exc:
            case MovedError():
                owner = (exc.host or address[0], exc.port)
                self._cluster.owners[exc.slot_id] = owner
                self._cluster.refresh()
                self._resend(owner, call)
            case AskError():
                # As EVAL: what ASKING allows holds for one command, and an unknown script would need a second one.
                packed = call.packed if call.script is None else pack(call.script.eval(call.packed.command))
                target = (exc.host or address[0], exc.port)
                asking = self._pipeline(target).call(("ASKING",))
                asking.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._resend(target, call._replace(packed=packed, script=None))
            case TryAgainError():  # its keys are being moved, one after the other
                loop = asyncio.get_running_loop()
                loop.call_later(TRY_AGAIN_SECONDS, self._resend, address, call)
            case _:
                if isinstance(exc, ClusterDownError):
                    self._cluster.refresh()
                fail(call.reply, exc)

    def lost(self) -> None:
        """A connection was lost: perhaps another server has taken over."""
        self._cluster.refresh()

    def _resend(self, owner: Address, call: Call) -> None:
        """Send a call elsewhere. Its own deadline still holds, and is not that of the others in the exchange."""
        if not call.reply.done():
            self._limit(call)
            deadline = asyncio.get_running_loop().time() + self._timeout_seconds
            self._pipeline(owner).enqueue(call._replace(deadline=deadline))

    def _limit(self, call: Call) -> None:
        cause = f"no answer within {self._timeout_seconds:g} s"
        asyncio.get_running_loop().call_at(call.deadline, unavailable, call.reply, cause)

    def _pipeline(self, address: Address) -> _MasterPipeline:
        found = self._pipelines.get(address)
        if found is None:
            found = _MasterPipeline(self, address, self._cluster.pool(address), self._timeout_seconds)
            found.latency = self.latency
            self._pipelines[address] = found
        return found


class _MasterPipeline(Pipeline):
    """The connection to one master; what it sends away goes back to the Cluster's."""

    def __init__(self, whole: ClusterPipeline, address: Address, pool: ConnectionPool, timeout_seconds: float) -> None:
        super().__init__(pool, timeout_seconds)
        self._whole = whole
        self._address = address

    def refused(self, call: Call, exc: ResponseError) -> None:
        """Follow a redirection; end the call otherwise."""
        self._whole.send_on(self._address, call, exc)

    def lost(self) -> None:
        """Let the map be read again."""
        self._whole.lost()


def unavailable(reply: asyncio.Future[Any], cause: str) -> None:
    """End a call that nobody has answered."""
    if not reply.done():
        reply.set_exception(StoreUnavailable(cause))
