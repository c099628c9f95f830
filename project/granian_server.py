"""granian with a shutdown that says goodbye: `python -m project.granian_server --bind 127.0.0.1:8000 module:app`.

At a signal granian's own workers let go of every connection at once, beside whatever an app does about it. The workers
of this one first drain their node, and tell granian then.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

from granian import _signals
from granian._granian import WorkerSignal
from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.mp import MPServer

from sse_limits.streams.node import drain_node

BACKPRESSURE = 100_000  # above it granian lets clients hang, and each stream counts: as high as our own limits may go
BUFFER_BYTES = 16 * 1024  # its default takes 400 kB for each stalled reader
DRAIN_SECONDS = 3
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", required=True, help="host:port or unix:path")
    parser.add_argument("--backlog", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--log-level", choices=[level.value for level in LogLevels], default="info")
    parser.add_argument("app", help="module:attribute")
    options = parser.parse_args()
    host, _, port = options.bind.rpartition(":")
    where: dict[str, Any] = {"uds": Path(port)} if host == "unix" else {"address": host, "port": int(port)}
    MPServer(
        options.app,
        **where,
        interface=Interfaces.ASGI,
        workers=options.workers,
        backlog=options.backlog,
        backpressure=BACKPRESSURE,
        http1_settings=HTTP1Settings(max_buffer_size=BUFFER_BYTES),
        log_level=LogLevels(options.log_level),
        workers_kill_timeout=DRAIN_SECONDS + 1,
    ).serve(spawn_target=work)


def work(*args: Any) -> None:
    """Run in each worker process, before anything else of granian's."""
    for number in SIGNALS:  # a fork has its parent's handlers, which would swallow a signal while the app is loaded
        signal.signal(number, signal.SIG_DFL)
    _signals.set_loop_signals = leave_after_drain
    MPServer._spawn_asgi_lifespan_worker(*args)


def leave_after_drain(loop: asyncio.AbstractEventLoop) -> WorkerSignal:
    """Stand in for granian's own signal handlers; the result is what its worker waits for."""
    leave = WorkerSignal()
    leaving: list[asyncio.Task[None]] = []

    async def drain() -> None:
        await drain_node(DRAIN_SECONDS)
        leave.set()

    def told_to_stop() -> None:
        if not leaving:
            leaving.append(loop.create_task(drain()))

    for number in SIGNALS:
        loop.add_signal_handler(number, told_to_stop)
    return leave


if __name__ == "__main__":
    main()
