"""What a stream needs: the slots of its identity by the policy in force, or why it may have none. Without I/O.

Owned by one event loop. What holds for whom is remembered until the policy changes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from .conf import Conf
from .core.address_rules import AddressAction
from .core.identity import Identity
from .core.limits import Limits, Policy, StreamClass
from .core.rejections import Reason, Reject
from .core.revocations import Revocations
from .core.slots import NO_LIMIT, Claim, Demand, Scope
from .policy import get_policy, resolve_tenant
from .slots import keys
from .slots.memory import epoch_ms

log = logging.getLogger("sse_limits.claims")

SUBJECTS_REMEMBERED = 1024


class UnresolvedTenantError(Exception):
    """The project could not say which tenant a user belongs to."""


class Terms(NamedTuple):
    """Where an identity needs slots, with the limits in force: its claims differ by their counts only."""

    scopes: tuple[tuple[Scope, str, int], ...]
    age: str | None
    evicts: bool


class Claims:
    """Makes the claims of one node. `own` says how many streams it holds in each slot set."""

    def __init__(self, conf: Conf, node: str, own: Mapping[str, int]) -> None:
        self.policy = get_policy()
        self.revocations = Revocations()
        self._conf = conf
        self._node = node
        self._own = own
        self._numbers = itertools.count(1)
        self._resolver_works = True
        self._resolve = lru_cache(maxsize=SUBJECTS_REMEMBERED)(self._resolve_uncached)
        self._terms = lru_cache(maxsize=SUBJECTS_REMEMBERED)(self._terms_uncached)

    def learn(self, policy: Policy) -> None:
        """Follow another policy from here on."""
        self.policy = policy
        self._resolve.cache_clear()
        self._terms.cache_clear()

    def new_id(self) -> str:
        """An id that no stream has had."""
        return f"{self._node}-{next(self._numbers)}"

    def make(self, identity: Identity, stream_class: StreamClass) -> Claim | Reject:
        """The claim of a stream under a new id."""
        user, tenant, tier, address = identity.user, identity.tenant, identity.tier, identity.address
        try:
            terms = self._terms(user, tenant, tier, address, stream_class.name, stream_class.limit)
        except UnresolvedTenantError:
            return Reject(Reason.STORE)
        if isinstance(terms, Reject):
            return terms
        barred = self._barred(identity)
        if barred is not None:
            return barred
        own = self._own.get
        demands = tuple([Demand(scope, key, limit, own(key, 0)) for scope, key, limit in terms.scopes])
        return Claim(self.new_id(), self._node, demands, terms.age, terms.evicts)

    def again(self, claim: Claim) -> Claim:
        """The claim under a new id, with what this node holds now."""
        return self.recounted(claim)._replace(stream=self.new_id())

    def recounted(self, claim: Claim) -> Claim:
        """The claim with what this node holds now: a victim may have been ours, and have ended meanwhile."""
        return claim._replace(demands=tuple(d._replace(own=self._own.get(d.key, 0)) for d in claim.demands))

    def verdict(self, identity: Identity) -> Reason | None:
        """Why an open stream of this identity must end; None while it may go on."""
        if identity.expires_at is not None and identity.expires_at <= epoch_ms():
            return Reason.EXPIRED_TOKEN
        refused = self._barred(identity) or self._limits_of(identity)
        return refused.reason if isinstance(refused, Reject) and refused.reason is not Reason.STORE else None

    def limits_of(self, identity: Identity) -> Limits | None:
        """What holds for an identity; None when it may not stream."""
        limits = self._limits_of(identity)
        return limits if isinstance(limits, Limits) else None

    def tenant_of(self, identity: Identity | None) -> str | None:
        """In whose name a client comes, whether or not it may stream; None where nobody is known."""
        if identity is None or identity.user is None or identity.tenant is not None:
            return identity.tenant if identity is not None else None
        limits = self.limits_of(identity)
        return limits.tenant if limits is not None else None

    def _terms_uncached(
        self,
        user: str | None,
        tenant: str | None,
        tier: str | None,
        address: str | None,
        class_name: str,
        class_limit: int | None,
    ) -> Terms | Reject:
        limits = self._resolve(user, tenant, tier)
        if isinstance(limits, Reject):
            return limits
        found: list[tuple[Scope, str, int | None]] = []
        if user is not None:
            found.append((Scope.USER, keys.user(limits.tenant, user), limits.user))
        if class_limit is not None:
            found.append((Scope.CLASS, keys.stream_class(limits.tenant, class_name), class_limit))
        if limits.tenant is not None:
            found.append((Scope.TENANT, keys.tenant(limits.tenant), limits.tenant_total))
        rule = self.policy.address_rules.find(address)
        address_limit = limits.address if rule is None else rule.limit
        if address_limit is not None and address is not None:
            found.append((Scope.ADDRESS, keys.address(address), address_limit))
        found.append((Scope.FLEET, keys.fleet(), self.policy.fleet_limit))
        scopes = tuple([(scope, key, NO_LIMIT if limit is None else limit) for scope, key, limit in found])
        age = keys.age(limits.tenant, user) if user is not None else None
        return Terms(scopes, age, limits.evicts and age is not None)

    def _barred(self, identity: Identity) -> Reject | None:
        """Whether an identity may hold nothing at all, whatever its limits."""
        if self.revocations.covers(identity):
            return Reject(Reason.REVOKED)
        rule = self.policy.address_rules.find(identity.address)
        if rule is not None and rule.action is AddressAction.BLOCK:
            return Reject(Reason.BLOCKED, Scope.ADDRESS)
        return None

    def _limits_of(self, identity: Identity) -> Limits | Reject:
        try:
            return self._resolve(identity.user, identity.tenant, identity.tier)
        except UnresolvedTenantError:
            return Reject(Reason.STORE)

    def _resolve_uncached(self, user: str | None, tenant: str | None, tier: str | None) -> Limits | Reject:
        if user is not None and tenant is None:
            try:
                tenant = resolve_tenant(user, self.policy, self._conf)
            except Exception as exc:  # the project's own: never a 500 for a connect, never a stream without its limits
                if self._resolver_works:
                    log.exception("TENANT_RESOLVER failed: its users are rejected with 503 until it works again")
                self._resolver_works = False
                raise UnresolvedTenantError from exc  # which nobody remembers: the next connect asks again
            self._resolver_works = True
        return self.policy.resolve(Identity(user=user, tenant=tenant, tier=tier))
