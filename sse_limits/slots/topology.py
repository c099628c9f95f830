"""What a `REDIS_URL` says: one server, a master behind Sentinel, or a Cluster; and the connections to it.

Timeouts and retries are set here and nowhere else: redis-py's own stay off for asynchronous connections, whose
exchanges have deadlines, and a blocking connection waits once. No message repeats a URL, since it may hold a password.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis.asyncio.connection as asynchronous
import redis.asyncio.sentinel as asynchronous_sentinel
import redis.connection as blocking
import redis.sentinel as blocking_sentinel
from redis.exceptions import RedisError

Address = tuple[str, int]

SERVER_PORT = 6379
SENTINEL_PORT = 26379
SENTINEL_SECONDS = 0.1  # a sentinel that does not answer must leave a decision time to ask the next one
BLOCKING_SENTINEL_SECONDS = 0.5
NO_MASTER = "no sentinel names a master"
OPTIONS = {"db", "username", "password", "client_name", "socket_keepalive"}
SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}
TLS_OPTIONS = {name for name in inspect.signature(blocking.SSLConnection).parameters if name.startswith("ssl_")}
NAMEABLE = TLS_OPTIONS | set(inspect.signature(blocking.Connection).parameters) | {"socket_timeout", "max_connections"}


class Kind(StrEnum):
    """How the servers of a URL belong together."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


