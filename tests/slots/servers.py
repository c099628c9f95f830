"""Real servers for the tests: each in a directory of its own, on a Unix socket only, ended by its own pid."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.asyncio import Redis
from redis.crc import key_slot

START_SECONDS = 10
HASH_SLOTS = 16384
LAST_COMMAND = "ECHO end"
# Each master of a Cluster syncs its nodes.conf to the disk with every change of the map, and serves nobody meanwhile.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the parent of temporary folders
# The others take a master for failed, and serve nobody either: not while a test stalls one, nor when the machine does.
NODE_TIMEOUT_MS = 15_000


class Server:
    """A Redis or Valkey process that belongs to the tests. `client` is for looking at it, never the code under test."""

    def __init__(self, name: str, binary: str, *more: str) -> None:
        self.name = name
        self.binary = binary
        self.directory = Path(tempfile.mkdtemp(prefix="sl-", dir=IN_MEMORY))
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        options = ["--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no", *more]
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

    def kill(self) -> None:
        """End it as a crash does; `end` is still to be called."""
        self._process.kill()
        self._process.wait(10)

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
    def evicting(self, policy: str) -> Iterator[None]:
        """Let the server drop keys once it has a great deal more than now."""
        self.client.config_set("maxmemory", 10**9)
        self.client.config_set("maxmemory-policy", policy)
        try:
            yield
        finally:
            self.client.config_set("maxmemory", 0)
            self.client.config_set("maxmemory-policy", "noeviction")

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


class Sentinel:
    """One sentinel that watches a master under the name `main`, and decides alone."""

    def __init__(self, binary: str, master_port: int) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="sl-"))
        lines = [
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\nlogfile {self.directory}/log",
            f"sentinel monitor main 127.0.0.1 {master_port} 1",
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000",
        ]
        conf = self.directory / "conf"
        conf.write_text("\n".join(lines) + "\n")
        self._process = subprocess.Popen([binary, str(conf), "--sentinel"], stdin=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port, decode_responses=True)
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/main"

    def master_port(self) -> int:
        """Where it sends clients at the moment."""
        return int(self.client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1])

    def end(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self.directory)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def monitored(server: Server) -> AsyncIterator[list[dict[str, str]]]:
    """Collect what the server executes, calls from scripts included."""
    commands: list[dict[str, str]] = []
    async with Redis.from_url(server.url, socket_timeout=None) as client, client.monitor() as monitor:

        async def collect() -> None:
            async for command in monitor.listen():
                commands.append(command)

        collecting = asyncio.ensure_future(collect())
        yield commands
        server.client.echo("the end")
        async with asyncio.timeout(START_SECONDS):
            while not any(command["command"] == "ECHO the end" for command in commands):  # noqa: ASYNC110 - what has come
                await asyncio.sleep(0.002)
        collecting.cancel()
        await asyncio.wait([collecting])


def _served(nodes: dict[str, Any]) -> str:
    """Who serves what since when, as one server sees it."""
    return str(sorted((found["node_id"], found["epoch"], found["slots"]) for found in nodes.values()))


class ClusterServer:
    """A Cluster of three masters on ports of 127.0.0.1, each serving a third of the hash slots.

    It looks like one `Server` where the tests look into it: `client` asks the master of a key.
    """

    def __init__(self, name: str, binary: str) -> None:
        self.name = name
        self.masters: list[Server] = []
        self.ports: list[int] = []
        try:
            for _ in range(3):
                self._start(binary)
            self._assign()
            self._wait_until_all_know()
        except BaseException:
            self.end()
            raise
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.client = redis.RedisCluster(host="127.0.0.1", port=self.ports[0], decode_responses=True)

    def end(self) -> None:
        for master in self.masters:
            master.end()

    def master_of(self, key: str) -> Server:
        slot = key_slot(key.encode())
        port = next(end["port"] for end in self._ranges() if end["first"] <= slot <= end["last"])
        return self.masters[self.ports.index(port)]

    def move(self, key: str, to: Server) -> None:
        """Move the hash slot of a key with all that is in it, as an operator does."""
        with self.moving(key, to):
            pass

    @contextmanager
    def moving(self, key: str, to: Server, first: Sequence[str] = ()) -> Iterator[None]:
        """Move a hash slot: in the block it is on its way, and only the keys of `first` have arrived."""
        slot, source = key_slot(key.encode()), self.master_of(key)
        names = {server: server.client.cluster("MYID") for server in self.masters}
        to.client.cluster("SETSLOT", slot, "IMPORTING", names[source])
        source.client.cluster("SETSLOT", slot, "MIGRATING", names[to])
        migrate = ("MIGRATE", "127.0.0.1", self.ports[self.masters.index(to)], "", 0, 5000, "KEYS")
        if first:
            source.client.execute_command(*migrate, *first)
        yield
        while found := source.client.cluster("GETKEYSINSLOT", slot, 100):
            source.client.execute_command(*migrate, *found)
        for server in (to, *(server for server in self.masters if server is not to)):
            server.client.cluster("SETSLOT", slot, "NODE", names[to])
        self._wait_until_all_agree()

    @contextmanager
    def down(self, key: str) -> Iterator[None]:
        """Let nobody serve the hash slot of a key: as long as one is not served, no master answers for any."""
        slot, owner = key_slot(key.encode()), self.master_of(key)
        for master in self.masters:
            master.client.cluster("DELSLOTS", slot)
        self._wait_until_all_know("fail", HASH_SLOTS - 1)
        try:
            yield
        finally:
            owner.client.cluster("ADDSLOTS", slot)
            self._wait_until_all_know()

    def spread(self, *names: str) -> None:
        """Give each of three keys a master of its own."""
        for key, master in zip(names, self.masters, strict=True):
            if self.master_of(key) is not master:
                self.move(key, master)

    def flushall(self) -> None:
        for master in self.masters:
            master.client.flushall()

    def dump(self) -> dict[str, tuple[object, int]]:
        return {key: found for master in self.masters for key, found in master.dump().items()}

    def _start(self, binary: str) -> None:
        port, bus = free_port(), free_port()
        more = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--bind", "127.0.0.1")
        server = Server(f"{self.name}-{port}", binary, "--port", str(port), "--cluster-port", str(bus), *more)
        self.ports.append(port)
        self.masters.append(server)

    def _assign(self) -> None:
        share = HASH_SLOTS // 3 + 1
        for at, master in enumerate(self.masters):
            master.client.cluster("ADDSLOTSRANGE", at * share, min((at + 1) * share, HASH_SLOTS) - 1)
            master.client.cluster("SET-CONFIG-EPOCH", at + 1)
        first = self.masters[0].client
        for port, other in zip(self.ports[1:], self.masters[1:], strict=True):
            bus = other.client.config_get("cluster-port")["cluster-port"]
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)

    def _ranges(self) -> list[dict[str, int]]:
        found = self.masters[0].client.execute_command("CLUSTER", "SLOTS")
        if isinstance(found, dict):
            return [{"first": a, "last": b, "port": each["primary"][1]} for (a, b), each in found.items()]
        return [{"first": each[0], "last": each[1], "port": each[2][1]} for each in found]

    def _wait_until_all_agree(self) -> None:
        """A message that was under way would give a hash slot back, once the next one has moved."""
        deadline = time.monotonic() + START_SECONDS
        while len({_served(master.client.execute_command("CLUSTER NODES")) for master in self.masters}) > 1:
            assert time.monotonic() < deadline, "the masters do not agree on their hash slots"
            time.sleep(0.01)

    def _wait_until_all_know(self, state: str = "ok", served: int = HASH_SLOTS) -> None:
        deadline = time.monotonic() + START_SECONDS
        wanted = {"cluster_state": state, "cluster_slots_ok": str(served)}
        while not all(wanted.items() <= master.client.cluster("INFO").items() for master in self.masters):
            if time.monotonic() > deadline:
                raise AssertionError("the Cluster does not come together")
            time.sleep(0.02)
