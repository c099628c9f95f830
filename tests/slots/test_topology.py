"""What a REDIS_URL says, and what is wrong with one that says nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis.asyncio import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.sentinel import MasterNotFoundError as BlockingMasterNotFoundError

from sse_limits.slots.topology import Kind, parse


@pytest.mark.parametrize(
    ("url", "addresses", "options"),
    [
        ("redis://", (("localhost", 6379),), {}),
        ("redis://h:1/3", (("h", 1),), {"db": 3}),
        (
            "redis://u:p%40@[::1]:7?client_name=n",
            (("::1", 7),),
            {"username": "u", "password": "p@", "client_name": "n"},
        ),
        ("rediss://h?ssl_ca_certs=/ca.pem&db=2", (("h", 6379),), {"ssl_ca_certs": "/ca.pem", "db": 2}),
        ("unix:///run/s?db=2", (), {"path": "/run/s", "db": 2}),
    ],
)
def test_a_server(url: str, addresses: Any, options: Any) -> None:
    found = parse(url)
    assert (found.kind, found.is_tls) == (Kind.SERVER, url.startswith("rediss"))
    assert (found.addresses, found.options) == (addresses, options)


def test_a_cluster_names_some_of_its_servers() -> None:
    found = parse("rediss+cluster://u:p@h1:1,h2,[::1]:7?ssl_check_hostname=no")
    assert (found.kind, found.is_tls) == (Kind.CLUSTER, True)
    assert found.addresses == (("h1", 1), ("h2", 6379), ("::1", 7))
    assert found.options == {"username": "u", "password": "p", "ssl_check_hostname": False}


def test_sentinels_may_have_credentials_of_their_own() -> None:
    found = parse("redis+sentinel://u:p@s1,s2:4/main/2?sentinel_password=q")
    assert (found.kind, found.master) == (Kind.SENTINEL, "main")
    assert found.addresses == (("s1", 26379), ("s2", 4))
    assert found.options == {"username": "u", "password": "p", "db": 2}
    assert found.sentinel_options == {"password": "q"}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "it begins with none of the known schemes"),
        ("redis+shards://h", "it begins with none of the known schemes"),
        ("unix+cluster:///run/s", "it begins with none of the known schemes"),
        ("redis://[", "it cannot be read"),
        ("redis://h:70000", "a host, a port or an option cannot be read"),
        ("redis://h?db=x", "a host, a port or an option cannot be read"),
        ("redis://h/main", "a database is a number"),
        ("unix://", "the path of the socket is missing"),
        ("redis+cluster://a,,b", "a host is missing"),
        ("redis+cluster://a/1", "a Cluster has the database 0 only"),
        ("redis+sentinel://a,b/", "behind the sentinels comes /<name of the master>"),
        ("redis+sentinel://a/main/x", "a database is a number"),
        ("redis://h?socket_timeout=5", "the option 'socket_timeout' cannot be set"),
        ("redis://h?ssl_ca_certs=/ca.pem", "the option 'ssl_ca_certs' cannot be set"),
        ("rediss://h?ssl_cert_reqs=often", "an option has a value that cannot be used"),
        ("redis+cluster://h?sentinel_password=q", "an option is unknown"),
    ],
)
def test_what_is_wrong_is_said(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://u:hunter2@h",
        "redis://u:hunter/2@h",
        "redis://u:p?hunter2=x@h",
        "redis://u:hunter2@h:port",
        "redis+cluster://u:hunter2@",
    ],
)
def test_a_password_is_never_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"it begins|number|option|read|missing") as caught:
        parse(url)
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "kind"),
    [("redis://h", Connection), ("rediss+cluster://h", SSLConnection), ("unix:///s", UnixDomainSocketConnection)],
)
def test_connections_never_wait_or_try_again_by_themselves(url: str, kind: type) -> None:
    pool = parse(url).pool()
    made = pool.make_connection()
    assert type(made) is kind
    assert (made.socket_timeout, made.socket_connect_timeout, made.retry.get_retries()) == (None, None, 0)
    blocking = parse(url).blocking_pool(0.7).make_connection()
    assert (blocking.socket_timeout, blocking.socket_connect_timeout, blocking.retry.get_retries()) == (0.7, 0.7, 0)


async def test_sentinels_are_asked_without_trying_again() -> None:
    pool = parse("redis+sentinel://a,b/main").pool()
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.make_connection().retry.get_retries() == 0
    for sentinel in pool.sentinel_manager.sentinels:
        made = sentinel.connection_pool.make_connection()
        assert (made.socket_timeout, made.retry.get_retries()) == (0.1, 0)


async def test_that_no_sentinel_names_a_master_is_told_in_few_words() -> None:
    """redis-py writes the options of every sentinel's connection."""
    topology = parse("redis+sentinel://u:hunter2@127.0.0.1:1,127.0.0.1:2/main?sentinel_password=hunter2")
    pool = topology.pool()
    with pytest.raises(MasterNotFoundError, match=r"^no sentinel names a master$"):
        await pool.make_connection().connect()
    with pytest.raises(BlockingMasterNotFoundError, match=r"^no sentinel names a master$"):
        topology.blocking_pool(0.5).make_connection().connect()
