"""Blocking exchanges with wherever a URL points: for pages, commands and `publish()` in synchronous code.

Calls travel together, one batch per server; a script that the server has forgotten is loaded again. On a Cluster each
call goes to the master of its key; what is sent on is followed, and after a fault the map of masters is read anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from redis import ConnectionPool
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError, TryAgainError

from .base import StoreUnavailable
from .hash_slots import Owners, by_hash_slot, hash_slot, key_of, nobody, read_owners
from .scripts import Script
from .topology import Address, Kind, parse

FOLLOWED = 5

Command = tuple[Any, ...]


class Blocking:
    """Exchanges batches of commands. Thread-safe: each exchange takes connections of a pool."""

    def __init__(self, url: str, timeout_seconds: float, **options: Any) -> None:
        self._topology = parse(url)
        self._is_cluster = self._topology.kind is Kind.CLUSTER
        self._timeout_seconds = timeout_seconds
        self._options = options
        self._pools: dict[Address | None, ConnectionPool] = {}
        self._owners: Owners = nobody()
        self._is_stale = self._is_cluster
        self._lock = threading.Lock()

    def groups(self, keys: Sequence[str]) -> list[list[int]]:
        """The positions of the keys that one script may touch together."""
        if self._is_cluster:
            return list(by_hash_slot(keys).values())
        return [list(range(len(keys)))] if keys else []

    def exchange(self, commands: Sequence[Command], scripts: Mapping[str, Script]) -> list[Any]:
        """Send commands, those of one server together, and return their replies. Raises `StoreUnavailable`.

        `scripts` by their digest: what a server may have forgotten. The order holds among calls of one server.
        """
        try:
            if self._is_stale:
                self._read_owners()
            replies = self._exchange(commands, scripts)
        except (RedisError, OSError) as exc:
            self._is_stale = self._is_cluster
            raise StoreUnavailable(str(exc)) from exc
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise StoreUnavailable(str(reply)) from reply
        return replies

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            for pool in self._pools.values():
                pool.close()

    def _exchange(self, commands: Sequence[Command], scripts: Mapping[str, Script]) -> list[Any]:
        replies: list[Any] = [None] * len(commands)
        missing = list(range(len(commands)))
        for _ in range(FOLLOWED):
            for address, positions in self._by_server(commands, missing).items():
                found = self._send(address, [commands[at] for at in positions], scripts)
                for at, reply in zip(positions, found, strict=True):
                    if address is not None and isinstance(reply, AskError) and not reply.host:  # MOVED is one too
                        reply.host = address[0]  # a server that does not know the other's name means its own
                    replies[at] = self._ask(reply, commands[at], scripts) if type(reply) is AskError else reply
            missing = [at for at in missing if self._is_elsewhere(replies[at])]
            if not missing:
                break
        return replies

    def _by_server(self, commands: Sequence[Command], missing: Sequence[int]) -> dict[Address | None, list[int]]:
        if not self._is_cluster:
            return {None: list(missing)}
        found: dict[Address | None, list[int]] = {}
        for at in missing:
            found.setdefault(self._owner(commands[at], commands), []).append(at)
        return found

    def _owner(self, command: Command, commands: Sequence[Command]) -> Address:
        """The master of a command's key; what has none goes where the first one with a key goes."""
        key = key_of(command) or next(filter(None, map(key_of, commands)), "")
        owner = self._owners[hash_slot(key)]
        if owner is None:
            raise RedisError("no server of the Cluster serves this hash slot")
        return owner

    def _is_elsewhere(self, reply: Any) -> bool:
        if isinstance(reply, MovedError):
            self._owners[reply.slot_id] = (reply.host, reply.port)
            self._is_stale = True
        return isinstance(reply, (MovedError, TryAgainError))

    def _ask(self, asked: AskError, command: Command, scripts: Mapping[str, Script]) -> Any:
        """What ASKING allows holds for one command, and an unknown script would need a second one: as EVAL."""
        script = scripts.get(command[1]) if command[0] == "EVALSHA" else None
        _, reply = self._send((asked.host, asked.port), [("ASKING",), script.eval(command) if script else command], {})
        return reply

    def _send(self, address: Address | None, commands: Sequence[Command], scripts: Mapping[str, Script]) -> list[Any]:
        """Exchange a batch with one server; errors of single commands stand among the replies."""
        pool = self._pool(address)
        connection = pool.get_connection()
        try:
            replies = self._talk(connection, commands)
            forgotten = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if forgotten:  # these calls have not run
                again = [scripts[commands[at][1]].eval(commands[at]) for at in forgotten]
                for at, reply in zip(forgotten, self._talk(connection, again), strict=True):
                    replies[at] = reply
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call] # what has not been read must not be taken for another caller's answer
            raise
        finally:
            pool.release(connection)
        return replies

    def _talk(self, connection: Any, commands: Sequence[Command]) -> list[Any]:
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [read(connection) for _ in commands]

    def _pool(self, address: Address | None) -> ConnectionPool:
        with self._lock:
            found = self._pools.get(address)
            if found is None:
                found = self._topology.blocking_pool(self._timeout_seconds, address, **self._options)
                self._pools[address] = found
            return found

    def _read_owners(self) -> None:
        """Ask one server after the other who serves what; raises the last one's fault."""
        known = sorted({owner for owner in self._owners if owner is not None})
        faults: list[Exception] = []
        for address in dict.fromkeys([*self._topology.addresses, *known]):
            try:
                [reply] = self._send(address, [("CLUSTER", "SLOTS")], {})
                if isinstance(reply, ResponseError):
                    raise reply
            except (RedisError, OSError) as exc:
                faults.append(exc)
            else:
                self._owners, self._is_stale = read_owners(reply, address), False
                return
        raise faults[-1]


def read(connection: Any) -> Any:
    """One reply; an error of a single command is one too."""
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc
