"""Reads the models into a `Policy`, and the revocations that are new. Blocks; called by `current.py` only.

The version is read before the tables: a snapshot may hold more than its version says, never less, and the next reading
mends its number. Ids of revocations precede their commits, so the last minute's rows are looked at again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connections, router
from django.db.models import Q

from sse_limits.conf import Conf
from sse_limits.core.address_rules import AddressAction, AddressRule, AddressRules
from sse_limits.core.limits import CHOICES, FIELDS, Membership, Overrides, Policy, Tenant, Tier, UserLimit
from sse_limits.core.revocations import RevocationKind, Revoked

from . import from_settings

LATE_MS = 60_000


def tables() -> ModuleType:
    """The models, imported when they are needed: servers import this module before Django is set up."""
    from sse_limits import models

    return models


class Reader:
    """Remembers what it has read, and reads what is new. For one thread at a time."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._last_id = 0
        self._seen: dict[int, int] = {}

    def policy(self, conf: Conf) -> Policy | None:
        """The policy when its version is another than the one read last, else None."""
        models = tables()
        version = models.PolicyVersion.objects.values_list("version", flat=True).first() or 0
        if version == self._version:
            return None
        found = read_policy(conf, version)
        self._version = version
        return found

    def revocations(self, now: int) -> list[Revoked]:
        """The rows that this reader has not seen and that still matter at `now` (epoch ms)."""
        models = tables()
        recent = Q(id__gt=self._last_id) | Q(created__gt=now - LATE_MS)
        found = []
        for row in models.Revocation.objects.filter(recent, until__gt=now).order_by("id"):
            if row.id not in self._seen:
                self._seen[row.id] = row.created
                self._last_id = max(self._last_id, row.id)
                found.append(Revoked(RevocationKind(row.kind), row.subject, row.not_before, row.until))
        for known in [known for known, created in self._seen.items() if created <= now - 2 * LATE_MS]:
            del self._seen[known]
        return found


def disconnect() -> None:
    """Close this thread's connection: after a fault, and when the thread ends."""
    connections[router.db_for_read(tables().PolicyVersion)].close()


def read_policy(conf: Conf, version: int) -> Policy:
    """Read every table. Tiers that the settings name and nobody has made are the built-in ones."""
    models = tables()
    memberships: dict[str, tuple[Membership, ...]] = {}
    for user, tenant, is_default in _memberships():
        memberships[user] = (*memberships.get(user, ()), Membership(tenant, is_default))
    tiers = {row["slug"]: Tier(row["slug"], row["name"], _overrides(row)) for row in models.Tier.objects.values()}
    built_in = from_settings.built_in_tiers()
    for slug, like in ((conf.default_tier, "free"), (conf.anonymous_tier, "anonymous")):
        tiers.setdefault(slug, Tier(slug, slug, built_in[like].overrides))
    return Policy(
        version=version,
        tiers=tiers,
        tenants={
            row["slug"]: Tenant(row["slug"], row["name"], row["tier__slug"], row["suspended"], _overrides(row))
            for row in models.Tenant.objects.values("slug", "name", "tier__slug", "suspended", *FIELDS)
        },
        memberships=memberships,
        users={
            (row["tenant__slug"], row["user"]): UserLimit(row["suspended"], _overrides(row))
            for row in models.UserLimit.objects.values("tenant__slug", "user", "suspended", *FIELDS)
        },
        default_tier=conf.default_tier,
        anonymous_tier=conf.anonymous_tier,
        fleet_limit=conf.fleet_limit,
        address_rules=AddressRules(
            [
                AddressRule(ipaddress.ip_network(network), AddressAction(action), limit)
                for network, action, limit in models.AddressRule.objects.values_list(
                    "network", "action", "address_limit"
                )
            ]
        ),
    )


def _memberships() -> Iterator[tuple[str, str, bool]]:
    name = f"user__{get_user_model().USERNAME_FIELD}"
    yield from (
        tables().TenantMembership.objects.order_by("id").values_list(name, "tenant__slug", "is_default").iterator()
    )


def _overrides(row: dict[str, Any]) -> Overrides:
    values = {name: row[name] for name in FIELDS}
    chosen = {name: choices(values[name]) for name, choices in CHOICES.items() if values[name] is not None}
    return Overrides(**values | chosen)
