"""Nodes whose ids could clash: forked processes, and containers that share a host name and a pid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slots.servers import Server

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60

BEGIN = """
import asyncio, json, multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of every fork beside a thread: those that we look at
import django
django.setup()
from sse_limits.limiter import get_board
from sse_limits.live import process
from sse_limits.policy.current import watch
from sse_limits.streams import node as nodes

def tell(**facts):
    print(json.dumps({"pid": os.getpid(), **facts}), flush=True)

async def visit():
    node = nodes.get_node()
    await node.limiter.store.usage([])
    tell(id=node.limiter.node_id, board=get_board()._name, is_watching=watch._thread.is_alive())
    return node

async def visit_and_leave():
    await visit()
    await nodes.close_node()
"""
FORKS = """
def child():
    asyncio.run(visit_and_leave())

async def parent():
    await visit()
    for _ in range(2):
        forked = multiprocessing.get_context("fork").Process(target=child)
        forked.start()
        await asyncio.to_thread(forked.join)
        assert forked.exitcode == 0
        await visit()
    await nodes.close_node()

asyncio.run(parent())
"""
SAME_LOOP = """
loop = asyncio.new_event_loop()
loop.run_until_complete(visit())

async def child():
    tell(id=nodes.get_node().limiter.node_id)
    os._exit(0)

pid = os.fork()
if pid == 0:
    loop.run_until_complete(child())
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
loop.run_until_complete(visit())
loop.run_until_complete(nodes.close_node())
"""
IMPORTED_BEFORE = """
import project.asgi
assert not nodes._nodes

for _ in range(2):
    pid = os.fork()
    if pid == 0:
        asyncio.run(visit_and_leave())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
CONTAINER = """
tell(id=asyncio.run(visit()).limiter.node_id, incarnation=process.incarnation())
sys.stdin.read()
"""


@pytest.fixture
def env(valkey: Server) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.servers.settings",
        "SSE_LIMITS_REDIS_URL": valkey.url,
        "DATABASE_PATH": "/proc/no/such/place",
        "PYTHONPATH": str(ROOT),
    }


def run(program: str, env: dict[str, str]) -> list[dict[str, Any]]:
    """What the processes of a program tell, in turn."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program], env=env, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_part(node: str) -> str:
    return node.rpartition(":")[2]


@pytest.mark.redis
def test_a_process_that_is_forked_beside_a_running_node_is_a_node_of_its_own(env: dict[str, str]) -> None:
    """And its limits are followed: the thread that reads them is its parent's."""
    first, child, then, other, last = run(FORKS, env)
    assert first == then == last, "the parent goes on as it was"
    assert len({first["pid"], child["pid"], other["pid"]}) == 3
    assert len({random_part(told["id"]) for told in (first, child, other)}) == 3
    assert len({told["board"] for told in (first, child, other)}) == 3
    assert all(told["id"].split(":")[-2] == str(told["pid"]) for told in (first, child, other))
    assert child["is_watching"]
    assert other["is_watching"]


@pytest.mark.redis
def test_a_child_that_goes_on_with_its_parents_event_loop_is_a_node_of_its_own(env: dict[str, str]) -> None:
    first, child, then = run(SAME_LOOP, env)
    assert first == then
    assert random_part(child["id"]) != random_part(first["id"])


@pytest.mark.redis
def test_importing_the_app_makes_no_node_that_workers_would_share(env: dict[str, str]) -> None:
    """As gunicorn's --preload and granian's workers are made."""
    one, two = run(IMPORTED_BEFORE, env)
    assert random_part(one["id"]) != random_part(two["id"])


@pytest.mark.redis
def test_containers_with_one_host_name_and_one_pid_are_two_nodes_that_cannot_judge_each_other(
    env: dict[str, str],
) -> None:
    command = ["unshare", "-Upf", "--mount-proc"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("not run: this user may make no namespaces")
    containers = [
        subprocess.Popen(
            [*command, sys.executable, "-c", BEGIN + CONTAINER],
            env=env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(2)
    ]
    told = []
    for container in containers:
        assert container.stdout is not None
        container.stdout.readline()
        told.append(json.loads(container.stdout.readline()))
    for container in containers:
        container.communicate("", timeout=SECONDS)
    one, two = told
    assert one["pid"] == two["pid"] == 1
    assert one["id"].rpartition(":")[0] == two["id"].rpartition(":")[0]
    assert random_part(one["id"]) != random_part(two["id"])
    assert one["incarnation"][0] == two["incarnation"][0]
    assert one["incarnation"][1] != two["incarnation"][1]
