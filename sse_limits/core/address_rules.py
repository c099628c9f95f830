"""Exceptions by client address: networks with a limit of their own, exempt ones and blocked ones.

Of several rules the smallest network's counts. An IPv6 client is known by its group (a network), so a rule for less
than a group can never apply; the admin refuses to store one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

_REMEMBERED = 4096

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressAction(StrEnum):
    """What a rule does with the streams of its network."""

    LIMIT = "limit"
    EXEMPT = "exempt"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class AddressRule:
    """One network; `limit` counts for each address in it, and only with the action LIMIT."""

    network: Network
    action: AddressAction
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class AddressRules:
    """All rules, in any order. Immutable; an address that was looked up is remembered."""

    rules: Sequence[AddressRule] = ()
    _find: Callable[[str], AddressRule | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        longest_first = sorted(self.rules, key=lambda rule: -rule.network.prefixlen)
        object.__setattr__(self, "rules", tuple(longest_first))
        object.__setattr__(self, "_find", lru_cache(_REMEMBERED)(self._find_uncached))

    def find(self, address: str | None) -> AddressRule | None:
        """The rule for a grouped client address (IPv4, or a network of IPv6); None where no rule applies."""
        if not self.rules or address is None:
            return None
        return self._find(address)

    def _find_uncached(self, address: str) -> AddressRule | None:
        network = ipaddress.ip_network(address)
        return next((rule for rule in self.rules if _contains(rule.network, network)), None)


def _contains(outer: Network, inner: Network) -> bool:
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type] # one family, as checked
