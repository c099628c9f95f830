"""A board's blocking connection: batches with a deadline, and the scripts that are used over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sse_limits.slots.blocking import Blocking, Command
from sse_limits.slots.scripts import Script


class Connection:
    """Exchanges batches with the servers. Thread-safe."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._servers = Blocking(url, timeout_seconds, decode_responses=True, encoding_errors="replace")
        self._scripts: dict[str, Script] = {}
        self.groups = self._servers.groups
        self.close = self._servers.close

    def script(self, script: Script, keys: Sequence[str], args: Sequence[str | int] = ()) -> Command:
        """The command that runs a script."""
        self._scripts[script.sha] = script
        return script.evalsha(keys, args)

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together and return their replies. Raises `StoreUnavailable`."""
        return self._servers.exchange(commands, self._scripts) if commands else []
