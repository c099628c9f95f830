"""Notices processes of one checkout that each count slots in their own memory: every one of them gives the whole limit.

Such a process holds the shared lock on `memory.lock`, in the directory of the private server, until it dies; who cannot
get the exclusive one is not alone. A forked child opens the file anew: a lock belongs to what was opened, and that it
shares with its parent. `memory.pids` says who they are; its own lock lets one process at a time look.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .embedded import EmbeddedServerError, server_directory
from .embedded_supervisor import lock_by, open_lock, try_lock

__all__ = ["count_here", "counting"]

MEMORY_LOCK = "memory.lock"
MEMORY_PIDS = "memory.pids"
LOOK_SECONDS = 1.0
PIDS_BYTES = 4096


class _Lock(NamedTuple):
    descriptor: int
    opened: os.stat_result


_locks: dict[Path, _Lock] = {}


def count_here(base: Path) -> list[int] | None:
    """Note that this process counts slots in its memory. Blocks briefly.

    Returns the pids of the others that do, as far as they are known; None when there are none, when this was noted
    before, or where it cannot be seen.
    """
    try:
        directory = server_directory(base)
        if directory in _locks:
            return None
        with _looking(directory) as file:
            return _count(directory, file)
    except (EmbeddedServerError, OSError, TimeoutError):
        return None


def counting(base: Path) -> list[int]:
    """The pids of the processes that count slots in their own memory now; empty where it cannot be seen."""
    try:
        directory = server_directory(base)
        with _looking(directory) as file:
            return _living(file) if _is_anybody_there(directory) else []
    except (EmbeddedServerError, OSError, TimeoutError):
        return []


def _count(directory: Path, file: int) -> list[int] | None:
    descriptor = open_lock(str(directory / MEMORY_LOCK))
    is_alone = try_lock(descriptor, fcntl.LOCK_EX)
    try_lock(descriptor, fcntl.LOCK_SH)  # nobody else has more than that: who looks for more holds the other lock
    _locks[directory] = _Lock(descriptor, os.fstat(descriptor))
    others = [] if is_alone else _living(file)
    os.ftruncate(file, 0)
    os.pwrite(file, " ".join(map(str, [*others, os.getpid()])).encode()[-PIDS_BYTES:], 0)
    return None if is_alone else others


def _is_anybody_there(directory: Path) -> bool:
    descriptor = open_lock(str(directory / MEMORY_LOCK))
    try:
        if not try_lock(descriptor, fcntl.LOCK_EX):
            return True
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _looking(directory: Path) -> Iterator[int]:
    """Be the only process that looks, with `memory.pids` open. Raises `TimeoutError`."""
    file = open_lock(str(directory / MEMORY_PIDS))
    try:
        if not lock_by(file, fcntl.LOCK_EX, time.monotonic() + LOOK_SECONDS):
            raise TimeoutError
        yield file
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a child forked by another thread meanwhile may share the descriptor
        os.close(file)


def _living(file: int) -> list[int]:
    pids = [int(text) for text in os.pread(file, PIDS_BYTES, 0).split() if text.isdigit()]
    return [pid for pid in pids if _is_running(pid)]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def _let_go() -> None:
    """Called in a forked child: it holds nothing of its own yet, and must not keep its parent's lock alive."""
    for lock in _locks.values():
        try:
            is_ours = os.path.samestat(os.fstat(lock.descriptor), lock.opened)  # daemons close what they don't know
        except OSError:
            continue
        if is_ours:
            os.close(lock.descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_let_go)
