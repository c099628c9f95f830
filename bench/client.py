"""A raw-socket client: request bytes made beforehand, no HTTP library, one thread."""

from __future__ import annotations

import re
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus

from sse_limits.core.token_keys import TokenKeys
from sse_limits.streams.tokens import mint

from .servers import SECRET_KEY

Address = tuple[str, int]

WAIT_SECONDS = 15.0
WAVE = 50
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_KEYS = TokenKeys.from_secrets(SECRET_KEY)


def token(user: str, tenant: str) -> str:
    """A stream token that outlives the benchmark."""
    return mint(_KEYS, tenant=tenant, user=user, now=int(time.time() * 1000), ttl_seconds=86_400)


def request(path: str, bearer: str | None = None, *extra: str) -> bytes:
    """The bytes of a GET."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "User-Agent: bench", "Accept: text/event-stream", *extra]
    if bearer is not None:
        lines.append(f"Authorization: Bearer {bearer}")
    return "\r\n".join([*lines, "", ""]).encode()


def connect(address: Address) -> socket.socket:
    """A blocking connection without Nagle's delay."""
    found = socket.create_connection(address, timeout=WAIT_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def response_end(data: bytes | bytearray) -> int | None:
    """Where a response with a content length ends in `data`, or None while it is incomplete."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return None
    length = _LENGTH.search(data, 0, head + 2)
    end = head + 4 + (int(length[1]) if length else 0)
    return end if len(data) >= end else None


def flood(address: Address, payload: bytes, requests: int, connections: int) -> Counter[int]:
    """Send a request `requests` times over keep-alive connections, each as soon as its last answer is there."""
    found: Counter[int] = Counter()
    with opened(address, connections) as sockets, closing(select.epoll()) as poller:
        by_fd = {each.fileno(): (each, bytearray()) for each in sockets}
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        for each in sockets:
            each.send(payload)
        unsent = requests - connections
        while found.total() < requests:
            ready = poller.poll(WAIT_SECONDS)
            if not ready:
                raise TimeoutError(f"no answer within {WAIT_SECONDS:g} s; so far {dict(found)}")
            for fd, _ in ready:
                connection, data = by_fd[fd]
                if _read(connection, data, found) and unsent > 0:
                    connection.send(payload)
                    unsent -= 1
    return found


def _read(connection: socket.socket, data: bytearray, found: Counter[int]) -> bool:
    """Read what there is; True when it completes a response."""
    got = connection.recv(65536)
    if not got:
        raise ConnectionError("the server closed a keep-alive connection")
    data += got
    end = response_end(data)
    if end is None:
        return False
    found[status(data)] += 1
    del data[:end]
    return True


@contextmanager
def opened(address: Address, connections: int) -> Iterator[list[socket.socket]]:
    """Connections that are closed at the end."""
    sockets = [connect(address) for _ in range(connections)]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def answers(sockets: Sequence[socket.socket]) -> list[bytes]:
    """What each connection gets: the whole of a response, or the head and the first event of a stream."""
    found = {each.fileno(): b"" for each in sockets}
    by_fd = {each.fileno(): each for each in sockets}
    with closing(select.epoll()) as poller:
        for fd in by_fd:
            poller.register(fd, select.EPOLLIN)
        open_fds = set(by_fd)
        while open_fds:
            ready = poller.poll(WAIT_SECONDS)
            if not ready:
                raise TimeoutError(f"{len(open_fds)} of {len(sockets)} requests were not answered")
            for fd, _ in ready:
                got = by_fd[fd].recv(65536)
                found[fd] += got
                if not got or is_answered(found[fd]):
                    poller.unregister(fd)
                    open_fds.discard(fd)
    return [found[each.fileno()] for each in sockets]


def is_answered(data: bytes) -> bool:
    """Whether a response is complete, or is a stream whose first event is there."""
    if status(data) == HTTPStatus.OK:
        return b"\n\n" in data.partition(b"\r\n\r\n")[2]
    return response_end(data) is not None


def status(data: bytes | bytearray) -> int:
    """The status of a response that has begun; 0 before."""
    return int(data[9:12]) if len(data) >= 12 else 0


def open_streams(address: Address, payloads: Sequence[bytes]) -> list[socket.socket]:
    """Open event streams, some at a time, and read each one's first event; `ConnectionError` if one is not admitted."""
    opened_streams: list[socket.socket] = []
    for start in range(0, len(payloads), WAVE):
        wave = [connect(address) for _ in payloads[start : start + WAVE]]
        for connection, payload in zip(wave, payloads[start : start + WAVE], strict=True):
            connection.sendall(payload)
        for answer in answers(wave):
            if status(answer) != HTTPStatus.OK:
                raise ConnectionError(f"a stream was not admitted: {answer[:300]!r}")
        opened_streams += wave
    return opened_streams


def get(address: Address, path: str) -> None:
    """One request whose answer does not matter."""
    with opened(address, 1) as (connection,):
        connection.sendall(request(path))
        while response_end(connection.recv(65536)) is None:
            pass
