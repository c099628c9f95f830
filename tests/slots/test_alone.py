"""Processes that count slots in their own memory notice each other: real ones, in a folder of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30

BEGIN = """
import json, os, sys, warnings
from pathlib import Path
from sse_limits.slots.alone import count_here, counting
base = Path(sys.argv[1])

def tell(found):
    print(json.dumps(found), flush=True)
"""
STAY = "tell(count_here(base)); sys.stdin.read()"
LOOK = "tell(counting(base))"
FORK = """
tell(count_here(base))
for _ in range(2):
    child = os.fork()
    if child == 0:
        tell(count_here(base))
        os._exit(0)
    os.waitpid(child, 0)
tell(count_here(base))
"""
# The parent of a daemon ends, and with it what it held.
DAEMON = """
tell(count_here(base))
parent = os.pidfd_open(os.getpid())
if os.fork() == 0:
    import select
    select.select([parent], [], [])
    tell(count_here(base))
    os._exit(0)
"""
STORES = """
import django
django.setup()
from sse_limits.limiter import build_store
from sse_limits.conf import get_conf
names = [build_store(get_conf()).name for _ in range(2)]
tell(names)
"""


class Start(Protocol):
    def __call__(self, program: str, base: str = "a") -> subprocess.Popen[str]: ...


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    found = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    return {**found, "DJANGO_SETTINGS_MODULE": "project.settings", "SSE_LIMITS_STORE": "memory"}


@pytest.fixture
def start(env: dict[str, str]) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(program: str, base: str = "a") -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", BEGIN + program, base],
                env=env,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def told(process: subprocess.Popen[str]) -> object:
    """The next thing that a process tells."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_the_second_process_knows_the_first(start: Start) -> None:
    first = start(STAY)
    assert told(first) is None
    second, stranger = start(STAY), start(STAY, "b")
    assert told(second) == [first.pid]
    assert told(stranger) is None, "another checkout"
    third = start(STAY)
    assert told(third) == [first.pid, second.pid]
    assert told(start(LOOK)) == [first.pid, second.pid, third.pid]


def test_whoever_ends_or_is_killed_counts_no_longer(start: Start) -> None:
    first = start(STAY)
    assert told(first) is None
    second = start(STAY)
    assert told(second) == [first.pid]
    first.kill()
    first.wait()
    third = start(STAY)
    assert told(third) == [second.pid], "though the first one's number still stands there"
    for process in (second, third):
        process.communicate("", timeout=SECONDS)
    assert told(start(LOOK)) == []
    assert told(start(STAY)) is None


def test_a_forked_child_notices_its_parent(start: Start) -> None:
    parent = start(FORK)
    output, _ = parent.communicate("", timeout=SECONDS)
    assert [json.loads(line) for line in output.splitlines()] == [None, [parent.pid], [parent.pid], None]


def test_a_child_does_not_take_what_its_dead_parent_held_for_somebody_else(start: Start) -> None:
    output, _ = start(DAEMON).communicate("", timeout=SECONDS)
    assert [json.loads(line) for line in output.splitlines()] == [None, None]


def test_a_store_in_memory_warns_of_the_others_once_and_says_so_in_its_name(start: Start) -> None:
    first = start(STORES + "sys.stdin.read()", str(ROOT))
    assert told(first) == ["memory", "memory"]
    second = start(STORES, str(ROOT))
    output, logged = second.communicate("", timeout=SECONDS)
    assert json.loads(output)[0] == "memory (one of several)"
    warning = (
        f"another process of this checkout (pid {first.pid}) counts slots in its own memory too: "
        "limits hold per worker. Run one worker, or set REDIS_URL"
    )
    assert logged.count(warning) == 1
    assert "Traceback" not in logged


def test_the_check_tells_of_several(start: Start, env: dict[str, str]) -> None:
    def checked() -> str:
        command = [sys.executable, "manage.py", "check"]
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True).stderr

    first = start(STAY, str(ROOT))
    assert told(first) is None
    assert "W009" not in checked()
    second = start(STAY, str(ROOT))
    assert told(second) == [first.pid]
    said = checked()
    assert f"(sse_limits.W009) Processes {first.pid} and {second.pid} of this checkout count slots" in said


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_folder_that_cannot_be_used_costs_nothing(start: Start, tmp_path: Path, mode: int) -> None:
    """Others could write into it, or a file stands where the lock should be."""
    first = start(STAY)
    assert told(first) is None
    [folder] = tmp_path.glob("sse-limits-*")
    folder.chmod(mode)
    if mode == 0o700:
        (folder / "memory.pids").unlink()
        (folder / "memory.pids").mkdir()
    assert told(start(STAY)) is None
    assert told(start(LOOK)) == []
