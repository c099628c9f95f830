"""`make demo` as a new user meets it: the command runs, the printed command works, the lines tell the story."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.harness import ROOT, free_port

START_SECONDS = 120
LINE = re.compile(
    r"\d\d:\d\d:\d\d +(?P<fleet>\d+) +(?P<alice>\d+) +(?P<gus>\d+) +(?P<visitors>\d+)"
    r" +\d+ +(?P<full>\d+) +(?P<forged>\d+)"
)


class Demo:
    """The running command, read line by line."""

    def __init__(self, directory: Path, server: str) -> None:
        self.port = free_port()
        command = [sys.executable, "manage.py", "demo", "--port", str(self.port), "--server", server]
        environ = {**os.environ, "DATABASE_PATH": str(directory / "db.sqlite3"), "PYTHONUNBUFFERED": "1"}
        environ["XDG_RUNTIME_DIR"] = str(directory)  # an embedded server of its own, beside a developer's demo
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said: list[str] = []

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        for line in self.process.stdout:
            self.said.append(line)
            yield line
            assert time.monotonic() < deadline, "".join(self.said)
        raise AssertionError("the demo ended:\n" + "".join(self.said))

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=20)
        self.said.append(rest)
        return self.process.returncode


@pytest.fixture(params=["uvicorn", "daphne"])
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demo]:
    found = Demo(tmp_path, request.param)
    yield found
    if found.process.poll() is None:
        os.killpg(found.process.pid, signal.SIGKILL)  # its servers too: they hold the pipe open
        found.process.communicate()


def test_demo_shows_what_the_limits_do(demo: Demo) -> None:
    token = ""
    for line in demo.lines():
        if "TOKEN=" in line:
            token = line.strip().removeprefix("TOKEN=")
        shown = LINE.match(line)
        if shown is None:
            continue
        numbers = {name: int(text) for name, text in shown.groupdict().items()}
        assert numbers["alice"] <= 10
        assert numbers["gus"] <= 5
        assert numbers["visitors"] <= 20
        if numbers["gus"] == 5 and numbers["full"] > 0 and numbers["forged"] > 0 and numbers["fleet"] > 20:
            break
    url = f"http://127.0.0.1:{demo.port}/events/?topic=news"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})) as stream:
        assert stream.status == 200
        assert stream.readline() == b":\n"
    assert demo.end() == 0
    assert "Traceback" not in "".join(demo.said)
