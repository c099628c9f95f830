"""Each server started by its own command: its log tells what it lacks; the commands of docs/servers.md lack nothing."""

from __future__ import annotations

import re
import resource

import pytest

from .client import Clients, until
from .conftest import Start
from .harness import KINDS, ROOT, Kind

MODULES = {"sse-limits-daphne": "sse_limits.streams.daphne"}
NOISE = r"StreamReaderProtocol\.connection_made|^Traceback|CancelledError"  # of hypercorn, when it ends
WHERE = {
    "uvicorn": ["--host", "{host}", "--port", "{port}"],
    "granian": ["--host", "{host}", "--port", "{port}"],
    "hypercorn": ["--bind", "{host}:{port}"],
    "daphne": ["-b", "{host}", "-p", "{port}"],
    "sse-limits-daphne": ["-b", "{host}", "-p", "{port}"],
}


def kind_of(command: str) -> Kind:
    """A server as somebody would start it: `app` stands for the app."""
    program, *options = command.split()

    def start(app: str, bind: str) -> list[str]:
        host, _, port = bind.rpartition(":")
        where = [word.format(host=host, port=port) for word in WHERE[program]]
        return ["-m", MODULES.get(program, program), *where, *(app if word == "app" else word for word in options)]

    return Kind(start, noise=NOISE)


(DOCUMENTED,) = re.findall(r"^\| its own command \| (.*) \|$", (ROOT / "docs" / "servers.md").read_text(), re.M)
TOLD = re.compile(r"WARNING sse_limits\.streams\.server_options: .*? (Start .*|List .*) \(sse_limits\.(W\d+)\)$", re.M)


@pytest.mark.parametrize("command", [cell.strip("`") for cell in DOCUMENTED.split(" | ")])
async def test_a_documented_command_lacks_nothing(
    monkeypatch: pytest.MonkeyPatch, start: Start, clients: Clients, command: str
) -> None:
    monkeypatch.setitem(KINDS, "own", kind_of(command))
    server = start("own")
    assert (await clients.get(server, "/healthz")).status == 200  # daphne tells at the first request
    server.check_log()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("uvicorn app", {"W006": "--timeout-graceful-shutdown 3", "W008": "--no-proxy-headers"}),
        (
            "uvicorn app --lifespan off --http h11 --limit-concurrency 1000 --no-proxy-headers",
            {"W005": "without", "W006": "--timeout-graceful-shutdown 3"},
        ),
        (
            "uvicorn app --lifespan off --http httptools --loop uvloop --no-proxy-headers",
            {"W006": "--timeout-graceful-shutdown 3"},
        ),
        (
            "granian --interface asgi --workers 2 --backlog 1024 app",
            {"W005": "--backpressure 100000", "W006": "--workers-kill-timeout 4"},
        ),
        ("hypercorn app", {"W007": "--websocket-ping-interval 20"}),
        ("sse-limits-daphne --proxy-headers --ping-interval 0 app", {"W007": "--ping-interval 20", "W008": "without"}),
        ("daphne app", {"W004": "sse-limits-daphne"}),
    ],
)
async def test_what_is_missing_is_told_once_with_what_to_write(
    monkeypatch: pytest.MonkeyPatch,
    start: Start,
    clients: Clients,
    command: str,
    expected: dict[str, str],
) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512, "else granian's default would be enough"
    monkeypatch.setitem(KINDS, "own", kind_of(command))
    server = start("own")
    server.expect(r"\(sse_limits\.W00\d\)$")
    for _ in range(3):
        assert (await clients.get(server, "/healthz")).status == 200
    processes = 2 if "--workers 2" in command else 1
    await until(lambda: len(TOLD.findall(server.log())) == processes * len(expected), 10)
    if processes > 1:  # granian (2.8.9) hangs when it is stopped before it knows that a worker has started
        await until(lambda: server.log().count("] Started worker-") == processes, 10)
    told = TOLD.findall(server.log())
    assert {check for _, check in told} == set(expected)
    assert all(expected[check] in advice for advice, check in told)
