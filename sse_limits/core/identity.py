"""Who is asking: the identity of a connect, and the address it really comes from.

Here live the rules for client addresses behind proxies. Looking anybody up (tokens, sessions, tenants) does not:
that is the edge's work. Everything here is pure, raises for wrong configuration only, and never for what a client sent.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

MAX_HOPS = 32
"""How many hops of X-Forwarded-For are looked at, from the right."""
MAX_FORWARDED_BYTES = 4096
"""How much of X-Forwarded-For is looked at, from the right."""

_MAX_ADDRESS_CHARS = 100  # "[<45 of IPv6>%<zone>]:65535" fits; longer text must not fill the caches
_CACHE_SIZE = 4096
_BLANKS = " \t"
_MAPPED_IPV4 = ipaddress.IPv6Network("::ffff:0:0/96")

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is asking. Immutable; `tenant` is a slug and so never holds a "/", which keeps `subject` unambiguous."""

    user: str | None = None
    """The user's name (`get_username()`); None is anonymous."""
    tenant: str | None = None
    tier: str | None = None
    """The tier a token asks for in place of the tenant's."""
    address: str | None = None
    """The grouped client address; None is unknown, and then there is no address scope."""
    topics: tuple[str, ...] | None = None
    """The topics a token allows; None is any, empty is none."""
    expires_at: int | None = None
    """When a token ends, in epoch ms."""
    issued_at: int | None = None
    """When a token was issued, in epoch ms."""
    session: str | None = None
    """The `sid` of the session behind it."""
    token: str | None = None
    """The last 22 characters of the token, by which it can be revoked."""

    @property
    def is_anonymous(self) -> bool:
        """Whether nobody is logged in; an empty name counts as nobody, so it can't become one shared user."""
        return not self.user

    @property
    def subject(self) -> str | None:
        """`<tenant>/<user>`, with an empty tenant where there is none; None when anonymous."""
        return None if self.is_anonymous else f"{self.tenant or ''}/{self.user}"

    def allows_topic(self, topic: str) -> bool:
        """Tell whether `topic`, spelled exactly as in the token, may be read."""
        return self.topics is None or topic in self.topics


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """The proxies whose X-Forwarded-For is believed. Built once from settings, immutable, safe to share.

    An entry is a CIDR network, a single address, or `unix`: the peer of a Unix socket, which has no address.

    Raises:
        ValueError: an entry is none of these; the message names it.
    """

    entries: Sequence[str] = ()
    _trusts_unix: bool = field(init=False, repr=False, compare=False)
    _is_trusted: Callable[[str], bool] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.entries, str):
            raise ValueError(f"Trusted proxies must be a list of strings, not the string {self.entries!r}.")
        entries = tuple(entry.strip() if isinstance(entry, str) else entry for entry in self.entries)
        networks = tuple(_parse_network(entry) for entry in entries if entry != "unix")
        is_trusted = lru_cache(_CACHE_SIZE)(partial(_is_in_any, networks)) if networks else None
        object.__setattr__(self, "entries", entries)
        object.__setattr__(self, "_trusts_unix", "unix" in entries)
        object.__setattr__(self, "_is_trusted", is_trusted)

    def client_address(self, peer: str | None, forwarded_for: Sequence[bytes]) -> str | None:
        """Return the address the connect comes from (not grouped), or None when nobody we trust knows it.

        The header counts only behind a trusted peer. Then the hops are walked from the right past trusted ones; the
        first other hop is the client. A trusted proxy that names no client yields None: its own address would put
        everybody behind it in one bucket.

        Args:
            peer: the socket's address, `scope["client"][0]`; None, empty or a path on a Unix socket.
            forwarded_for: the raw values of all X-Forwarded-For headers, in the order received.
        """
        address = parse_address(peer) if peer else None
        if address is None:
            is_believed = self._trusts_unix and (not peer or peer.startswith(("/", "unix:")))
            return self._forwarded_client(forwarded_for) if is_believed else None
        if self._is_trusted is None or not self._is_trusted(address):
            return address
        return self._forwarded_client(forwarded_for)

    def _forwarded_client(self, forwarded_for: Sequence[bytes]) -> str | None:
        leftmost: str | None = None
        for hop in _hops_from_right(forwarded_for):
            if hop == "unix:" and self._trusts_unix:  # how nginx writes a peer on a Unix socket
                continue
            address = parse_address(hop)
            if address is None or self._is_trusted is None or not self._is_trusted(address):
                return address
            leftmost = address
        return leftmost


def parse_address(text: str) -> str | None:
    """Return the one spelling of an IP address, or None if `text` is none. Never raises.

    Accepts blanks around it, a port (`1.2.3.4:55`, `[::1]:80`), brackets and a zone id, and drops them. A mapped IPv4
    address (`::ffff:1.2.3.4`) is the IPv4 address.
    """
    return _parse_address(text) if len(text) <= _MAX_ADDRESS_CHARS else None


@lru_cache(_CACHE_SIZE)
def group_address(address: str, ipv6_prefix: int = 64) -> str:
    """Return what stands for `address` in the address scope: IPv4 itself, IPv6 its network of `ipv6_prefix` bits.

    Raises:
        ValueError: `address` looks like IPv6 and is not, or `ipv6_prefix` is not within 0 to 128.
    """
    if ":" not in address:
        return address
    canonical = parse_address(address)
    if canonical is None:
        raise ValueError(f"{address!r} is not an IP address.")
    if ":" not in canonical:
        return canonical
    return str(ipaddress.IPv6Network((canonical, ipv6_prefix), strict=False))


@lru_cache(_CACHE_SIZE)
def _parse_address(text: str) -> str | None:
    host = _host_of(text.strip(_BLANKS))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address)))  # by its number: without the zone


def _host_of(text: str) -> str:
    """Strip brackets and port; what is malformed comes back as text that is no address."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        is_whole = bracket and ":" in host and (not rest or (rest[0] == ":" and _is_port(rest[1:])))
        return host if is_whole else ""
    host, _, port = text.partition(":")
    return host if _is_port(port) else text  # IPv6 has more colons, so no port


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535


def _hops_from_right(forwarded_for: Sequence[bytes]) -> list[str]:
    """Split the header's last hops, right to left; the caps keep a hostile header from costing time.

    Empty items at the ends (trailing commas, blank headers) are dropped, and so is an item that the cut went through:
    the rest of it could read as an address.
    """
    joined = b",".join(forwarded_for[-MAX_HOPS:])
    if len(joined) > MAX_FORWARDED_BYTES:
        joined = joined[-MAX_FORWARDED_BYTES - 1 :].partition(b",")[2]
    trimmed = joined.strip(b", \t")
    if not trimmed:
        return []
    hops = trimmed.rsplit(b",", MAX_HOPS)[-MAX_HOPS:]
    return [hop.decode("latin-1").strip(_BLANKS) for hop in reversed(hops)]


def _is_in_any(networks: Sequence[_Network], address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return any(parsed in network for network in networks)


def _parse_network(entry: str) -> _Network:
    if not isinstance(entry, str):  # ip_network would read a number or bytes as an address
        raise ValueError(f"Trusted proxy {entry!r} is not usable: it must be a string.")
    try:
        network = ipaddress.ip_network(entry)
    except ValueError as exc:
        reason = str(exc) if "host bits" in str(exc) else "it is no network, address or the word 'unix'"
        raise ValueError(f"Trusted proxy {entry!r} is not usable: {reason}.") from exc
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED_IPV4):
        mapped = network.network_address.ipv4_mapped
        return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")
    return network
