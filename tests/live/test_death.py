"""Proof of death: what is judged from rows, and what /proc says of real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.live import process
from sse_limits.live.death import Incarnation, Verdict, judge

NODE = "web-1:7:aaaaaaaa"
texts = st.sampled_from(["", "b1", "b2"])
numbers = st.integers(-1, 3)
incarnations = st.builds(Incarnation, texts, texts, numbers, numbers)
seen = st.sampled_from([True, False, None])
names = st.sampled_from([None, "web-1", "web", "web-1:7", ""])


@given(was=incarnations, me=incarnations, running=seen, name=names)
def test_without_the_promise_only_a_process_that_is_seen_gone_in_ones_own_namespace_is_dead(
    was: Incarnation, me: Incarnation, running: bool | None, name: str | None
) -> None:
    verdict = judge(NODE, was, me, lambda *_: running, name)
    if name != "web-1":
        is_proof = (
            running is False
            and was.boot == me.boot != ""
            and was.pid_namespace == me.pid_namespace != ""
            and was.pid > 0
            and was.start_ticks > 0
            and was != me
        )
        assert (verdict is Verdict.DEAD) == is_proof


@given(was=incarnations, me=incarnations, running=seen)
def test_with_the_promise_all_others_of_the_name_are_dead_but_those_that_are_seen_running(
    was: Incarnation, me: Incarnation, running: bool | None
) -> None:
    verdict = judge(NODE, was, me, lambda *_: running, "web-1")
    is_in_sight = was.boot == me.boot != "" and was.pid_namespace == me.pid_namespace != ""
    is_seen_running = bool(running) and is_in_sight and was.pid > 0 and was.start_ticks > 0
    assert (verdict is Verdict.DEAD) == (was != me and not is_seen_running)


@given(me=incarnations, running=seen, name=names)
def test_a_process_is_never_dead_to_itself(me: Incarnation, running: bool | None, name: str | None) -> None:
    assert judge(NODE, me, me, lambda *_: running, name) is Verdict.ALIVE


@given(was=incarnations, me=incarnations, first=seen, then=seen)
def test_what_is_out_of_sight_stays_so_whatever_happens_here(
    was: Incarnation, me: Incarnation, first: bool | None, then: bool | None
) -> None:
    is_unknown = [judge(NODE, was, me, lambda *_, s=s: s) is Verdict.UNKNOWN for s in (first, then)]
    assert is_unknown[0] == is_unknown[1]


@given(was=incarnations, me=incarnations)
def test_the_process_that_is_asked_for_is_that_of_the_row(was: Incarnation, me: Incarnation) -> None:
    asked: list[tuple[int, int]] = []
    judge(NODE, was, me, lambda *found: asked.append(found), "web-1")
    assert asked in ([], [(was.pid, was.start_ticks)])


@pytest.mark.parametrize("node", ["web-1:8:bbbbbbbb", "web-1:x:y"])
def test_a_name_may_hold_colons(node: str) -> None:
    was, me = Incarnation("b1", "n", 5, 5), Incarnation("b2", "n", 6, 6)
    assert judge(node, was, me, lambda *_: None, "web-1") is Verdict.DEAD
    assert judge(f"a:{node}", was, me, lambda *_: None, "web-1") is Verdict.UNKNOWN
    assert judge(f"a:{node}", was, me, lambda *_: None, "a:web-1") is Verdict.DEAD


# --- /proc -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as found:
        yield found
        found.kill()


def start_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as found:
        return int(found.read().rpartition(")")[2].split()[19])


def test_this_process_is_what_it_says() -> None:
    me = process.incarnation()
    assert me.boot
    assert me.pid_namespace.startswith("pid:[")
    assert (me.pid, me.start_ticks) == (os.getpid(), start_of(os.getpid()))
    assert process.is_running(me.pid, me.start_ticks) is True


def test_a_process_runs_until_it_is_killed_though_nobody_has_asked_how_it_ended(
    child: subprocess.Popen[bytes],
) -> None:
    ticks = start_of(child.pid)
    assert process.is_running(child.pid, ticks) is True
    child.send_signal(signal.SIGSTOP)
    assert process.is_running(child.pid, ticks) is True, "one that stands still may go on"
    ended = os.pidfd_open(child.pid)
    child.kill()
    select.select([ended], [], [])
    os.close(ended)
    assert process.is_running(child.pid, ticks) is False, "a zombie"
    child.wait()
    assert process.is_running(child.pid, ticks) is False


def test_a_pid_that_another_process_has_by_now_is_not_the_same(child: subprocess.Popen[bytes]) -> None:
    assert process.is_running(child.pid, start_of(child.pid) - 1) is False


def test_numbers_that_are_no_pids_prove_nothing() -> None:
    assert process.is_running(2**40, 1) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_process_of_another_user_runs_too(child: subprocess.Popen[bytes]) -> None:
    program = f"from sse_limits.live import process; print(process.is_running({child.pid}, {start_of(child.pid)}))"
    code = f"import os; import sse_limits.live.process; os.setuid(65534); {program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
