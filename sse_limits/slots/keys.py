"""The only place that knows key and channel names.

Keys carry a prefix with a schema version. Keys that share a script on Redis Cluster share a hash tag; subjects stand in
them literally. A key is told from every other by its ending, since tenants are slugs and hold no `}`.
"""

from __future__ import annotations

from functools import lru_cache

PREFIX = "sl:1:"


def user(tenant: str | None, name: str) -> str:
    """The set of a user's streams; a user without a tenant has the tag `{t:}`."""
    return f"{PREFIX}slot:{{t:{tenant or ''}}}:user:{name}"


def age(tenant: str | None, name: str) -> str:
    """The hash of a user's streams with their age, owner and visibility."""
    return f"{PREFIX}age:{{t:{tenant or ''}}}:user:{name}"


@lru_cache(maxsize=4096)
def tenant(slug: str) -> str:
    """The set of a tenant's streams."""
    return f"{PREFIX}slot:{{t:{slug}}}:tenant"


@lru_cache(maxsize=4096)
def stream_class(tenant: str | None, name: str) -> str:
    """The set of the streams of one class; class limits are per tenant."""
    return f"{PREFIX}slot:{{t:{tenant or ''}}}:class:{name}"


@lru_cache(maxsize=4096)
def address(group: str) -> str:
    """The set of the streams from one address, or one IPv6 network."""
    return f"{PREFIX}slot:{{a:{group}}}:address"


def fleet() -> str:
    """The set of all streams."""
    return f"{PREFIX}slot:{{fleet}}"


def log(topic: str) -> str:
    """The stream of a topic's latest events."""
    return f"{PREFIX}log:{topic}"


def channel(topic: str) -> str:
    """The channel that carries a topic's events live."""
    return f"{PREFIX}t:{topic}"


def orders(node: str) -> str:
    """The stream of orders to a node; the channel of the same name wakes it."""
    return f"{PREFIX}orders:{node}"


def ack(order: str) -> str:
    """The channel on which the owner confirms that an order has been carried out."""
    return f"{PREFIX}ack:{order}"
