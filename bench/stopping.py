"""How long `manage.py serve` takes to stop under SIGTERM, and whether its clients are told.

Measured, on each server: the time from SIGTERM to the exit of the process, with 50 event streams and 50 WebSockets
open; how many of them ended without `event: shutdown` or close code 1012; how many slots are held at the exit.
Against: the same command without a client. How: the demo's own consumers, every stream another user's; a fresh server
and store each round.
"""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from .client import Address, connect, open_streams, request, token
from .ends import UPGRADE
from .figures import Figure
from .servers import PATIENT, SERVERS, served, valkey

ROUNDS = 3
QUICK_ROUNDS = 1
EACH = 50
MOST_SECONDS = 5
GIVE_UP_SECONDS = 20.0
FLEET = "sl:1:slot:{fleet}"
CLOSE = 0x88
SERVICE_RESTART = 1012


class Stop(NamedTuple):
    """One stop: how long it took, who was not told, what was still held."""

    seconds: float
    untold: int
    held: int


def run(*, quick: bool) -> list[Figure]:
    """Stop each server, with clients and without."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    figures: list[Figure] = []
    for name in SERVERS:
        idle = stop(name, 0).seconds
        stops = [stop(name, EACH) for _ in range(rounds)]
        baseline = f"{idle:.1f} s without clients"
        figures += [
            Figure(f"stopping {name}", "s", [each.seconds for each in stops], MOST_SECONDS, baseline),
            Figure(f"  untold of {2 * EACH * rounds}", "", [sum(each.untold for each in stops)], 0, digits=0),
            Figure("  slots at the exit", "", [sum(each.held for each in stops)], 0, digits=0),
        ]
    return figures


def stop(name: str, each: int) -> Stop:
    """Open so many streams of each kind, and stop the server."""
    with valkey() as store, served(name, {"SSE_LIMITS_REDIS_URL": store.url, **PATIENT}) as server:
        payloads = [request("/events/?topic=news", token(f"s{number}", "ample")) for number in range(each)]
        streams = open_streams(server.address, payloads)
        sockets = [open_websocket(server.address, f"w{number}") for number in range(each)]
        assert store.client.zcard(FLEET) == 2 * each, "not every stream was admitted"
        server.process.send_signal(signal.SIGTERM)
        seconds, heard = last_words(server.process, [*streams, *sockets])
        held = int(store.client.zcard(FLEET))
        untold = sum(b"event: shutdown\n" not in said for said in heard[:each])
        untold += sum(close_code(said) != SERVICE_RESTART for said in heard[each:])
        for connection in [*streams, *sockets]:
            connection.close()
    return Stop(seconds, untold, held)


def open_websocket(address: Address, user: str) -> socket.socket:
    """A WebSocket after its handshake."""
    found = connect(address)
    found.sendall(request("/ws/", token(user, "ample"), *UPGRADE))
    head = b""
    while b"\r\n\r\n" not in head:
        head += found.recv(1)
        if not head:
            raise ConnectionError("the server closed a WebSocket's connection")
    if not head.startswith(b"HTTP/1.1 101 "):
        raise ConnectionError(f"a WebSocket was not admitted: {head[:300]!r}")
    return found


def last_words(process: subprocess.Popen[bytes], connections: Sequence[socket.socket]) -> tuple[float, list[bytes]]:
    """The seconds until the process has ended, and what every connection heard until it was closed."""
    started = time.monotonic()
    heard = {each.fileno(): bytearray() for each in connections}
    by_fd = {each.fileno(): each for each in connections}
    ended_at = None
    with closing(select.epoll()) as poller:
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        listening = set(by_fd)
        while (listening or ended_at is None) and time.monotonic() - started < GIVE_UP_SECONDS:
            for fd, _ in poller.poll(0.01):
                got = b""
                with suppress(ConnectionResetError):
                    got = by_fd[fd].recv(65536)
                heard[fd] += got
                if is_over(heard[fd], by_fd[fd], got):
                    poller.unregister(fd)
                    listening.discard(fd)
            if ended_at is None and process.poll() is not None:
                ended_at = time.monotonic()
    return (ended_at or float("inf")) - started, [bytes(heard[each.fileno()]) for each in connections]


def is_over(heard: bytearray, connection: socket.socket, got: bytes) -> bool:
    """Whether a connection has ended; a close frame is answered, as the protocol wants it."""
    if not got:
        return True
    if close_code(bytes(heard)) is not None:
        with suppress(OSError):
            connection.sendall(bytes([CLOSE, 0x82, 0, 0, 0, 0]) + SERVICE_RESTART.to_bytes(2))
    return False


def close_code(heard: bytes) -> int | None:
    """The code of the close frame at the end of a server's short WebSocket frames, None without one."""
    while len(heard) >= 2:
        opcode, size = heard[0], heard[1]
        if opcode == CLOSE:
            return int.from_bytes(heard[2:4]) if size >= 2 else None
        heard = heard[2 + size :]
    return None
