"""hypercorn with a shutdown that says goodbye: `python -m project.hypercorn_server --bind 127.0.0.1:8000 module:app`.

hypercorn's own command tells its workers to stop without a signal and cancels their streams. Run by `serve()` it waits
for a trigger of ours: SIGTERM or Ctrl-C, and then until our streams have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from importlib import import_module
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from sse_limits.streams.node import drain_node

DRAIN_SECONDS = 3
# After the drain, for requests that are no streams. Each WebSocket holds its connection's task until hypercorn's next
# ping, however long it has been closed: so this is always waited for in full.
GRACE_SECONDS = 1


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bind", required=True, help="host:port, unix:path or fd://number")
    parser.add_argument("--backlog", type=int, default=100)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("app", help="module:attribute")
    options = parser.parse_args()
    config = Config()
    config.bind = [options.bind]
    config.backlog = options.backlog
    config.loglevel = options.log_level
    config.graceful_timeout = GRACE_SECONDS
    config.websocket_ping_interval = 20  # off by default: a vanished client would keep its slot
    module, _, attribute = options.app.partition(":")
    asyncio.run(run(getattr(import_module(module), attribute), config))


async def run(app: Any, config: Config) -> None:
    """Serve until told to stop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def told_to_stop() -> None:
        await stop.wait()
        await drain_node(DRAIN_SECONDS)

    await serve(app, config, shutdown_trigger=told_to_stop)


if __name__ == "__main__":
    main()
