"""Real ASGI servers for the tests: one process each, on loopback or a Unix socket, ended by its own pid.

A new server is one more row of `KINDS`, started as `manage.py serve` starts it; where that is not the server's own
command, `STOCK` has that one too. What holds whatever the server is tested on uvicorn only. What a process logs is read
after each test: nothing above INFO and no traceback may be in it, unless the test has said so beforehand.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.servers.apps:application"
READY_SECONDS = 60
CONNECT_SECONDS = 5
STOP_SECONDS = 10
NOWHERE = "/proc/no/such/place"  # the database of servers that need none
FAULT = re.compile(
    r"\b(WARNING|ERROR|CRITICAL)\b|Traceback|\bException\b|never (retrieved|awaited)|was destroyed|Warning: "
)
# Django itself warns of paths and methods that it does not know.
HARMLESS = re.compile(r"WARNING django\.request: (Bad Request|Not Found|Method Not Allowed)")

# Short times, so that a whole life of a lease fits into a test.
TEST_TIMES = {
    "SSE_LIMITS_LEASE_SECONDS": "3",
    "SSE_LIMITS_HEARTBEAT_SECONDS": "1",
    "SSE_LIMITS_KEEPALIVE_SECONDS": "0.5",
    "SSE_LIMITS_CLEANUP_SECONDS": "1",
}


class Kind(NamedTuple):
    """How one ASGI server is started, and what it says of itself that is no fault of ours."""

    command: Callable[[str, str], list[str]]
    noise: str = "$^"


def _uvicorn(app: str, bind: str) -> list[str]:
    host, _, port = bind.rpartition(":")
    where = ["--host", host, "--port", port] if host else ["--uds", port]
    return ["-m", "uvicorn", app, *where, "--no-proxy-headers", "--timeout-graceful-shutdown", "2", "--no-access-log"]


def _daphne(app: str, bind: str) -> list[str]:
    host, _, port = bind.rpartition(":")
    where = ["-b", host, "-p", port] if host else ["-u", port]
    return ["-m", "sse_limits.streams.daphne", *where, app]


def _granian(app: str, bind: str) -> list[str]:
    return ["-m", "project.granian_server", "--bind", bind if ":" in bind else f"unix:{bind}", app]


def _hypercorn(app: str, bind: str) -> list[str]:
    return ["-m", "project.hypercorn_server", "--bind", bind if ":" in bind else f"unix:{bind}", app]


KINDS = {
    "uvicorn": Kind(_uvicorn),
    "daphne": Kind(_daphne),
    # granian 2.8.9: a worker that has had hundreds of connections sometimes waits for one that has long ended.
    "granian": Kind(_granian, noise=r"Killing worker-\d+ after it refused"),
    # hypercorn 0.18: each connection that is cancelled at the end leaves a traceback of asyncio (Python 3.11), and it
    # writes to a connection that is gone until it has read the end of it.
    "hypercorn": Kind(
        _hypercorn,
        noise=r"StreamReaderProtocol\.connection_made|^Traceback|CancelledError|asyncio: socket\.send\(\) raised",
    ),
}


def _stock_granian(app: str, bind: str) -> list[str]:
    host, _, port = bind.rpartition(":")
    return ["-m", "granian", "--interface", "asgi", "--workers-kill-timeout", "4", "--host", host, "--port", port, app]


def _stock_hypercorn(app: str, bind: str) -> list[str]:
    return ["-m", "hypercorn", "--graceful-timeout", "3", "--bind", bind, app]


# The servers' own commands, where `KINDS` has ours; how they stop is all that differs.
STOCK = {
    "stock granian": Kind(_stock_granian, noise=r"sse_limits\.W005"),  # what their own commands lack, they are told
    "stock hypercorn": Kind(_stock_hypercorn, noise=rf"{KINDS['hypercorn'].noise}|sse_limits\.W007"),
}


class ServerProcess:
    """One running server. `address` is "host:port", or the path of its Unix socket.

    With `workers` it is `manage.py serve` that runs it, and the demo's app that it serves.
    """

    def __init__(
        self, name: str, env: Mapping[str, str], *, uds: bool = False, app: str = APP, workers: int | None = None
    ) -> None:
        self.name = name
        self.kind = {**KINDS, **STOCK}[name]
        self._directory = Path(tempfile.mkdtemp(prefix="sl-server-"))
        self.address = str(self._directory / "s") if uds else f"127.0.0.1:{free_port()}"
        self._log = self._directory / "log"
        self._read_to = 0
        self._expected: list[re.Pattern[str]] = []
        command = self.kind.command(app, self.address) if workers is None else self._serve(workers)
        if env.get("DATABASE_PATH") == NOWHERE:
            self.expect("the database does not answer")
        environ = {**os.environ, **TEST_TIMES, "DEBUG": "0", "DJANGO_SETTINGS_MODULE": "tests.servers.settings", **env}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _serve(self, workers: int) -> list[str]:
        port = self.address.rpartition(":")[2]
        return ["manage.py", "serve", "--server", self.name, "--port", port, "--workers", str(workers)]

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_ready(self) -> None:
        """Wait until it answers; a listener that its workers share accepts before they do."""
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            assert self.process.poll() is None, f"{self.name} ended while starting:\n{self.log()}"
            assert time.monotonic() < deadline, f"{self.name} did not start:\n{self.log()}"
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with self.connect() as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return connection.recv(1) != b""
        except OSError:
            return False

    def connect(self) -> socket.socket:
        """Open a blocking connection, whose calls time out."""
        host, _, port = self.address.rpartition(":")
        if host:
            return socket.create_connection((host, int(port)), CONNECT_SECONDS)
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(CONNECT_SECONDS)
        try:
            found.connect(self.address)
        except OSError:
            found.close()
            raise
        return found

    def stop(self) -> None:
        """End it as a service manager does, and look at its last words; the log of a fault is kept."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self._wait()
        self.check_log()
        shutil.rmtree(self._directory)

    def pids(self) -> list[int]:
        """Its own, then those of its workers, if it has some."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]

    def kill(self) -> None:
        """End it, and the workers that it may have, without a chance to clean up."""
        workers = [os.pidfd_open(child) for child in self.pids()[1:]]
        self.process.kill()
        self.process.wait()
        for worker in workers:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
            select.select([worker], [], [])  # until it is dead, and its sockets are closed
            os.close(worker)

    def _wait(self) -> None:
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {STOP_SECONDS} s:\n{self.log()}") from None

    def log(self) -> str:
        """Everything it has said."""
        return self._log.read_text(errors="replace")

    def expect(self, *patterns: str) -> None:
        """Lines that match are no fault from now on."""
        self._expected += [re.compile(pattern) for pattern in patterns]

    def check_log(self) -> None:
        """Fail if what was logged since the last look tells of a fault."""
        said = self.log()[self._read_to :]
        self._read_to += len(said)
        faults = [line for line in said.splitlines() if FAULT.search(line) and not self._is_expected(line)]
        assert not faults, f"{self.name} logged:\n{said}"

    def _is_expected(self, line: str) -> bool:
        if HARMLESS.search(line) or re.search(self.kind.noise, line):
            return True
        return any(pattern.search(line) for pattern in self._expected)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
