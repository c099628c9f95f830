"""What the store says: the slots that are held, read straight from Valkey, and tokens for those who ask for them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings

from sse_limits.core.token_keys import TokenKeys
from sse_limits.slots import keys, scripts
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint
from tests.slots.servers import Server

# By what a command that runs a script is known: its digest or, where it is loaded, its first line.
DECISIONS = {
    name: (script.sha, script.source.rpartition("\n-- KEYS")[0].rpartition("\n")[2])
    for name, script in ((name, scripts.load(name)) for name in ("acquire", "swap", "peek"))
}


class Store(Server):
    """A Valkey that can be killed, and started again where it was."""

    def restart(self) -> None:
        self._process = subprocess.Popen(self._process.args, stdin=subprocess.DEVNULL)
        self._wait_until_it_answers()

    def in_use(self) -> dict[str, int]:
        """Every slot set that is not empty, with the number of its living leases."""
        seconds, micros = self.client.time()
        now = seconds * 1000 + micros // 1000
        found = {key: self.client.zcount(key, f"({now}", "+inf") for key in self.client.scan_iter("sl:1:slot:*")}
        return {key: number for key, number in found.items() if number}

    def node_id(self, pid: int) -> str:
        """The id under which a process has written its row; empty before it has."""
        found = [node for node in self.client.zrange(keys.nodes(), 0, -1) if node.split(":")[-2] == str(pid)]
        return found[0] if found else ""

    def hide(self, pid: int) -> None:
        """Stop a process, and let its row say that it is in another container: nothing will prove its death."""
        os.kill(pid, signal.SIGSTOP)  # from here on it writes nothing
        row = keys.node(self.node_id(pid))
        if self.client.exists(row):  # without a row there is no proof either
            self.client.hset(row, "pid_namespace", "pid:[1]")

    def immortal_keys(self) -> list[str]:
        """The keys that would outlive their last lease (I3)."""
        return [key for key, ttl in self.ttls().items() if ttl == -1]

    @contextmanager
    def decisions(self) -> Iterator[list[str]]:
        """The scripts of decisions that are run meanwhile, by name; whole when the block is left."""
        asked: list[str] = []
        with self.watched() as commands:
            yield asked
        for command in commands:
            asked += [name for name, marks in DECISIONS.items() if any(mark in command for mark in marks)]


def held(number: int, user: str | None, tenant: str | None = None, **scopes: str) -> dict[str, int]:
    """What `in_use` says while one user holds so many streams; `stream_class` and `address` where they are limited."""
    found = [keys.fleet()]
    if user is not None:
        found.append(keys.user(tenant, user))
    if tenant is not None:
        found.append(keys.tenant(tenant))
    if "stream_class" in scopes:
        found.append(keys.stream_class(tenant, scopes["stream_class"]))
    if "address" in scopes:
        found.append(keys.address(scopes["address"]))
    return dict.fromkeys(found, number) if number else {}


def token(user: str = "gina", tenant: str | None = "globex", **claims: Any) -> str:
    """A stream token as the demo mints it."""
    now = claims.pop("now", None) or epoch_ms()
    token_keys = TokenKeys.from_secrets(claims.pop("secret", settings.SECRET_KEY))
    return mint(token_keys, tenant=tenant, user=user, now=now, **claims)
