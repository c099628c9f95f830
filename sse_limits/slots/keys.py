"""The only place that knows key and channel names.

Keys carry a prefix with a schema version. Keys that share a script on Redis Cluster share a hash tag; subjects stand in
them literally. A key is told from every other by its ending, since tenants are slugs and hold no `}`.
"""

from __future__ import annotations

from functools import lru_cache

from sse_limits.core.slots import Scope

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


def probe(name: str) -> str:
    """What a store writes to see whether it can."""
    return f"{PREFIX}probe:{name}"


_KINDS = {"": Scope.FLEET, "tenant": Scope.TENANT, "address": Scope.ADDRESS, "user": Scope.USER, "class": Scope.CLASS}

# -- what is displayed: written once a second by each node, never read for a decision ---------------------------------


def slot(scope: Scope, subject: str) -> str:
    """The slot set of a subject, as `subject_of` names it."""
    owner, _, name = subject.partition("/")
    match scope:
        case Scope.USER:
            return user(owner or None, name)
        case Scope.CLASS:
            return stream_class(owner or None, name)
        case Scope.TENANT:
            return tenant(subject)
        case Scope.ADDRESS:
            return address(subject)
        case Scope.FLEET:
            return fleet()
        case Scope.NODE:
            raise ValueError("a node's own streams stand in no slot set")


def subject_of(key: str) -> tuple[Scope, str]:
    """Whose slot set a key is: the reverse of `slot`. A user is `<tenant>/<user>`, a class `<tenant>/<class>`."""
    tag, _, ending = key.removeprefix(f"{PREFIX}slot:{{").partition("}")
    kind, _, name = ending.removeprefix(":").partition(":")
    owner = tag[2:]
    scope = _KINDS[kind]
    if scope is Scope.FLEET:
        return scope, ""
    return (scope, f"{owner}/{name}") if scope in (Scope.USER, Scope.CLASS) else (scope, owner)


def is_of_user_or_tenant(key: str) -> bool:
    """Whether a slot set is a user's or a tenant's, without reading whose."""
    return "}:user:" in key or key.endswith("}:tenant")


def nodes() -> str:
    """The living nodes by the end of their lease."""
    return f"{PREFIX}nodes"


def node(node_id: str) -> str:
    """The hash of what a node tells of itself."""
    return f"{PREFIX}node:{node_id}"


def node_streams(node_id: str) -> str:
    """The hash of a node's streams: id -> compact description."""
    return f"{PREFIX}node:{node_id}:streams"


def top(scope: Scope) -> str:
    """How much each subject of a scope holds, as counted when it last changed."""
    return f"{PREFIX}top:{{{scope}}}"


def top_seen(scope: Scope) -> str:
    """When each subject of `top` was last counted: who is not counted for a lease holds nothing."""
    return f"{PREFIX}topseen:{{{scope}}}"


def rejected(seconds: int, start: int) -> str:
    """The rejections of a span of so many seconds from `start` (epoch seconds): cause -> count."""
    return f"{PREFIX}rejected:{{counts}}:{seconds}:{start}"


def rejected_tenants(start: int) -> str:
    """The rejections of a minute by tenant and cause."""
    return f"{PREFIX}rejected:{{counts}}:tenants:{start}"


def rejected_written(name: str) -> str:
    """The number of the last batch of counts that a node has written: one whose answer was lost counts once."""
    return f"{PREFIX}rejected:{{counts}}:written:{name}"


def decisions(hour: int) -> str:
    """The details of the decisions of an hour (hours since the epoch)."""
    return f"{PREFIX}decisions:{hour}"


def history(start: int) -> str:
    """What each node held at the end of a span of ten seconds from `start` (epoch seconds)."""
    return f"{PREFIX}history:{start}"
