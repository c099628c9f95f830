"""The fault proxy does what its tests rely on: each fault alone, and its end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .proxy import Proxy

SOON = 0.2
SECONDS = 5


class Echo:
    """A server that answers each message with its name before it; in a thread."""

    def __init__(self, name: str, path: Path | None = None) -> None:
        self._name = name.encode()
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(str(path) if path else ("127.0.0.1", 0))
        self._listener.listen()
        self.target = path or self._listener.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(self._name + data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def echo(name: str, path: Path | None = None) -> Iterator[Echo]:
    found = Echo(name, path)
    yield found
    found.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with echo("a:") as server, Proxy(server.target) as found:
        yield found


@contextmanager
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), SECONDS) as found:
        yield found


def said(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(100)


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SOON)
    try:
        connection.recv(100)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SECONDS)
    return False


def test_bytes_pass_and_are_counted(proxy: Proxy) -> None:
    with client(proxy) as connection:
        assert said(connection, b"hello") == b"a:hello"
    assert proxy.counts == {"links": 1, "request": 5, "reply": 7}


def test_a_unix_socket_is_a_target_too(tmp_path: Path) -> None:
    with echo("u:", tmp_path / "s") as server, Proxy(server.target) as proxy, client(proxy) as connection:
        assert said(connection, b"hello") == b"u:hello"


def test_latency_is_that_of_the_direction_and_keeps_the_order(proxy: Proxy) -> None:
    proxy.delay(SOON, "reply")
    with client(proxy) as connection:
        started = time.monotonic()
        connection.sendall(b"1")
        time.sleep(SOON / 2)
        proxy.delay(0, "reply")
        connection.sendall(b"2")
        found = b""
        while len(found) < 6:
            found += connection.recv(100)
        assert found == b"a:1a:2"
        assert SOON <= time.monotonic() - started < 10 * SOON


def test_latency_does_not_add_up(proxy: Proxy) -> None:
    proxy.delay(SOON)
    with client(proxy) as connection:
        started = time.monotonic()
        for _ in range(10):
            connection.sendall(b"x")
            time.sleep(SOON / 20)
        found = b""
        while found.count(b"x") < 10:
            found += connection.recv(100)
        assert time.monotonic() - started < 6 * SOON


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_a_black_hole_keeps_the_connection_and_gives_back_what_it_took(proxy: Proxy, direction: str) -> None:
    with client(proxy) as connection:
        assert said(connection, b"1") == b"a:1"
        proxy.black_hole(direction)
        connection.sendall(b"2")
        assert is_silent(connection)
        with client(proxy) as other:
            other.sendall(b"3")
            assert is_silent(other)
            proxy.pass_all()
            assert other.recv(100) == b"a:3"
        assert connection.recv(100) == b"a:2"


def test_a_cut_comes_once_behind_its_byte(proxy: Proxy) -> None:
    with client(proxy) as connection:
        proxy.cut_after(3, "reply")
        assert said(connection, b"hello") == b"a:h"
        assert connection.recv(100) == b""
    assert proxy.counts["cuts"] == 1
    with client(proxy) as connection:
        assert said(connection, b"hello") == b"a:hello"


def test_a_reset_is_a_reset(proxy: Proxy) -> None:
    with client(proxy) as connection:
        proxy.reset_after(3, "reply")
        connection.sendall(b"hello")
        with pytest.raises(ConnectionResetError):
            connection.recv(3, socket.MSG_WAITALL) and connection.recv(1)
    assert proxy.counts["resets"] == 1


@pytest.mark.parametrize("drop", [True, False])
def test_a_closed_port_refuses_and_opens_again_where_it_was(proxy: Proxy, *, drop: bool) -> None:
    with client(proxy) as connection:
        assert said(connection, b"1") == b"a:1"
        proxy.refuse(drop=drop)
        with pytest.raises(ConnectionRefusedError), client(proxy):
            pass
        if drop:
            assert connection.recv(100) == b""
        else:
            assert said(connection, b"2") == b"a:2"
        proxy.accept()
        with client(proxy) as other:
            assert said(other, b"3") == b"a:3"


@pytest.mark.parametrize("drop", [True, False])
def test_another_target_is_for_new_connections(proxy: Proxy, *, drop: bool) -> None:
    with echo("b:") as second, client(proxy) as connection:
        assert said(connection, b"1") == b"a:1"
        proxy.point_to(second.target, drop=drop)
        if drop:
            assert connection.recv(100) == b""
        else:
            assert said(connection, b"2") == b"a:2"
        with client(proxy) as other:
            assert said(other, b"3") == b"b:3"


def test_a_target_that_is_not_there_is_the_end_of_the_connection(tmp_path: Path) -> None:
    with Proxy(tmp_path / "nobody") as proxy:
        with client(proxy) as connection, suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        assert proxy.counts["lost"] == 1
