"""From configuration to the immutable `Policy` snapshot that every decision reads.

The source is the `POLICY` dict of the settings; models will fill the same snapshot. Nothing outside knows the source.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from sse_limits.core.limits import FIELDS, AtUserLimit, Membership, Overrides, Policy, Tenant, Tier, UserLimit

from .conf import SETTING, Conf, InvalidConfiguration, Problem, get_conf

BUILT_IN: Mapping[str, Any] = {
    "tiers": {
        "anonymous": {"name": "Anonymous", "address_limit": 20},
        "free": {"name": "Free", "user_limit": 5, "tenant_limit": 50},
    }
}

SECTIONS = ("tiers", "tenants", "memberships", "users")


TenantResolver = Callable[[str, Policy], str | None]


@lru_cache(maxsize=1)
def get_policy() -> Policy:
    """The snapshot in force. Raises `InvalidConfiguration` for the first problem."""
    conf = get_conf()
    for problem in problems(conf):
        raise InvalidConfiguration(f"{problem.message} {problem.hint}")
    return _build(conf)


def problems(conf: Conf) -> list[Problem]:
    """Everything that is wrong with the policy in the settings."""
    raw = conf.policy or BUILT_IN
    found: list[Problem] = []
    found += _unknown("POLICY", raw, SECTIONS)
    for slug, entry in _items(raw, "tiers"):
        found += _entry_problems(f"POLICY['tiers'][{slug!r}]", entry, ("name", *FIELDS))
    for slug, entry in _items(raw, "tenants"):
        found += _entry_problems(f"POLICY['tenants'][{slug!r}]", entry, ("name", "tier", "suspended", *FIELDS))
        found += _slug_problems(slug)
    for position, entry in enumerate(raw.get("memberships", ())):
        found += _entry_problems(f"POLICY['memberships'][{position}]", entry, ("tenant", "user", "is_default"))
    for position, entry in enumerate(raw.get("users", ())):
        found += _entry_problems(f"POLICY['users'][{position}]", entry, ("tenant", "user", "suspended", *FIELDS))
    return found or _reference_problems(conf, raw)


def _items(raw: Mapping[str, Any], section: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    found: Mapping[str, Mapping[str, Any]] = raw.get(section, {})
    return found.items()


def _unknown(where: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> list[Problem]:
    found = []
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            found.append(Problem("E005", f"{SETTING}: {where} has no {key!r}.", hint))
    return found


def _entry_problems(where: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> list[Problem]:
    found = _unknown(where, entry, known)
    for name in ("user_limit", "tenant_limit", "address_limit"):
        value = entry.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            message = f"{SETTING}: {where}[{name!r}] is {value!r}."
            found.append(Problem("E005", message, "Write a whole number of streams, or None to inherit."))
    choice = entry.get("at_user_limit")
    if choice is not None and choice not in list(AtUserLimit):
        message = f"{SETTING}: {where}['at_user_limit'] is {choice!r}."
        found.append(Problem("E005", message, "Write 'reject' or 'evict'."))
    return found


def _slug_problems(slug: str) -> list[Problem]:
    if slug and slug.isascii() and all(char.isalnum() or char in "-_" for char in slug):
        return []
    hint = "Use letters, digits, '-' and '_': tenants stand in keys and topics."
    return [Problem("E005", f"{SETTING}: the tenant {slug!r} is not a slug.", hint)]


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
                message = f"{SETTING}: POLICY[{section!r}][{position}] names no user."
                found.append(Problem("E005", message, "Write 'user': the user name."))
    return found


def _reference(where: str, value: object, kind: str, known: tuple[str, ...]) -> list[Problem]:
    if value in known:
        return []
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    return [Problem("E006", f"{SETTING}: {where} is {value!r}, and there is no such {kind}.", hint)]


def _build(conf: Conf) -> Policy:
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


def _overrides(entry: Mapping[str, Any]) -> Overrides:
    choice = entry.get("at_user_limit")
    return Overrides(
        user_limit=entry.get("user_limit"),
        tenant_limit=entry.get("tenant_limit"),
        address_limit=entry.get("address_limit"),
        at_user_limit=AtUserLimit(choice) if choice is not None else None,
    )


def resolve_tenant(user: str, policy: Policy, conf: Conf) -> str | None:
    """The tenant that the project's `TENANT_RESOLVER` gives a user; without one, memberships decide in `Policy`."""
    if conf.tenant_resolver is None:
        return None
    resolver: TenantResolver = import_string(conf.tenant_resolver)
    return resolver(user, policy)


def _forget(*, setting: str, **_: object) -> None:
    if setting == SETTING:
        get_policy.cache_clear()


setting_changed.connect(_forget, dispatch_uid="sse_limits.policy")
