"""How soon a freed slot can be used by a client of another node, while others ask for it all the time.

Measured: the time from closing a stream on one node until a client of the other one is admitted in its place (20 runs).
39 clients of that node ask for the user's only slot meanwhile, over kept-alive connections, each again as soon as its
429 is there; so the node knows from memory that the limit is full. Against: the same with one client that asks.
"""

from __future__ import annotations

import select
import time
from contextlib import ExitStack, closing
from http import HTTPStatus
from socket import socket

from .client import answers, connect, request, response_end, status, token
from .figures import Figure
from .servers import PATIENT, AsgiServer, uvicorn, valkey

RUNS = 20
QUICK_RUNS = 5
RETRIERS = 39
MOST_MS = 150
WAIT_SECONDS = 10.0
WARM_SECONDS = 0.3
USER, TENANT = "waited-for", "single"


def run(*, quick: bool) -> list[Figure]:
    """Free the slot again and again."""
    runs = QUICK_RUNS if quick else RUNS
    with valkey() as store, ExitStack() as running:
        env = {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}
        nodes = [running.enter_context(uvicorn("bench.apps.guarded:application", env, core=None)) for _ in range(2)]
        alone = [handed_over(nodes[number % 2], nodes[1 - number % 2], 1) for number in range(runs)]
        found = [handed_over(nodes[number % 2], nodes[1 - number % 2], RETRIERS) for number in range(runs)]
    against = f"one client: {Figure('', 'ms', alone).row()[2]}"
    return [
        Figure(f"a freed slot, another node, {RETRIERS} retriers", "ms", found, MOST_MS, against),
        Figure("  the longest", "ms", [max(found)], MOST_MS),
    ]


def handed_over(holding: AsgiServer, asking: AsgiServer, retriers: int) -> float:
    """Hold the slot on one node, free it, and return how long after that another client has it, in ms."""
    payload = request("/ends/wait/", token(USER, TENANT))
    holder = connect(holding.address)
    holder.sendall(payload)
    while status(answers([holder])[0]) != HTTPStatus.OK:  # the last one's slot is on its way back
        holder.sendall(payload)
    sockets = [connect(asking.address) for _ in range(retriers)]
    freed_at, admitted_at = None, None
    begun_at = time.perf_counter()
    with closing(select.epoll()) as poller:
        by_fd = {each.fileno(): (each, bytearray()) for each in sockets}
        for fd, (each, _) in by_fd.items():
            poller.register(fd, select.EPOLLIN)
            each.sendall(payload)
        while admitted_at is None:
            if freed_at is None and time.perf_counter() - begun_at > WARM_SECONDS:
                holder.close()
                freed_at = time.perf_counter()
            for fd, _ in poller.poll(WAIT_SECONDS):
                if answer(*by_fd[fd], payload) == HTTPStatus.OK:
                    admitted_at = time.perf_counter()
    for each in sockets:
        each.close()
    if freed_at is None:
        raise AssertionError("two streams were admitted where one may be")
    return (admitted_at - freed_at) * 1000


def answer(connection: socket, data: bytearray, payload: bytes) -> int:
    """Read what there is; ask again after a rejection. Returns the status of a whole answer, or of a stream."""
    data += connection.recv(65536)
    found = status(data)
    if found == HTTPStatus.OK or not found:
        return found
    end = response_end(data)
    if end is None:
        return 0
    del data[:end]
    connection.sendall(payload)
    return found
