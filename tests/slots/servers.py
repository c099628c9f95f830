"""Real servers for the tests: each in a directory of its own, on a Unix socket only, ended by its own pid."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

START_SECONDS = 10
LAST_COMMAND = "ECHO end"


class Server:
    """A Redis or Valkey process that belongs to the tests. `client` is for looking at it, never the code under test."""

    def __init__(self, name: str, binary: str) -> None:
        self.name = name
        self.binary = binary
        self.directory = Path(tempfile.mkdtemp(prefix="sl-"))
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [binary, *options, "--dir", str(self.directory), "--logfile", str(self.directory / "log")],
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
        )
        self.client = redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)
        self._wait_until_it_answers()

    def end(self) -> None:
        self.client.close()
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self.directory)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Keep the server from running; its sockets go on accepting bytes."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def out_of_memory(self) -> Iterator[None]:
        self.client.config_set("maxmemory-policy", "noeviction")
        self.client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.client.config_set("maxmemory", 0)

    @contextmanager
    def demoted(self) -> Iterator[None]:
        """Make the server the replica of a master that isn't there, without closing any connection."""
        self.client.replicaof("127.0.0.1", "1")
        try:
            yield
        finally:
            self.client.replicaof("NO", "ONE")

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Every command that the server is given meanwhile, those of scripts included; whole when the block is left."""
        said: list[str] = []
        is_watching = threading.Event()

        def watch() -> None:
            with self.client.monitor() as monitor:
                is_watching.set()
                for found in monitor.listen():
                    if found["command"] == LAST_COMMAND:
                        return
                    if not found["command"].startswith(("HELLO", "CLIENT")):  # of the connection that says the last
                        said.append(found["command"])

        watching = threading.Thread(target=watch)
        watching.start()
        is_watching.wait(START_SECONDS)
        try:
            yield said
        finally:
            self.client.execute_command(*LAST_COMMAND.split())
            watching.join(START_SECONDS)

    def dump(self) -> dict[str, tuple[object, int]]:
        """Every key with its content and the instant at which it expires."""
        return {key: (self._content(key), self.client.pexpiretime(key)) for key in sorted(self.client.scan_iter())}

    def ttls(self) -> dict[str, int]:
        return {key: self.client.pttl(key) for key in self.client.scan_iter()}

    def _content(self, key: str) -> object:
        match self.client.type(key):
            case "zset":
                return dict(self.client.zrange(key, 0, -1, withscores=True))
            case "hash":
                return self.client.hgetall(key)
            case "stream":
                return self.client.xrange(key)
            case other:
                raise AssertionError(f"{key} is a {other}, which no script writes")

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return
