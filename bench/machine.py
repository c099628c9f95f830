"""What the kernel says about a process: the CPU time it has used and the memory that is its own. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))

SERVER_CORE = _CORES[0]
CLIENT_CORE = _CORES[-1]
IS_PINNED = len(_CORES) > 1


def pin(pid: int, core: int) -> None:
    """Keep a process (0: this one) on one core, where there are at least two."""
    if IS_PINNED:
        os.sched_setaffinity(pid, {core})


def cpu_seconds(pid: int) -> float:
    """The CPU time of all threads of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def private_bytes(pid: int) -> int:
    """The memory that would be free if the process ended: what it shares with nobody."""
    found = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            found += int(line.split()[1]) * 1024
    return found


def describe() -> str:
    """One line about this machine, for the head of the table."""
    pinned = f"servers on core {SERVER_CORE}, client and store on core {CLIENT_CORE}" if IS_PINNED else "nothing pinned"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{len(_CORES)} cores ({pinned}), Linux {os.uname().release}, load {load}"
