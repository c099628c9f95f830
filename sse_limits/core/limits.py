"""Which limits hold for whom: default -> tier -> tenant -> user, with provenance; and who may not stream at all.

`Policy` is an immutable snapshot. It is resolved once per subject and cached by the limiter, so clear beats fast here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from .address_rules import AddressRules
from .identity import Identity
from .rejections import Reason, Reject
from .slots import Scope


class AtUserLimit(StrEnum):
    """What happens to a newcomer at the user limit: it is rejected, or the user's own oldest stream gives way."""

    REJECT = "reject"
    EVICT = "evict"


class Outage(StrEnum):
    """Who is admitted while the slot store is away: each node's share of the limit, everybody, or nobody."""

    LOCAL = "local"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Overrides:
    """Limits that a tier, a tenant or a user may set; None inherits from the step before."""

    user_limit: int | None = None
    tenant_limit: int | None = None
    address_limit: int | None = None
    at_user_limit: AtUserLimit | None = None
    lane_events: int | None = None
    max_message_bytes: int | None = None
    outage: Outage | None = None


FIELDS = ("user_limit", "tenant_limit", "address_limit", "at_user_limit", "lane_events", "max_message_bytes", "outage")
CHOICES: Mapping[str, type[StrEnum]] = MappingProxyType({"at_user_limit": AtUserLimit, "outage": Outage})
NOTHING = Overrides()


@dataclass(frozen=True, slots=True)
class StreamClass:
    """A kind of stream: what may open it and what a rejection looks like.

    `limit` caps the streams of this class per tenant. `on_reject` "event" accepts first and then sends
    `event: rejected` (a WebSocket: closes with a code), for clients that cannot read a status. With `tenant_topics` a
    client's topics are those of its tenant. An `exempt` stream is asked for no identity and takes no slot: its view
    decides who may have it, as the live room does for the operators' own streams.
    """

    name: str
    anonymous: bool = False
    limit: int | None = None
    on_reject: str = "status"
    tenant_topics: bool = False
    exempt: bool = False

    def __post_init__(self) -> None:
        if self.on_reject not in ("status", "event"):
            raise ValueError(f"on_reject is {self.on_reject!r}; it is 'status' or 'event'")
        if self.limit is not None and self.limit < 0:
            raise ValueError(f"limit is {self.limit}; it is a number of streams, or None for no limit")


@dataclass(frozen=True, slots=True)
class Tier:
    """A named set of limits that tenants share."""

    slug: str
    name: str
    overrides: Overrides = NOTHING


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer: its tier, and what it was granted beyond it."""

    slug: str
    name: str
    tier: str
    suspended: bool = False
    overrides: Overrides = NOTHING


@dataclass(frozen=True, slots=True)
class Membership:
    """A user's place in a tenant; of several the default one counts."""

    tenant: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class UserLimit:
    """What one user of one tenant was granted, or that they are suspended."""

    suspended: bool = False
    overrides: Overrides = NOTHING


