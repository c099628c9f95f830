"""The settings of the app: one dict, `SSE_LIMITS`, read in one place and again after `override_settings`.

Every key is a field of `Conf` in lower case, with its type and default; the system checks report what `problems` finds.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from django.conf import settings
from django.core.signals import setting_changed

from sse_limits.core.identity import TrustedProxies
from sse_limits.slots import topology
from sse_limits.slots.base import SseLimitsError

SETTING = "SSE_LIMITS"
REDIS_URL_HINT = (
    "Write redis://host:6379/0, rediss://host, unix:///path/to/socket, redis+cluster://host,host or "
    "redis+sentinel://host,host/master."
)


class InvalidConfiguration(SseLimitsError):
    """A setting that cannot be worked with; the message names the key and what to write instead."""


@dataclass(frozen=True, slots=True)
class Conf:
    """Typed settings. Durations are seconds and may be fractions."""

    redis_url: str | None = None
    """Where slots live. None: an embedded Valkey, private to this checkout and user."""
    store: str = "redis"
    """`redis`, or `memory` for a single process."""
    store_timeout_seconds: float = 0.25
    """How long all store calls of one decision may take."""
    lease_seconds: float = 90
    """How long a slot outlives its last renewal: a crashed node's slots are free after this time."""
    heartbeat_seconds: float = 15
    """How often leases are renewed; at most a third of the lease."""
    keepalive_seconds: float = 15
    """How often an idle event stream gets a comment."""
    recheck_seconds: float = 5
    """How often open streams are held against suspensions, revocations and the expiry of their tokens."""
    write_deadline_seconds: float = 20
    """How long a write may be blocked by a client that does not read before its stream is ended."""
    lane_events: int = 64
    """How many events may wait for one client; the oldest give way."""
    lane_bytes: int = 1 << 20
    """How many bytes may wait for one client."""
    cleanup_seconds: float = 2
    """How long an app may go on after its client has gone, or its stream was ended, before it is cancelled."""
    node_name: str | None = None
    """The name of this node; None: the host name."""
    node_exclusive: bool = False
    """A promise: no two processes ever use this NODE_NAME at the same time, so earlier ones of that name are dead and
    their slots free at once. Never with several workers under one name."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose X-Forwarded-For is believed, and `unix` for the peer of a Unix socket."""
    ipv6_prefix: int = 64
    """IPv6 addresses that share this many bits count as one."""
    allowed_origins: tuple[str, ...] | None = None
    """Origins that may open streams with cookies, as Channels' OriginValidator reads them; None: ALLOWED_HOSTS."""
    cors_origins: tuple[str, ...] = ()
    """Origins that may read answers from other sites, when django-cors-headers is not configured."""
    session_cache_seconds: float = 30
    """How long a session's user is remembered before the database is asked again."""
    query_token: bool = False
    """Whether `?access_token=` is read: URLs end up in logs, so only where nothing else is possible."""
    token_ttl_seconds: float = 300
    """How long a stream token lasts unless it says otherwise."""
    jwt: Mapping[str, Any] | None = None
    """JWTs as stream tokens: `key`, `algorithms`, `audience`, and optionally `issuer`, `leeway_seconds`, `claims`."""
    tenant_resolver: str | None = None
    """Dotted path of a function (user name, policy) -> tenant slug or None, for users without a token."""
    default_tier: str = "free"
    """The tier of a user without a tenant."""
    anonymous_tier: str = "anonymous"
    """The tier of streams that name nobody, where a stream class allows them."""
    fleet_limit: int | None = None
    """Streams over all nodes; None: no limit."""
    policy: Mapping[str, Any] | None = None
    """Tiers, tenants, memberships and users as part of the settings; None: those that are edited in the admin."""

    @property
    def ends_within_seconds(self) -> float:
        """How long after a suspension or a revocation the last stream that it concerns ends."""
        return self.recheck_seconds + 1


FIELDS = {item.name.upper(): item for item in fields(Conf)}
POSITIVE = (
    "store_timeout_seconds",
    "lease_seconds",
    "heartbeat_seconds",
    "keepalive_seconds",
    "token_ttl_seconds",
    "recheck_seconds",
    "write_deadline_seconds",
)
ZERO_OR_MORE = ("cleanup_seconds", "session_cache_seconds")
MAX_SECONDS = 1_000_000_000


class Problem(NamedTuple):
    """Something wrong with a key: the sentence for the user, and what to write instead."""

    check: str
    message: str
    hint: str


@lru_cache(maxsize=1)
def get_conf() -> Conf:
    """The settings in force. Raises `InvalidConfiguration` for the first problem."""
    raw = getattr(settings, SETTING, {})
    for problem in problems(raw):
        raise InvalidConfiguration(f"{problem.message} {problem.hint}")
    return _build(raw)


def base_dir() -> Path:
    """The folder that tells one checkout's embedded server from another's."""
    return Path(getattr(settings, "BASE_DIR", None) or Path.cwd())


