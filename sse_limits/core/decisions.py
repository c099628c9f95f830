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
_FORMAT = struct.Struct(">IB5sBIBIBIBI")
_BLOCK = 5
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
        reason, scope, limit, in_use = reject
        packed = _FORMAT.pack(
            at >> 16,
            at >> 8 & 0xFF,
            self._node,
            VERSION,
            policy_version & 0xFFFFFFFF,
            0 if scope is None else _SCOPES[scope],
            NONE if limit is None else min(limit, NONE - 1),
            CAUSES[reason].code,
            NONE if in_use is None else min(in_use, NONE - 1),
            at & 0xFF,
            self.count & 0xFFFFFFFF,
        )
        text = [_encode_cached(packed[start : start + _BLOCK]) for start in range(0, 5 * _BLOCK, _BLOCK)]
        mac = hmac.digest(self._key, packed, "sha256")[:MAC_BYTES]
        return "".join(text) + _encode(packed[5 * _BLOCK :]) + _encode(mac + b"\0")


def explain(text: str, key: bytes) -> Decision | None:
    """Read an id; None when it is not one that `key` made."""
    try:
        raw = b32decode(text.upper())
    except ValueError:
        return None
    packed, mac = raw[: _FORMAT.size], raw[_FORMAT.size : -1]
    if len(mac) != MAC_BYTES or not hmac.compare_digest(mac, hmac.digest(key, packed, "sha256")[:MAC_BYTES]):
        return None
    high, middle, node, version, policy_version, scope, limit, reason, in_use, low, number = _FORMAT.unpack(packed)
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


_encode_cached = lru_cache(maxsize=1024)(_encode)
