"""`manage.py serve`: the demo site on an ASGI server, with the options that streams need."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

DRAIN_SECONDS = 3
HEALTHCHECK_SECONDS = 30
MAX_BACKLOG = 2048
GRANIAN_MIN_BACKLOG = 128


class Command(BaseCommand):
    """Run a server in the foreground; SIGTERM and Ctrl-C end it, and its clients are told."""

    help = "Serve the demo site on 127.0.0.1."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--server", choices=tuple(SERVERS), default="uvicorn")
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
        parser.add_argument("--workers", type=int, default=1, help="number of processes")
        parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info", help="of the server")

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the server."""
        limit = raise_descriptor_limit()
        backlog = min(MAX_BACKLOG, limit // 4)
        module, _, attribute = settings.ASGI_APPLICATION.rpartition(".")
        serve = SERVERS[options["server"]]
        serve(Wanted(f"{module}:{attribute}", options["port"], backlog, options["workers"], options["log_level"]))


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit of open files to the hard one: each stream takes one. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


class Wanted(NamedTuple):
    """What is to be served, and how."""

    app: str
    port: int
    backlog: int
    workers: int
    log_level: str


def become(*command: str) -> NoReturn:
    """Replace this process by a Python program."""
    os.execv(sys.executable, [sys.executable, *command])


def serve_uvicorn(wanted: Wanted) -> None:
    """Replace this process by uvicorn.

    Its own X-Forwarded-For handling is off, since ours checks the trusted hops; without a graceful timeout it would
    wait for streams that do not end for ever.
    """
    options = ["--host", "127.0.0.1", "--port", str(wanted.port), "--backlog", str(wanted.backlog)]
    options += ["--workers", str(wanted.workers), "--log-level", wanted.log_level]
    if wanted.workers > 1:  # by default a worker that needs more than 5 s to import is taken for hung, again and again
        options += ["--timeout-worker-healthcheck", str(HEALTHCHECK_SECONDS)]
    options += ["--no-proxy-headers", "--timeout-graceful-shutdown", str(DRAIN_SECONDS)]
    become("-m", "uvicorn", wanted.app, *options)


def serve_granian(wanted: Wanted) -> None:
    """Replace this process by granian with a goodbye."""
    options = ["--bind", f"127.0.0.1:{wanted.port}", "--backlog", str(max(wanted.backlog, GRANIAN_MIN_BACKLOG))]
    options += ["--workers", str(wanted.workers), "--log-level", wanted.log_level]
    become("-m", "project.granian_server", *options, wanted.app)


def serve_hypercorn(wanted: Wanted) -> None:
    """Replace this process by hypercorn with a goodbye, or watch over several."""
    command = ["-m", "project.hypercorn_server", "--log-level", wanted.log_level, "--backlog", str(wanted.backlog)]
    if wanted.workers == 1:
        become(*command, "--bind", f"127.0.0.1:{wanted.port}", wanted.app)
    share(wanted, lambda fd: [*command, "--bind", f"fd://{fd}", wanted.app])


def serve_daphne(wanted: Wanted) -> None:
    """Replace this process by our daphne, or watch over several."""
    verbosity = {"debug": "2", "info": "1", "warning": "0"}[wanted.log_level]
    command = ["-m", "sse_limits.streams.daphne", "--verbosity", verbosity]
    if wanted.workers == 1:
        endpoint = f"tcp:port={wanted.port}:interface=127.0.0.1:backlog={wanted.backlog}"
        become(*command, "--endpoint", endpoint, wanted.app)
    share(wanted, lambda fd: [*command, "--fd", str(fd), wanted.app])


def share(wanted: Wanted, command: Callable[[int], list[str]]) -> None:
    """Run one Python program for each worker on one listening socket, and watch over them."""
    with socket.create_server(("127.0.0.1", wanted.port), backlog=wanted.backlog) as listener:
        fd = listener.fileno()
        watch([subprocess.Popen([sys.executable, *command(fd)], pass_fds=[fd]) for _ in range(wanted.workers)])


def watch(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for the processes; when one ends, or we are told to, end all of them."""

    def end_all(signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        for process in processes:
            if process.poll() is None:
                process.terminate()

    signal.signal(signal.SIGTERM, end_all)
    signal.signal(signal.SIGINT, end_all)
    pid, status = os.wait()
    end_all()
    for process in processes:
        if process.pid != pid:
            process.wait()
    sys.exit(os.waitstatus_to_exitcode(status))


SERVERS = {"uvicorn": serve_uvicorn, "daphne": serve_daphne, "granian": serve_granian, "hypercorn": serve_hypercorn}