SCHEMES = {
    "redis": ("redis", Kind.SERVER),
    "rediss": ("rediss", Kind.SERVER),
    "unix": ("unix", Kind.SERVER),
    "redis+sentinel": ("redis", Kind.SENTINEL),
    "rediss+sentinel": ("rediss", Kind.SENTINEL),
    "redis+cluster": ("redis", Kind.CLUSTER),
    "rediss+cluster": ("rediss", Kind.CLUSTER),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """What a URL says: where to ask first, and how to connect. `options` are redis-py's, for every data server."""

    kind: Kind
    is_tls: bool
    addresses: tuple[Address, ...]
    options: dict[str, Any]
    master: str
    sentinel_options: dict[str, Any]

    def pool(
        self, address: Address | None = None, choose: Callable[[], Awaitable[Address]] | None = None
    ) -> asynchronous.ConnectionPool:
        """Asynchronous connections to the server, to the master of the moment, or to one address of a Cluster.

        With `choose` each connection asks where to go whenever it connects.
        """
        options = {**self.options, "socket_timeout": None, "socket_connect_timeout": None, "retry": None}
        if self.kind is Kind.SENTINEL:
            asked = _Sentinels(self.addresses, sentinel_kwargs=self._sentinel(SENTINEL_SECONDS))  # type: ignore[no-untyped-call] # redis-py has no types here
            return asynchronous_sentinel.SentinelConnectionPool(self.master, asked, ssl=self.is_tls, **options)  # type: ignore[no-untyped-call] # nor here
        if "path" in options:
            return asynchronous.ConnectionPool(asynchronous.UnixDomainSocketConnection, **options)
        host, port = address or self.addresses[0]
        if choose is not None:
            chosen = _ChoosingTls if self.is_tls else _Choosing
            return asynchronous.ConnectionPool(chosen, choose=choose, host=host, port=port, **options)
        kind = asynchronous.SSLConnection if self.is_tls else asynchronous.Connection
        return asynchronous.ConnectionPool(kind, host=host, port=port, **options)

    def blocking_pool(
        self, timeout_seconds: float, address: Address | None = None, **more: Any
    ) -> blocking.ConnectionPool:
        """The same for blocking connections; each of their waits ends after `timeout_seconds`."""
        timeouts = {"socket_timeout": timeout_seconds, "socket_connect_timeout": timeout_seconds}
        options = {**self.options, **more, **timeouts, "retry": None}
        if self.kind is Kind.SENTINEL:
            options_of_sentinels = self._sentinel(BLOCKING_SENTINEL_SECONDS)
            asked = _BlockingSentinels(self.addresses, sentinel_kwargs=options_of_sentinels)  # type: ignore[no-untyped-call] # redis-py has no types here
            return blocking_sentinel.SentinelConnectionPool(self.master, asked, ssl=self.is_tls, **options)  # type: ignore[no-untyped-call] # nor here
        if "path" in options:
            return blocking.ConnectionPool(blocking.UnixDomainSocketConnection, **options)
        host, port = address or self.addresses[0]
        kind = blocking.SSLConnection if self.is_tls else blocking.Connection
        return blocking.ConnectionPool(kind, host=host, port=port, **options)

    def _sentinel(self, timeout_seconds: float) -> dict[str, Any]:
        tls = {name: value for name, value in self.options.items() if name.startswith("ssl_")}
        found = {**tls, **self.sentinel_options, "ssl": self.is_tls, "retry": None}
        return {**found, "socket_timeout": timeout_seconds, "socket_connect_timeout": timeout_seconds}


class _Sentinels(asynchronous_sentinel.Sentinel):
    """Sentinels whose fault is told in few words; redis-py writes all that it knows of each."""

    async def discover_master(self, service_name: str) -> Any:
        """Where the master is."""
        try:
            return await super().discover_master(service_name)
        except asynchronous_sentinel.MasterNotFoundError:
            raise asynchronous_sentinel.MasterNotFoundError(NO_MASTER) from None


class _BlockingSentinels(blocking_sentinel.Sentinel):
    """The same for blocking connections."""

    def discover_master(self, service_name: str) -> Any:
        """Where the master is."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call] # redis-py has no types here
        except blocking_sentinel.MasterNotFoundError:
            raise blocking_sentinel.MasterNotFoundError(NO_MASTER) from None


class _Choosing(asynchronous.Connection):
    """A connection that asks where to go each time that it connects."""

    def __init__(self, *, choose: Callable[[], Awaitable[Address]], **options: Any) -> None:
        self._choose = choose
        super().__init__(**options)

    async def connect(self) -> None:
        """Connect to the server of the moment."""
        if not self.is_connected:
            self.host, self.port = await self._choose()
        await super().connect()  # type: ignore[no-untyped-call] # redis-py has no types here


class _ChoosingTls(_Choosing, asynchronous.SSLConnection):
    """The same with TLS."""


def parse(url: str) -> Topology:
    """Read a URL. Raises `ValueError`, whose text says what is wrong and nothing of the URL but an option's name."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        raise ValueError("it begins with none of the known schemes")
    base, kind = SCHEMES[scheme]
    try:
        parts = urlsplit(f"redis://{rest}")
        asked = set(parse_qs(parts.query, keep_blank_values=True))
    except ValueError:
        raise ValueError("it cannot be read") from None
    tls = TLS_OPTIONS if base == "rediss" else set()
    sentinels = set(SENTINEL_OPTIONS) if kind is Kind.SENTINEL else set()
    _refuse(asked - OPTIONS - tls - sentinels)
    path, master = parts.path, ""
    if kind is Kind.SENTINEL:
        master, _, number = path.removeprefix("/").partition("/")
        path = f"/{number}"
        if not master:
            raise ValueError("behind the sentinels comes /<name of the master>")
    user, at, hosts = parts.netloc.rpartition("@")
    each = [hosts] if kind is Kind.SERVER else hosts.split(",")
    read = [_options(base, f"{user}{at}{host}", path, parts.query) for host in each]
    options = {name: value for name, value in read[0].items() if name not in ("host", "port", "connection_class")}
    sentinel = {SENTINEL_OPTIONS[name]: options.pop(name) for name in SENTINEL_OPTIONS if name in options}
    if kind is Kind.CLUSTER and options.get("db"):
        raise ValueError("a Cluster has the database 0 only")
    if kind is not Kind.SERVER and not all(one.get("host") for one in read):
        raise ValueError("a host is missing")
    port = SENTINEL_PORT if kind is Kind.SENTINEL else SERVER_PORT
    addresses = () if base == "unix" else tuple((one.get("host", "localhost"), one.get("port", port)) for one in read)
    topology = Topology(kind, base == "rediss", addresses, options, master, sentinel)
    _try(topology)
    return topology


def _refuse(unknown: set[str]) -> None:
    """An unescaped ? in a password makes options of its rest: only well-known names are repeated."""
    for name in sorted(unknown):
        raise ValueError(f"the option {name!r} cannot be set" if name in NAMEABLE else "an option is unknown")


def _options(base: str, netloc: str, path: str, query: str) -> dict[str, Any]:
    """What redis-py reads in a URL of one server."""
    if base != "unix" and path.strip("/") and not path.removeprefix("/").isdecimal():
        raise ValueError("a database is a number")
    if base == "unix" and not path:
        raise ValueError("the path of the socket is missing")
    try:
        found: dict[str, Any] = dict(blocking.parse_url(f"{base}://{netloc}{path}?{query}"))  # type: ignore[no-untyped-call] # redis-py has no types here
    except ValueError:
        raise ValueError("a host, a port or an option cannot be read") from None
    return found


def _try(topology: Topology) -> None:
    """Make a connection without connecting: it looks at the values of the options."""
    try:
        topology.blocking_pool(1.0).make_connection()
    except (RedisError, TypeError, ValueError):
        raise ValueError("an option has a value that cannot be used") from None
