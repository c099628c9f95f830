"""A board's blocking connection: batches with a deadline, scripts loaded where the server has forgotten them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis import ConnectionPool, Redis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from sse_limits.slots.base import StoreUnavailable
from sse_limits.slots.scripts import Script

Command = tuple[Any, ...]


class Connection:
    """Exchanges batches with the server. Thread-safe: each exchange takes a connection of a pool."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=None,
            decode_responses=True,
            encoding_errors="replace",
        )
        self._client = Redis(connection_pool=pool)
        self._scripts: dict[str, Script] = {}

    def script(self, script: Script, keys: Sequence[str], args: Sequence[str | int] = ()) -> Command:
        """The command that runs a script."""
        self._scripts[script.sha] = script
        return script.evalsha(keys, args)

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and return their replies. Raises `StoreUnavailable`."""
        if not commands:
            return []
        try:
            replies = self._send(commands)
            if any(isinstance(reply, NoScriptError) for reply in replies):
                for script in list(self._scripts.values()):
                    self._client.script_load(script.source)
                replies = self._send(commands)
        except (RedisError, OSError) as exc:
            raise StoreUnavailable(str(exc)) from exc
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise StoreUnavailable(str(reply)) from reply
        return replies

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._client.connection_pool.disconnect()

    def _send(self, commands: Sequence[Command]) -> list[Any]:
        with self._client.pipeline(transaction=False) as batch:
            for command in commands:
                batch.execute_command(*command)  # type: ignore[no-untyped-call] # redis-py leaves it so
            return batch.execute(raise_on_error=False)
