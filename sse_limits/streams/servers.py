"""What the server under us can do that ASGI does not say: end a connection at once, and keep its buffers small.

The first way that applies is taken: our daphne names its own in the scope; uvicorn's protocol objects hold a transport;
elsewhere the connection's socket is found among our descriptors by its peer. Under HTTP/2 one connection carries many
streams, so it is never aborted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable
from itertools import chain
from types import FrameType
from typing import Any

from .descriptors import lowest_free_descriptor

ABORT = "sse_limits.abort"  # the key of scope["extensions"] under which our daphne leaves its way
NOT_SENT_BYTES = 16 * 1024  # what the kernel may hold of a stream that its peer has no room for
DESCRIPTORS_TRIED = 256

Scope = dict[str, Any]


def abort(scope: Scope, send: Any) -> bool:
    """End the connection without waiting for what is still to be written; False where it cannot be done."""
    if scope.get("http_version") == "2":
        return False
    own = (scope.get("extensions") or {}).get(ABORT)
    if own is not None:
        own()
        return True
    transport = transport_of(send)
    if transport is not None:
        transport.abort()
        return True
    with contextlib.suppress(OSError):
        return with_socket(scope, reset, all_descriptors())
    return False


def bound_buffers(scope: Scope, send: Any) -> None:
    """Keep what the kernel holds for a stalled reader small; a socket that is not found stays as it is."""
    if not hasattr(socket, "TCP_NOTSENT_LOWAT") or scope.get("http_version") == "2":
        return
    if ABORT in (scope.get("extensions") or {}):  # our daphne has done it
        return
    transport = transport_of(send)
    if transport is None:
        with_socket(scope, limit_not_sent, latest_descriptors())
        return
    found = transport.get_extra_info("socket")
    if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
        limit_not_sent(found)


def transport_of(send: Any) -> Any:
    """The asyncio transport below uvicorn's `send`, else None.

    A private attribute of uvicorn; `tests/streams/test_servers.py` says when a version moves it.
    """
    owner = getattr(send, "__self__", None)
    if type(owner).__module__.startswith("uvicorn."):
        transport = getattr(owner, "transport", None)
        return transport if hasattr(transport, "abort") else None
    return None


def with_socket(scope: Scope, act: Callable[[socket.socket], None], descriptors: Iterable[int]) -> bool:
    """Do something to the connection's socket, on a duplicate of its descriptor; False when it is not found."""
    peer = scope.get("client")
    if not peer or not peer[0]:
        return False
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue  # `socket.socket` would refuse the duplicate, and leave it open
            with socket.socket(fileno=os.dup(descriptor)) as found:
                if is_connected_to(found, peer[0], int(peer[1])):
                    act(found)
                    return True
    return False


def all_descriptors() -> list[int]:
    """Every descriptor of this process."""
    return [int(name) for name in os.listdir("/dev/fd") if name.isdigit()]


def latest_descriptors() -> Iterable[int]:
    """Those around the lowest free one: a new connection's own is among the last given out."""
    lowest_free = lowest_free_descriptor()
    below = range(lowest_free - 1, max(lowest_free - DESCRIPTORS_TRIED, 2), -1)
    return chain(below, range(lowest_free, lowest_free + DESCRIPTORS_TRIED))  # beyond a gap, or accepted by a thread


def is_connected_to(found: socket.socket, host: str, port: int) -> bool:
    """Whether a socket is a TCP connection with this peer."""
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return False
    peer = found.getpeername()
    return bool(peer[1] == port and peer[0].removeprefix("::ffff:") == host.removeprefix("::ffff:"))


def reset(found: socket.socket) -> None:
    """End a connection for both sides: the peer gets a reset, the server's loop an end of file."""
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    found.shutdown(socket.SHUT_RDWR)


def limit_not_sent(found: socket.socket) -> None:
    """Let the kernel take more only when less than this waits to be sent; one that has ended stays as it is."""
    with contextlib.suppress(OSError, ValueError):  # the latter from uvloop, whose socket has no descriptor any more
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)


_told: list[Callable[[], None]] = []


def on_termination(tell: Callable[[], None]) -> None:
    """Call `tell` when this process is told to stop, and then what the server does about it.

    Servers wait for open streams, some for ever; those that have ended let them go. Handlers that asyncio installed run
    beside ours: they are woken by the signal itself. Only the main thread may set handlers; elsewhere none is.
    """
    if tell in _told or threading.current_thread() is not threading.main_thread():
        return
    _told.append(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _handler(tell, signal.getsignal(number)))


def _handler(tell: Callable[[], None], before: Any) -> Callable[[int, FrameType | None], None]:
    def handle(signum: int, frame: FrameType | None) -> None:
        tell()
        if callable(before):
            before(signum, frame)
        elif before == signal.SIG_DFL:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    return handle
