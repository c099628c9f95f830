"""What this process is: the facts by which a node's row, and the proof of its death, tell it from another."""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

from .death import Incarnation

# In the order of asking: Django imports daphne wherever it is an installed app, whatever the server is.
SERVERS = {
    "uvicorn": "uvicorn.server",
    "hypercorn": "hypercorn.asyncio",
    "granian": "granian._granian",
    "daphne": "daphne.server",
}
PROC = Path("/proc")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
KIBIBYTE = 1024


def server() -> str:
    """The name and version of the ASGI server that this process runs, by what it has loaded."""
    for name, module in SERVERS.items():
        if module in sys.modules:
            found = getattr(sys.modules[name], "__version__", None)  # else by reading files: once
            return f"{name} {found or _version(name)}".strip()
    return ""


@lru_cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def host() -> str:
    """The name of this machine."""
    return socket.gethostname()


def boot_id() -> str:
    """What tells one boot of this machine from another; empty where nothing does."""
    return _text(PROC / "sys/kernel/random/boot_id")


def pid_namespace() -> str:
    """In which namespace this process's pid is meant; empty where there is none."""
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""


def start_ticks() -> int:
    """When this process started, in ticks since boot: with its pid, what names it. 0 where it is not known."""
    found = _stat("self")
    return found.start_ticks if found is not None else 0


def incarnation() -> Incarnation:
    """Which process this is."""
    return Incarnation(boot_id(), pid_namespace(), pid(), start_ticks())


def is_running(pid: int, start_ticks: int) -> bool | None:
    """Whether the process with this pid, in our namespace, and this start runs; None where that cannot be seen.

    The signal 0 tells whether there is one: /proc may hide the processes of other users. A zombie has ended: nothing
    of it is left but its exit status.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    except OverflowError:
        return None
    found = _stat(str(pid))
    if found is None or not _is_proc_ours():
        return None
    return found.start_ticks == start_ticks and not found.is_zombie


class _Stat(NamedTuple):
    start_ticks: int
    is_zombie: bool


def _stat(process: str) -> _Stat | None:
    fields = _text(PROC / process / "stat").rpartition(")")[2].split()  # from the third on: a name may hold anything
    if len(fields) < 20:
        return None
    has_threads = int(fields[17]) > 1  # then only the first thread has ended
    return _Stat(int(fields[19]), fields[0] in ("Z", "X") and not has_threads)


def _is_proc_ours() -> bool:
    """Whether the pids in /proc are those of our namespace: containers may see their host's."""
    try:
        return os.readlink(PROC / "self") == str(os.getpid())
    except OSError:
        return False


def pid() -> int:
    """This process's number, in its namespace."""
    return os.getpid()


def memory_bytes() -> int:
    """How much memory this process has resident; where there is no /proc, the most that it ever had."""
    pages = _text(PROC / "self/statm").split()
    return int(pages[1]) * PAGE_BYTES if len(pages) > 1 else getrusage(RUSAGE_SELF).ru_maxrss * KIBIBYTE


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
