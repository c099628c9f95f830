"""The small process that runs the private Valkey and ends it when nobody uses it any more.

Started by file path under `python -I -S`, so nothing but the standard library here; what both sides share (file names,
locks) lives here too and `embedded.py`, which decides on directory and binary, imports it. The supervisor holds
`supervisor.lock` for its life and alone starts, ends and unlinks things. It polls for the exclusive lock on
`users.lock`: users hold it shared, so getting it means that none is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

__all__ = ["LOG", "SOCKET", "START_LOCK", "SUPERVISOR_LOCK", "USERS_LOCK", "lock_by", "main", "open_lock", "try_lock"]

SOCKET = "valkey.sock"
LOG = "valkey.log"
USERS_LOCK = "users.lock"
START_LOCK = "start.lock"
SUPERVISOR_LOCK = "supervisor.lock"

LINGER_SECONDS = 1.0
WATCH_SECONDS = 0.1
POLL_SECONDS = 0.01
START_POLL_SECONDS = 0.001
SOCKET_SECONDS = 5.0
END_SECONDS = 2.0
LOG_BYTES = 256 * 1024
FRESH_SECONDS = 3600.0


def open_lock(path: str) -> int:
    """Open the lock file at *path*, creating it; the descriptor survives a fork and is closed by an exec."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def try_lock(descriptor: int, operation: int) -> bool:
    """Take the flock *operation* on *descriptor* if it is free now."""
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_by(descriptor: int, operation: int, deadline: float) -> bool:
    """Take the flock *operation* on *descriptor*, trying until the monotonic *deadline*."""
    while not try_lock(descriptor, operation):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def main(arguments: Sequence[str]) -> int:
    """Become the supervisor of the directory in *arguments*, in the background; the caller's child ends at once.

    `supervisor.lock` is taken before the fork, so when this returns it is held exactly as long as the supervisor lives.
    """
    directory, binary = arguments
    lock = open_lock(os.path.join(directory, SUPERVISOR_LOCK))
    if not lock_by(lock, fcntl.LOCK_EX, time.monotonic() + END_SECONDS):
        return 0  # another supervisor is at work: a starter was killed between launching it and seeing it answer
    socket_path = os.path.join(directory, SOCKET)
    _dismiss_orphan(socket_path)
    if os.fork():
        return 0
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # for people and tests; nothing relies on it
    _run(directory, binary, socket_path)
    return 0


def _dismiss_orphan(socket_path: str) -> None:
    """End a server whose supervisor was killed, by its socket (its pid is not ours to trust), and unlink the socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(END_SECONDS)
            client.connect(socket_path)
            client.sendall(b"SHUTDOWN NOSAVE\r\n")
            client.recv(64)  # returns at the end of the connection, which is the end of the server
    except OSError:
        pass  # the usual case: nobody listens
    _unlink(socket_path)


def _run(directory: str, binary: str, socket_path: str) -> None:
    """Run the server until an order, its own end or the last user's, then leave nothing behind that answers."""
    orders = _listen_for_orders()
    users = open_lock(os.path.join(directory, USERS_LOCK))  # kept until this process is gone
    _say(f"starting {binary}")
    try:
        server = _start(directory, binary, socket_path)
    except OSError as error:
        _say(f"cannot run {binary}: {error}")
        return
    try:
        _say(_watch(server, directory, users, socket_path, orders))
    finally:
        _end(server)
        _unlink(socket_path)


def _listen_for_orders() -> list[int]:
    """Return a list that grows when this process is asked to end; undo what the starter's signal set-up left us."""
    orders: list[int] = []
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: orders.append(received))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return orders


def _start(directory: str, binary: str, socket_path: str) -> subprocess.Popen[bytes]:
    """Start the server on a Unix socket only, without persistence, writing its log to our own output."""
    options = {
        "port": "0",
        "unixsocket": socket_path,
        "unixsocketperm": "700",
        "dir": directory,
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "",
        "loglevel": "warning",
    }
    command = [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]
    return subprocess.Popen(  # noqa: S603 - the program that embedded.py chose
        command, cwd=directory, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent()
    )


def _die_with_parent() -> Callable[[], None] | None:
    """Return what makes a child die with this process where the system can do that (Linux); see `_dismiss_orphan`."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        libc = ctypes.CDLL(None)
    except (ImportError, OSError):  # a Python built without ctypes
        return None
    set_parent_death_signal = 1

    def ask_kernel() -> None:
        libc.prctl(set_parent_death_signal, signal.SIGKILL)

    return ask_kernel


def _watch(server: subprocess.Popen[bytes], directory: str, users: int, socket_path: str, orders: list[int]) -> str:
    """Return why the server has to end, once it has to; if nobody is left, with the exclusive lock on *users*."""
    users_path = os.path.join(directory, USERS_LOCK)
    socket_file: tuple[int, int] | None = None
    idle_since: float | None = None
    fresh_until = 0.0
    socket_due_at = time.monotonic() + SOCKET_SECONDS
    while not orders:
        time.sleep(WATCH_SECONDS if socket_file else START_POLL_SECONDS)
        if (status := server.poll()) is not None:
            return f"the server ended by itself with status {status}"
        current = _identity(socket_path)
        if (socket_file and current != socket_file) or (not current and time.monotonic() >= socket_due_at):
            return "the socket is gone or never came: nobody can reach this server"
        socket_file = current
        _bound_log()
        if time.monotonic() >= fresh_until:
            _keep_fresh(directory)
            fresh_until = time.monotonic() + FRESH_SECONDS
        if not try_lock(users, fcntl.LOCK_EX):
            idle_since = None
        elif _identity(users_path) != _identity(users):  # somebody tidied up: newcomers lock the new file
            os.dup2(replacement := open_lock(users_path), users, inheritable=False)
            os.close(replacement)
            idle_since = None
        else:
            idle_since = idle_since or time.monotonic()
            if time.monotonic() - idle_since >= LINGER_SECONDS:
                return "no user left"
            fcntl.flock(users, fcntl.LOCK_UN)
    return f"ordered to end by signal {orders[0]}"


def _identity(file: str | int) -> tuple[int, int] | None:
    """Return which file a path or descriptor leads to, None if to none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _end(server: subprocess.Popen[bytes]) -> None:
    """End the server that this process started, gently and then for certain; nothing in it needs saving."""
    server.terminate()
    try:
        server.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _unlink(path: str) -> None:
    """Remove the file at *path* if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _bound_log() -> None:
    """Empty the log (our own output, opened for appending) when it has grown too long."""
    if os.fstat(sys.stdout.fileno()).st_size > LOG_BYTES:
        os.ftruncate(sys.stdout.fileno(), 0)


def _keep_fresh(directory: str) -> None:
    """Mark our files as used: temporary directories are swept of files that nobody touched for some days."""
    for entry in os.scandir(directory):
        os.utime(entry.path)


def _say(line: str) -> None:
    """Write one line to the log."""
    print(f"supervisor {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S')}: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