def _build(raw: Mapping[str, Any]) -> Conf:
    values: dict[str, Any] = {key.lower(): tuple(v) if isinstance(v, list) else v for key, v in raw.items()}
    return Conf(**values)


def problems(raw: object) -> list[Problem]:
    """Everything that is wrong with the dict, in the order in which it should be mended."""
    if not isinstance(raw, Mapping):
        return [Problem("E001", f"{SETTING} is not a dict.", "Write SSE_LIMITS = {...}.")]
    found = [_unknown(key) for key in raw if key not in FIELDS]
    found += [problem for key, value in raw.items() if (problem := _mistyped(key, value)) is not None]
    return found or _out_of_range(_build(raw))


def _unknown(key: object) -> Problem:
    near = difflib.get_close_matches(str(key).upper(), FIELDS, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(FIELDS)}."
    return Problem("E002", f"{SETTING}[{key!r}] is not a setting.", hint)


def _mistyped(key: str, value: object) -> Problem | None:
    if key not in FIELDS:
        return None
    wanted = get_type_hints(Conf)[key.lower()]
    kinds = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if any(_is_a(value, kind) for kind in kinds):
        return None
    example = f"The default is {getattr(Conf(), key.lower())!r}."
    return Problem("E003", f"{SETTING}[{key!r}] is {value!r}, which is not {_words(kinds)}.", example)


def _is_a(value: object, kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if origin is tuple:
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    if origin in (int, float):
        return isinstance(value, (int, origin)) and not isinstance(value, bool)
    return isinstance(value, origin)


def _words(kinds: tuple[Any, ...]) -> str:
    names = {str: "a string", int: "a whole number", float: "a number", bool: "True or False", NoneType: "None"}
    names |= {tuple: "a list of strings", Mapping: "a dict"}
    return " or ".join(names[get_origin(kind) or kind] for kind in kinds)


def _out_of_range(conf: Conf) -> list[Problem]:
    found = _durations_out_of_range(conf)
    if conf.store not in ("redis", "memory"):
        found.append(_e004("STORE", f" is {conf.store!r}.", "It is 'redis' or 'memory'."))
    if not found and conf.heartbeat_seconds > conf.lease_seconds / 3:
        hint = f"Write at most a third of LEASE_SECONDS: {conf.lease_seconds / 3:g}."
        message = f" is {conf.heartbeat_seconds:g}: one late renewal would lose leases."
        found.append(_e004("HEARTBEAT_SECONDS", message, hint))
    if conf.node_exclusive and not conf.node_name:
        hint = "Set NODE_NAME to what only one process at a time is called, or leave NODE_EXCLUSIVE out."
        found.append(_e004("NODE_EXCLUSIVE", " promises something of NODE_NAME, which is not set.", hint))
    if not 1 <= conf.ipv6_prefix <= 128:
        found.append(_e004("IPV6_PREFIX", f" is {conf.ipv6_prefix}.", "It is from 1 to 128."))
    if conf.fleet_limit is not None and conf.fleet_limit < 0:
        hint = "Write a whole number of streams, or None for no limit."
        found.append(_e004("FLEET_LIMIT", f" is {conf.fleet_limit}.", hint))
    return found + _unreadable(conf)


def _e004(key: str, message: str, hint: str) -> Problem:
    return Problem("E004", f"{SETTING}[{key!r}]{message}", hint)


def _durations_out_of_range(conf: Conf) -> list[Problem]:
    found = [
        _e004(name.upper(), f" is {value!r}.", f"It must be greater than 0 and at most {MAX_SECONDS}.")
        for name in POSITIVE
        if not 0 < (value := getattr(conf, name)) <= MAX_SECONDS
    ]
    found += [
        _e004(name.upper(), f" is {value!r}.", f"It must be from 0 to {MAX_SECONDS}.")
        for name in ZERO_OR_MORE
        if not 0 <= (value := getattr(conf, name)) <= MAX_SECONDS
    ]
    return found


def _unreadable(conf: Conf) -> list[Problem]:
    """Texts of the right type that mean nothing. A URL is not repeated: it may hold a password."""
    found = []
    try:
        TrustedProxies(conf.trusted_proxies)
    except ValueError as exc:
        found.append(_e004("TRUSTED_PROXIES", f": {exc}", "Write networks such as '10.0.0.0/8'."))
    hint = "Write origins such as 'https://app.example.com'."
    found += [_e004("CORS_ORIGINS", f" holds {each!r}.", hint) for each in conf.cors_origins if not _is_origin(each)]
    try:
        topology.parse(conf.redis_url or "redis://")
    except ValueError as exc:
        found.append(_e004("REDIS_URL", f" is not the URL of a Redis server: {exc}.", REDIS_URL_HINT))
    return found


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return text == "null" or (text.isascii() and bool(parts.netloc) and text == f"{parts.scheme}://{parts.netloc}")


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        get_conf.cache_clear()


setting_changed.connect(_forget, dispatch_uid="sse_limits.conf")
