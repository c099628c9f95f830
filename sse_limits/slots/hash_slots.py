"""Hash slots of a Redis Cluster: which key belongs to which, and which master serves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from .topology import Address

KEYLESS = {"TIME", "ASKING", "CLUSTER", "SCRIPT", "INFO"}

Owners = list[Address | None]  # by hash slot


def hash_slot(key: str) -> int:
    """The hash slot of a key, by its tag."""
    return key_slot(key.encode())


def key_of(command: Sequence[Any]) -> str:
    """The first key of a command; "" where any server will do. A channel counts as one: it must go somewhere."""
    if command[0] in ("EVALSHA", "EVAL"):
        return str(command[3]) if command[2] else ""
    return "" if command[0] in KEYLESS else str(command[1])


def by_hash_slot(keys: Iterable[str]) -> dict[int, list[int]]:
    """The positions of keys by their hash slot, in the order in which they came: what one script may touch."""
    found: dict[int, list[int]] = {}
    for position, key in enumerate(keys):
        found.setdefault(hash_slot(key), []).append(position)
    return found


def nobody() -> Owners:
    """The owners before anybody was asked."""
    return [None] * REDIS_CLUSTER_HASH_SLOTS


def read_owners(reply: Sequence[Sequence[Any]], asked: Address) -> Owners:
    """Read what CLUSTER SLOTS returns. A server that does not know its own host leaves it out."""
    owners = nobody()
    for first, last, master, *_ in reply:
        host = text(master[0] or b"")
        address = (host if host not in ("", "?") else asked[0], int(master[1]))
        owners[int(first) : int(last) + 1] = [address] * (int(last) - int(first) + 1)
    return owners


def text(value: str | bytes) -> str:
    """What a server has said, decoded or not."""
    return value.decode() if isinstance(value, bytes) else value
