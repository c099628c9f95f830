"""The kinds of fault of a slot store, each as a context: felt inside, over behind it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import redis

from tests.servers.slots import Store

from .proxy import Proxy

LATENCY_SECONDS = 0.3
FLUSH_EVERY_SECONDS = 0.05
LOST_SECONDS = 0.5
FOREIGN_BYTES = 10_000
FOREIGN_AT_ONCE = 50
ROOM_BYTES = 4_000_000
START_SECONDS = 10


class Site:
    """The store that nodes reach through the proxy, and what may take its place."""

    def __init__(self, store: Store, proxy: Proxy) -> None:
        self.first = store
        self.store = store  # the one that nodes reach now
        self.proxy = proxy
        self._others: list[Store] = []

    def standby(self) -> Store:
        """Another server, empty."""
        found = Store("standby", self.first.binary)
        self._others.append(found)
        return found

    def heal(self) -> None:
        """Everything as it was."""
        self.proxy.pass_all()
        self.proxy.accept()
        if self.store is not self.first:
            self.proxy.point_to(self.first.socket, drop=True)
            self.store = self.first
        while self._others:
            self._others.pop().end()


Fault = Callable[[Site], AbstractContextManager[None]]


@dataclass(frozen=True)
class Kind:
    """One kind of fault: whether nodes decide alone meanwhile, and whether the store has forgotten what it knew."""

    fault: Fault
    is_outage: bool = True
    forgets: bool = False

    def overshoot(self, limit: int, nodes: int, *, is_even: bool) -> int:
        """How many more than the limit may hold a scope afterwards; `is_even`: what it held was spread over the nodes.

        Deciding alone, a node has the limit's share, or as many as it holds already. So one that holds them all leaves
        their whole shares to the others.
        """
        if self.forgets:
            return limit
        if not self.is_outage:
            return 0
        return nodes - 1 if is_even else (nodes - 1) * -(-limit // nodes)


@contextmanager
def stall(site: Site) -> Iterator[None]:
    """The server stands still and its sockets take bytes (SIGSTOP)."""
    with site.store.stalled():
        yield


@contextmanager
def kill(site: Site) -> Iterator[None]:
    """The server dies, and comes back empty in the same place."""
    site.store.kill()
    yield
    site.store.restart()


@contextmanager
def latency(site: Site) -> Iterator[None]:
    """Every answer comes 300 ms late."""
    site.proxy.delay(LATENCY_SECONDS, "reply")
    yield
    site.proxy.pass_all()


@contextmanager
def readonly(site: Site) -> Iterator[None]:
    """The server becomes a replica: reads are answered, writes say READONLY."""
    with site.store.demoted():
        yield


@contextmanager
def out_of_memory(site: Site) -> Iterator[None]:
    """No memory, and nothing may be evicted: writes that need some say OOM."""
    with site.store.out_of_memory():
        yield


@contextmanager
def noscript(site: Site) -> Iterator[None]:
    """Scripts are forgotten every 50 ms."""
    ended = threading.Event()

    def flush() -> None:
        with connected(site.store) as client:
            while not ended.wait(FLUSH_EVERY_SECONDS):
                client.script_flush()

    with running(flush, ended):
        yield


@contextmanager
def busy(site: Site) -> Iterator[None]:
    """Somebody's script never ends: everything is answered with BUSY."""
    site.store.client.config_set("busy-reply-threshold", 20)

    def loop() -> None:
        with connected(site.store) as client, contextlib.suppress(redis.ResponseError):
            client.eval("while true do end", 0)

    with running(loop):
        try:
            yield
        finally:
            until_done(site.store.client.script_kill)


@contextmanager
def maxclients(site: Site) -> Iterator[None]:
    """Every connection is closed, and new ones are refused with an error: only the test's own has room."""
    client = site.store.client
    client.config_set("maxclients", 1)
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)
    yield
    client.config_set("maxclients", 10_000)


@contextmanager
def reset(site: Site) -> Iterator[None]:
    """Every connection is reset in the middle of an answer."""
    site.proxy.reset_after(5, "reply", always=True)
    yield
    site.proxy.pass_all()


@contextmanager
def lru(site: Site) -> Iterator[None]:
    """Other people's keys push ours out of memory, again and again."""
    client = site.store.client
    client.config_set("maxmemory-samples", 1)
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + ROOM_BYTES)
    evicted = client.info("stats")["evicted_keys"]
    ended = threading.Event()

    def push() -> None:
        with connected(site.store) as own:
            for number in range(10**9):
                pipeline = own.pipeline(transaction=False)
                for at in range(FOREIGN_AT_ONCE):
                    pipeline.set(f"foreign:{number}:{at}", "x" * FOREIGN_BYTES, ex=60)
                pipeline.execute()
                if ended.wait(0.01):
                    return

    with running(push, ended):
        yield
    assert client.info("stats")["evicted_keys"] > evicted + 1000
    client.config_set("maxmemory", 0)
    for key in client.scan_iter("foreign:*", count=1000):
        client.unlink(key)


@contextmanager
def failover(site: Site) -> Iterator[None]:
    """The server dies, and its replica, which has not got the last half second, takes its place."""
    replica = site.standby()
    for key in site.store.client.scan_iter("*", count=1000):
        copy(key, site.store, replica)
    time.sleep(LOST_SECONDS)
    site.store = replica
    site.proxy.point_to(replica.socket, drop=True)
    yield


@contextmanager
def closed_port(site: Site) -> Iterator[None]:
    """Nobody listens."""
    site.proxy.refuse(drop=True)
    yield
    site.proxy.accept()


@contextmanager
def mute(site: Site) -> Iterator[None]:
    """The server does what it is told, and its answers come when it is over."""
    site.proxy.black_hole("reply")
    yield
    site.proxy.pass_all()


@contextmanager
def deaf(site: Site) -> Iterator[None]:
    """What the server is told reaches it when it is over."""
    site.proxy.black_hole("request")
    yield
    site.proxy.pass_all()


KINDS: dict[str, Kind] = {
    "stall": Kind(stall),
    "kill": Kind(kill, forgets=True),
    "latency": Kind(latency),
    "readonly": Kind(readonly),
    "oom": Kind(out_of_memory),
    "noscript": Kind(noscript, is_outage=False),
    "busy": Kind(busy),
    "maxclients": Kind(maxclients),
    "reset": Kind(reset),
    "lru": Kind(lru, is_outage=False, forgets=True),
    "failover": Kind(failover, forgets=True),
    "closed port": Kind(closed_port),
}
ONE_WAY: dict[str, Kind] = {
    "mute": Kind(mute),
    "deaf": Kind(deaf),
}


@contextmanager
def connected(store: Store) -> Iterator[redis.Redis]:
    """A client of its own, for a thread; it waits for as long as it takes, and says nothing twice."""
    with redis.Redis(unix_socket_path=str(store.socket), socket_timeout=None, retry=None) as client:
        yield client


@contextmanager
def running(work: Callable[[], None], ended: threading.Event | None = None) -> Iterator[None]:
    """Do something in a thread meanwhile."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if ended is not None:
            ended.set()
    thread.join(START_SECONDS)


def until_done(command: Callable[[], object]) -> None:
    """Say it until the server does it."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            command()
        except redis.ResponseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def copy(key: bytes | str, source: Store, target: Store) -> None:
    """Bring one key over as it is."""
    with connected(source) as raw, connected(target) as other:
        value, ttl = raw.dump(key), raw.pttl(key)
        if value is not None:
            other.restore(key, max(ttl, 0), value, replace=True)
