"""`manage.py serve`: the demo site on an ASGI server, with the options that streams need."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from types import FrameType
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from sse_limits.conf import get_conf

DRAIN_SECONDS = 3
HEALTHCHECK_SECONDS = 30
MAX_BACKLOG = 2048


class Command(BaseCommand):
    """Run uvicorn or daphne in the foreground; SIGTERM and Ctrl-C end it."""

    help = "Serve the demo site on 127.0.0.1."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--server", choices=("uvicorn", "daphne"), default="uvicorn")
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT", "8000")))
        parser.add_argument("--workers", type=int, default=1, help="number of processes")
        parser.add_argument("--log-level", choices=("debug", "info", "warning"), default="info", help="of the server")

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the server."""
        limit = raise_descriptor_limit()
        backlog = min(MAX_BACKLOG, limit // 4)
        module, _, attribute = settings.ASGI_APPLICATION.rpartition(".")
        app, port = f"{module}:{attribute}", options["port"]
        if options["server"] == "daphne":
            self._warn_without_store()
            serve_daphne(app, port, backlog, options["workers"], options["log_level"])
        else:
            serve_uvicorn(app, port, backlog, options["workers"], options["log_level"])

    def _warn_without_store(self) -> None:
        """daphne knows no lifespan, so its node speaks up only with the first request."""
        url = get_conf().redis_url
        if url is None:
            return
        try:
            with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1, retry=None) as client:
                client.ping()
        except redis.RedisError as exc:
            self.stderr.write(
                f"The slot store cannot be reached ({exc}): streams are rejected with 503 until it answers. "
                "Set SSE_LIMITS_REDIS_URL to a running Redis >= 6.2 or Valkey, or unset it for an embedded one."
            )


def raise_descriptor_limit() -> int:
    """Raise this process's soft limit of open files to the hard one: each stream takes one. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft


def serve_uvicorn(app: str, port: int, backlog: int, workers: int, log_level: str) -> None:
    """Replace this process by uvicorn.

    Its own X-Forwarded-For handling is off, since ours checks the trusted hops; without a graceful timeout it would
    wait for open streams for ever.
    """
    command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", str(workers), "--backlog", str(backlog), "--log-level", log_level]
    if workers > 1:  # by default a worker that needs more than 5 s to import is taken for hung, again and again
        command += ["--timeout-worker-healthcheck", str(HEALTHCHECK_SECONDS)]
    command += ["--no-proxy-headers", "--timeout-graceful-shutdown", str(DRAIN_SECONDS)]
    os.execv(sys.executable, command)


def serve_daphne(app: str, port: int, backlog: int, workers: int, log_level: str) -> None:
    """Replace this process by daphne, or watch over several that share one listening socket."""
    verbosity = {"debug": "2", "info": "1", "warning": "0"}[log_level]
    command = [sys.executable, "-m", "daphne", "--verbosity", verbosity]
    if workers == 1:
        endpoint = f"tcp:port={port}:interface=127.0.0.1:backlog={backlog}"
        os.execv(sys.executable, [*command, "--endpoint", endpoint, app])
    with socket.create_server(("127.0.0.1", port), backlog=backlog) as listener:
        fileno = listener.fileno()
        watch(
            [subprocess.Popen([*command, "--fd", str(fileno), app], pass_fds=[fileno]) for _ in range(workers)],
        )


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
