"""The `POLICY` dict of the settings as a `Policy`, and everything that may be wrong with it.

It is for limits that are part of a deployment. Without it the models are the source.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.utils.module_loading import import_string

from sse_limits.conf import SETTING, Conf, InvalidConfiguration, Problem
from sse_limits.core.limits import (
    CHOICES,
    FIELDS,
    AtUserLimit,
    Membership,
    Outage,
    Overrides,
    Policy,
    Tenant,
    Tier,
    UserLimit,
)

BUILT_IN: Mapping[str, Any] = {
    "tiers": {
        "anonymous": {"name": "Anonymous", "address_limit": 20},
        "free": {"name": "Free", "user_limit": 5, "tenant_limit": 50},
    }
}

BY_SLUG = ("tiers", "tenants")
ENTRY_KEYS: Mapping[str, tuple[str, ...]] = {
    "tiers": ("name", *FIELDS),
    "tenants": ("name", "tier", "suspended", *FIELDS),
    "memberships": ("tenant", "user", "is_default"),
    "users": ("tenant", "user", "suspended", *FIELDS),
}


def problems(conf: Conf) -> list[Problem]:
    """Everything that is wrong with the policy in the settings."""
    if conf.policy is None:
        return _resolver_problems(conf.tenant_resolver)
    raw = conf.policy or BUILT_IN
    found = _unknown("POLICY", raw, tuple(ENTRY_KEYS))
    for section, known in ENTRY_KEYS.items():
        found += _section_problems(section, raw.get(section, {} if section in BY_SLUG else []), known)
    return found or _reference_problems(conf, raw)


def _section_problems(section: str, raw: Any, known: tuple[str, ...]) -> list[Problem]:
    where = f"POLICY[{section!r}]"
    if section in BY_SLUG and not isinstance(raw, Mapping):
        return [_e005(f"{where} is {raw!r}, which is not a dict.", "Write {'slug': {...}, ...}.")]
    if section not in BY_SLUG and not isinstance(raw, (list, tuple)):
        return [_e005(f"{where} is {raw!r}, which is not a list.", "Write [{'user': 'name', ...}, ...].")]
    found = []
    for key, entry in raw.items() if isinstance(raw, Mapping) else enumerate(raw):
        found += _slug_problems(section, key)
        if isinstance(entry, Mapping):
            found += _entry_problems(f"{where}[{key!r}]", entry, known)
        else:
            hint = f"Its keys: {', '.join(known)}."
            found.append(_e005(f"{where}[{key!r}] is {entry!r}, which is not a dict.", hint))
    return found


def _e005(message: str, hint: str) -> Problem:
    return Problem("E005", f"{SETTING}: {message}", hint)


def _items(raw: Mapping[str, Any], section: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    found: Mapping[str, Mapping[str, Any]] = raw.get(section, {})
    return found.items()


def _unknown(where: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> list[Problem]:
    found = []
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            found.append(_e005(f"{where} has no {key!r}.", hint))
    return found


def _entry_problems(where: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> list[Problem]:
    found = _unknown(where, entry, known)
    for name, (is_right, hint) in VALUES.items():
        if name in known and name in entry and not is_right(entry[name]):
            found.append(_e005(f"{where}[{name!r}] is {entry[name]!r}.", hint))
    return found


def _is_limit(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_size(value: object) -> bool:
    return _is_limit(value) and value != 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


_LIMIT = (_is_limit, "Write a whole number of streams, or None to inherit.")
_SIZE = (_is_size, "Write a whole number greater than 0, or None to inherit.")
_SWITCH = (_is_switch, "Write True or False.")
VALUES: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "name": (_is_text, "Write a text for people to read."),
    "suspended": _SWITCH,
    "is_default": _SWITCH,
    "user_limit": _LIMIT,
    "tenant_limit": _LIMIT,
    "address_limit": _LIMIT,
    "lane_events": _SIZE,
    "max_message_bytes": _SIZE,
    "at_user_limit": (lambda value: value is None or value in list(AtUserLimit), "Write 'reject' or 'evict'."),
    "outage": (lambda value: value is None or value in list(Outage), "Write 'local', 'open' or 'closed'."),
}


def _slug_problems(section: str, slug: object) -> list[Problem]:
    is_text = isinstance(slug, str) and slug != ""
    if section == "tiers" and not is_text:
        return [_e005(f"the tier {slug!r} is not a slug.", "Use a text such as 'free'.")]
    if section == "tenants" and not (is_text and re.fullmatch("[A-Za-z0-9_-]+", str(slug))):
        hint = "Use letters, digits, '-' and '_': tenants stand in keys and topics."
        return [_e005(f"the tenant {slug!r} is not a slug.", hint)]
    return []


def _reference_problems(conf: Conf, raw: Mapping[str, Any]) -> list[Problem]:
    tiers, tenants = tuple(raw.get("tiers", {})), tuple(raw.get("tenants", {}))
    found = _reference("DEFAULT_TIER", conf.default_tier, "tier", tiers)
    found += _reference("ANONYMOUS_TIER", conf.anonymous_tier, "tier", tiers)
    for slug, entry in _items(raw, "tenants"):
        found += _reference(f"POLICY['tenants'][{slug!r}]['tier']", entry.get("tier"), "tier", tiers)
    for section in ("memberships", "users"):
        for position, entry in enumerate(raw.get(section, ())):
            if section == "memberships" or entry.get("tenant") is not None:
                where = f"POLICY[{section!r}][{position}]['tenant']"
                found += _reference(where, entry.get("tenant"), "tenant", tenants)
            if not isinstance(entry.get("user"), str) or not entry["user"]:
                found.append(_e005(f"POLICY[{section!r}][{position}] names no user.", "Write 'user': the user name."))
    return found + _resolver_problems(conf.tenant_resolver)


def _resolver_problems(path: str | None) -> list[Problem]:
    if path is None:
        return []
    hint = "Write the dotted path of a function (user name, policy) -> tenant slug or None."
    where = f"{SETTING}: TENANT_RESOLVER is {path!r}, which"
    try:
        found = import_string(path)
    except (ImportError, TypeError, ValueError) as exc:  # the last two: of a path that is no path
        return [Problem("E006", f"{where} cannot be imported: {exc}.", hint)]
    return [] if callable(found) else [Problem("E006", f"{where} is not a function.", hint)]


def _reference(where: str, value: object, kind: str, known: tuple[str, ...]) -> list[Problem]:
    if value in known:
        return []
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    return [Problem("E006", f"{SETTING}: {where} is {value!r}, and there is no such {kind}.", hint)]


def build(conf: Conf) -> Policy:
    """The snapshot of the settings. Raises `InvalidConfiguration` for the first problem."""
    for problem in problems(conf):
        raise InvalidConfiguration(f"{problem.message} {problem.hint}")
    raw = conf.policy or BUILT_IN
    memberships: dict[str, tuple[Membership, ...]] = {}
    for entry in raw.get("memberships", ()):
        membership = Membership(entry["tenant"], entry.get("is_default", False))
        memberships[entry["user"]] = (*memberships.get(entry["user"], ()), membership)
    return Policy(
        version=0,
        tiers={slug: Tier(slug, entry.get("name", slug), _overrides(entry)) for slug, entry in _items(raw, "tiers")},
        tenants={
            slug: Tenant(slug, entry.get("name", slug), entry["tier"], entry.get("suspended", False), _overrides(entry))
            for slug, entry in _items(raw, "tenants")
        },
        memberships=memberships,
        users={
            (entry.get("tenant"), entry["user"]): UserLimit(entry.get("suspended", False), _overrides(entry))
            for entry in raw.get("users", ())
        },
        default_tier=conf.default_tier,
        anonymous_tier=conf.anonymous_tier,
        fleet_limit=conf.fleet_limit,
    )


def built_in_tiers() -> Mapping[str, Tier]:
    """The tiers that are there when nobody has made one."""
    return {slug: Tier(slug, entry["name"], _overrides(entry)) for slug, entry in _items(BUILT_IN, "tiers")}


def _overrides(entry: Mapping[str, Any]) -> Overrides:
    values = {name: entry[name] for name in FIELDS if entry.get(name) is not None}
    chosen = {name: choices(values[name]) for name, choices in CHOICES.items() if name in values}
    return Overrides(**values | chosen)
