"""Decision ids that explain themselves.

An id is the base32 of when, which node, why, which scope, limit, in use and policy version, with a counter and a
4-byte MAC: resolvable for ever without storage (a stored line per decision would be 2 GB a day under a flood).
"""

from __future__ import annotations

import hmac
import struct
from base64 import b32decode
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2s

from .rejections import CAUSES, Reason, Reject
from .slots import Scope

VERSION = 1
NONE = 0xFFFFFFFF
MAC_BYTES = 4
NODE_BYTES = 5  # of randomness: 8 base32 characters

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
# Blocks of five bytes, eight characters each, laid out so that all but the last two seldom change from id to id:
# time (5 of 6 bytes) | node | version, policy version | scope, limit | reason, in use | time (last), counter | MAC, 0
_HEAD = struct.Struct(">IB5sBIBIBI")
_TAIL = struct.Struct(">BI")
_BLOCK = 5
CHARS = (_HEAD.size + _TAIL.size + MAC_BYTES + 1) * 8 // _BLOCK
_REASONS = {cause.code: reason for reason, cause in CAUSES.items()}
_SCOPES = {scope: code for code, scope in enumerate(Scope, start=1)}
_SCOPE_NAMES = {code: scope for scope, code in _SCOPES.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """What an id says. `at` is epoch ms; `node` the 8 characters that also begin the node's stream ids."""

    at: int
    node: str
    reason: Reason
    scope: Scope | None
    limit: int | None
    in_use: int | None
    policy_version: int
    number: int


class DecisionMint:
    """Mints the ids of one node; `count` is how many it has minted."""

    def __init__(self, key: bytes, node: str) -> None:
        self._key = key
        self._node = b32decode(node.upper())
        self.count = 0

    def mint(self, reject: Reject, at: int, policy_version: int) -> str:
        """Make the id of a decision taken `at` (epoch ms)."""
        self.count += 1
        packed, text = _head(at >> 8, self._node, policy_version, reject)
        tail = _TAIL.pack(at & 0xFF, self.count & 0xFFFFFFFF)
        return text + _encode(tail) + _encode(_mac(self._key, packed + tail) + b"\0")


@lru_cache(maxsize=1024)
def _head(at: int, node: bytes, policy_version: int, reject: Reject) -> tuple[bytes, str]:
    """What the ids of like decisions within a quarter of a second share; every rejection pays for its id."""
    reason, scope, limit, in_use = reject
    packed = _HEAD.pack(
        at >> 8,
        at & 0xFF,
        node,
        VERSION,
        policy_version & 0xFFFFFFFF,
        0 if scope is None else _SCOPES[scope],
        NONE if limit is None else min(limit, NONE - 1),
        CAUSES[reason].code,
        NONE if in_use is None else min(in_use, NONE - 1),
    )
    return packed, "".join(_encode(packed[start : start + _BLOCK]) for start in range(0, len(packed), _BLOCK))


def explain(text: str, key: bytes) -> Decision | None:
    """Read an id, in either case; None when it is not one that `key` made."""
    if len(text) != CHARS or not text.isascii():  # some letters beyond it have ASCII capitals: U+017F has "S"
        return None
    try:
        raw = b32decode(text.upper())
    except ValueError:
        return None
    split = _HEAD.size + _TAIL.size
    packed, mac, rest = raw[:split], raw[split : split + MAC_BYTES], raw[split + MAC_BYTES :]
    if rest != b"\0" or not hmac.compare_digest(mac, _mac(key, packed)):
        return None
    high, middle, node, version, policy_version, scope, limit, reason, in_use = _HEAD.unpack_from(packed)
    low, number = _TAIL.unpack_from(packed, _HEAD.size)
    if version != VERSION or reason not in _REASONS:
        return None
    return Decision(
        at=high << 16 | middle << 8 | low,
        node=_encode(node),
        reason=_REASONS[reason],
        scope=_SCOPE_NAMES.get(scope),
        limit=None if limit == NONE else limit,
        in_use=None if in_use == NONE else in_use,
        policy_version=policy_version,
        number=number,
    )


def node_name(random: bytes) -> str:
    """The 8 characters of a node from its 5 random bytes."""
    return _encode(random)


def _encode(block: bytes) -> str:
    """Base32 of five bytes; base64.b32encode costs several times as much, and every rejection pays for it."""
    number = int.from_bytes(block)
    return _PAIRS[number >> 30] + _PAIRS[number >> 20 & 1023] + _PAIRS[number >> 10 & 1023] + _PAIRS[number & 1023]


def _mac(key: bytes, packed: bytes) -> bytes:
    """Keyed BLAKE2s: a MAC by construction, at a third of the cost of HMAC-SHA256."""
    return blake2s(packed, digest_size=MAC_BYTES, key=key).digest()
