"""The demo site as a process of its own, on a store of its own, with streams that a test opens: what the room shows.

The tests read the same store from their own process, as any WSGI worker would.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from sse_limits.slots.embedded import find_server
from tests.servers.harness import ROOT, ServerProcess
from tests.servers.slots import Store, token

WAIT_SECONDS = 15
ADMIN, PASSWORD = "admin", "demo"


class Fleet:
    """One node, its store, and its clients."""

    def __init__(self, directory: Path) -> None:
        binary = find_server()
        assert binary is not None, "the embedded extra brings one"
        self.store = Store("valkey", str(binary))
        self.env = {
            "SSE_LIMITS_REDIS_URL": self.store.url,
            "DATABASE_PATH": str(directory / "db.sqlite3"),
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "DEBUG": "1",
            "SSE_LIMITS_STORE_TIMEOUT_SECONDS": "2",  # a busy machine is no fault of the store
        }
        self._manage("migrate", "-v0")
        self._manage("demo_data")
        self._clients: list[socket.socket] = []
        self.server = ServerProcess("uvicorn", self.env, app="project.asgi:application")
        self.server.wait_until_ready()

    @property
    def url(self) -> str:
        return self.server.url

    def _manage(self, *arguments: str) -> None:
        environ = {**os.environ, **self.env}
        subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=ROOT, env=environ, check=True, capture_output=True
        )

    def open(self, count: int, tenant: str | None, user: str, path: str = "/events/?topic=news") -> list[int]:
        """Open streams and leave them open; the statuses of the answers."""
        return [
            self._open(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{self._bearer(tenant, user)}\r\n")
            for _ in range(count)
        ]

    def open_anonymous(self, count: int) -> list[int]:
        return [self._open("GET /public/events/ HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(count)]

    def _bearer(self, tenant: str | None, user: str) -> str:
        return f"Authorization: Bearer {token(user, tenant)}\r\n"

    def _open(self, head: str) -> int:
        client = self.server.connect()
        self._clients.append(client)
        client.sendall(head.encode())
        return int(client.recv(4096, socket.MSG_PEEK).split()[1])

    def leave(self) -> None:
        """Every client goes, and nothing is held any more."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        wait_until(lambda: not self.store.in_use())

    def end(self) -> None:
        for client in self._clients:
            client.close()
        try:
            self.server.stop()
        finally:
            self.store.end()


@contextmanager
def signed_in(server: ServerProcess) -> Iterator[httpx.Client]:
    """Somebody who is signed in at a server's own site."""
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, headers={"Referer": server.url}) as found:
        form = found.get("/admin/login/").text
        csrf = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)[0]
        named = {"username": ADMIN, "password": PASSWORD, "csrfmiddlewaretoken": csrf}
        assert found.post("/admin/login/", data=named).status_code == 302
        yield found


def wait_until(holds: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)
