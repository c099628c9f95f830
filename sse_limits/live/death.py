"""Whether a node is provably dead: the judgement by which its slots may be taken back before their leases end. Pure.

Proof is a fact, never a time: a row that is old, or is not there, proves nothing. Where there is no proof the lease
frees the slots.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class Incarnation(NamedTuple):
    """Which process a node is or was, as its row says. Empty and 0 where it could not tell."""

    boot: str
    pid_namespace: str
    pid: int
    start_ticks: int


class Verdict(Enum):
    """What is known of a node's process."""

    DEAD = "dead"
    ALIVE = "alive"
    """It runs, or nothing proves yet that it does not."""
    UNKNOWN = "unknown"
    """It is out of sight: nothing will ever prove its death here."""


IsRunning = Callable[[int, int], bool | None]
"""Whether the process with this pid and start runs; None where that cannot be seen."""


def judge(
    node: str, was: Incarnation, me: Incarnation, is_running: IsRunning, exclusive_name: str | None = None
) -> Verdict:
    """Judge a node of the same store by its id and row.

    With `exclusive_name` the operator promises that only one process at a time has this name: another one that had it
    is dead, unless it is seen running, which breaks the promise.
    """
    if was == me:
        return Verdict.ALIVE
    found = is_running(was.pid, was.start_ticks) if is_in_sight(was, me) else None
    if is_named(node, exclusive_name):
        return Verdict.ALIVE if found else Verdict.DEAD
    if not is_in_sight(was, me):
        return Verdict.UNKNOWN
    return Verdict.DEAD if found is False else Verdict.ALIVE


def is_in_sight(was: Incarnation, me: Incarnation) -> bool:
    """Whether a pid means the same process to both: the same boot of one machine, the same pid namespace."""
    is_known = bool(was.boot and was.pid_namespace and was.pid > 0 and was.start_ticks > 0)
    return is_known and (was.boot, was.pid_namespace) == (me.boot, me.pid_namespace)


def is_named(node: str, name: str | None) -> bool:
    """Whether a node id, `<name>:<pid>:<8 random>`, bears this name."""
    return name is not None and node.rsplit(":", 2)[0] == name