class Source(NamedTuple):
    """Where an effective value comes from: ("tier", "free") reads "tier *free*"."""

    step: str
    slug: str

    def __str__(self) -> str:
        return f"{self.step} {self.slug}".rstrip()


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for one subject. None is no limit; `provenance` names the step that each value comes from."""

    tier: str
    tenant: str | None
    user: int | None
    tenant_total: int | None
    address: int | None
    evicts: bool
    lane_events: int | None = None
    max_message_bytes: int | None = None
    outage: Outage = Outage.LOCAL
    provenance: Mapping[str, Source] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Policy:
    """Every tier, tenant and exception at one version. One without tiers knows nothing yet: nobody can be admitted."""

    version: int
    tiers: Mapping[str, Tier]
    tenants: Mapping[str, Tenant]
    memberships: Mapping[str, tuple[Membership, ...]]
    users: Mapping[tuple[str | None, str], UserLimit]
    default_tier: str
    anonymous_tier: str
    fleet_limit: int | None = None
    address_rules: AddressRules = field(default_factory=AddressRules)
    _shared: dict[tuple[str, str | None, UserLimit | None], Limits] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def resolve(self, identity: Identity) -> Limits | Reject:
        """Find the limits of `identity`, or why it may not stream."""
        if not self.tiers:
            return Reject(Reason.STORE)
        if not identity.user:
            return self._effective(self.anonymous_tier, None, None)
        tenant_slug = self._tenant_of(identity)
        if isinstance(tenant_slug, Reject):
            return tenant_slug
        tenant = self.tenants.get(tenant_slug) if tenant_slug is not None else None
        if tenant_slug is not None and tenant is None:
            return Reject(Reason.BLOCKED, Scope.TENANT)
        if tenant is not None and tenant.suspended:
            return Reject(Reason.SUSPENDED, Scope.TENANT)
        user = self.users.get((tenant_slug, identity.user))
        if user is not None and user.suspended:
            return Reject(Reason.SUSPENDED, Scope.USER)
        return self._effective(self._tier_of(identity, tenant), tenant, user)

    def of_tenant(self, slug: str) -> Limits | None:
        """What a tenant's users get who have no row of their own, also while it is suspended; None: no such tenant."""
        tenant = self.tenants.get(slug)
        return self._effective(tenant.tier, tenant, None) if tenant is not None else None

    def of_holder(self, scope: Scope, subject: str) -> tuple[int | None, Source]:
        """The limit of who holds something, as in slot keys, and where it comes from; a suspended one has it too."""
        match scope:
            case Scope.USER:
                slug, slash, name = subject.partition("/")
                slug, name = (slug, name) if slash else ("", slug)
                tenant = self.tenants.get(slug)
                tier = tenant.tier if tenant is not None else self.default_tier
                limits = self._effective(tier, tenant, self.users.get((slug or None, name)))
                return limits.user, limits.provenance["user_limit"]
            case Scope.TENANT if (of_all := self.of_tenant(subject)) is not None:
                return of_all.tenant_total, of_all.provenance["tenant_limit"]
            case Scope.ADDRESS:
                rule = self.address_rules.find(subject)
                if rule is not None:
                    return rule.limit, Source("rule", str(rule.network))
                limits = self._effective(self.anonymous_tier, None, None)
                return limits.address, limits.provenance["address_limit"]
            case Scope.FLEET:
                return self.fleet_limit, Source("settings", "")
        return None, Source("default", "")

    def _tenant_of(self, identity: Identity) -> str | Reject | None:
        """The tenant that a credential names, else the user's only or default membership."""
        if identity.tenant is not None or identity.user is None:
            return identity.tenant
        found = self.memberships.get(identity.user, ())
        chosen = found if len(found) == 1 else [membership for membership in found if membership.is_default]
        if found and len(chosen) != 1:
            return Reject(Reason.TENANT_AMBIGUOUS, Scope.TENANT)
        return chosen[0].tenant if chosen else None

    def _tier_of(self, identity: Identity, tenant: Tenant | None) -> str:
        """A token's tier replaces the tier step; one that the policy no longer knows is passed over."""
        if identity.tier is not None and identity.tier in self.tiers:
            return identity.tier
        return tenant.tier if tenant is not None else self.default_tier

    def _effective(self, tier_slug: str, tenant: Tenant | None, user: UserLimit | None) -> Limits:
        """The limits of a combination: made once, since all users without an exception of their own share them."""
        combination = (tier_slug, tenant.slug if tenant is not None else None, user)
        if combination not in self._shared:
            self._shared[combination] = self._merge(tier_slug, tenant, user)
        return self._shared[combination]

    def _merge(self, tier_slug: str, tenant: Tenant | None, user: UserLimit | None) -> Limits:
        tier = self.tiers[tier_slug]
        steps = [(Source("tier", tier.slug), tier.overrides)]
        if tenant is not None:
            steps.append((Source("tenant", tenant.slug), tenant.overrides))
        if user is not None:
            steps.append((Source("user", ""), user.overrides))
        values: dict[str, int | StrEnum | None] = dict.fromkeys(FIELDS)
        provenance = dict.fromkeys(FIELDS, Source("default", ""))
        for source, overrides in steps:
            for name in FIELDS:
                value = getattr(overrides, name)
                if value is not None:
                    values[name] = value
                    provenance[name] = source
        outage = values["outage"]
        return Limits(
            tier=tier.slug,
            tenant=tenant.slug if tenant is not None else None,
            user=_number(values["user_limit"]),
            tenant_total=_number(values["tenant_limit"]),
            address=_number(values["address_limit"]),
            evicts=values["at_user_limit"] == AtUserLimit.EVICT,
            lane_events=_number(values["lane_events"]),
            max_message_bytes=_number(values["max_message_bytes"]),
            outage=outage if isinstance(outage, Outage) else Outage.LOCAL,
            provenance=MappingProxyType(provenance),
        )


def _number(value: int | StrEnum | None) -> int | None:
    return value if isinstance(value, int) else None
