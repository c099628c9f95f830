"""File descriptors of this process: how many are left, and listening ports that never take the last ones.

Neither Django nor daphne are imported here; a port is Twisted's `IListeningPort` over a socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Any

log = logging.getLogger("sse_limits.streams.descriptors")

CLOSED_AT = 0.95  # of the descriptors that the process may have
REOPENED_BELOW = 0.02  # of them, under the threshold
LOOK_AGAIN_SECONDS = 0.1
MOST_AT_ONCE = 16


def lowest_free_descriptor() -> int:
    """The number that the next file or socket would get; the limit itself when there is none left.

    Descriptors are given out from below, so it stands for how many are in use, at the cost of two system calls.
    """
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return getrlimit(RLIMIT_NOFILE)[0]
    os.close(descriptor)
    return descriptor


class Doorkeeper:
    """Stops the listening ports of an event loop while nearly all descriptors are in use.

    Those who wait do so in the kernel's backlog. Without it Twisted accepts and closes, or spins on EMFILE, and what
    else needs a descriptor (the store, the database, a log file) gets none.
    """

    def __init__(self) -> None:
        limit = getrlimit(RLIMIT_NOFILE)[0]
        self._is_bounded = limit != RLIM_INFINITY
        self._closed_at = int(limit * CLOSED_AT)
        self._reopened_at = self._closed_at - max(1, int(limit * REOPENED_BELOW))
        # Gaps below make the lowest free descriptor too good a sign, so no more are taken at once than the rest bears.
        self._at_once = max(1, min(MOST_AT_ONCE, (limit - self._closed_at) // 3))
        self._limit = limit
        self._ports: list[Any] = []
        self._is_closed = False

    def watch(self, port: Any) -> None:
        """Look before each time that a port accepts."""
        if not self._is_bounded or not hasattr(port, "numberAccepts"):
            return
        accept = port.doRead

        def accept_some() -> None:
            if lowest_free_descriptor() >= self._closed_at:
                self._close()
            else:
                port.numberAccepts = min(port.numberAccepts, self._at_once)
                accept()

        port.doRead = accept_some
        self._ports.append(port)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        log.warning("%d of %d descriptors are in use: no connection is accepted", self._closed_at, self._limit)
        for port in self._ports:
            port.pauseProducing()
        self._look_again_later()

    def _look_again_later(self) -> None:
        asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        ports = [port for port in self._ports if port.connected and not port.disconnecting]
        if not ports:
            return
        if lowest_free_descriptor() > self._reopened_at:
            self._look_again_later()
            return
        self._is_closed = False
        log.warning("connections are accepted again")
        for port in ports:
            port.resumeProducing()
