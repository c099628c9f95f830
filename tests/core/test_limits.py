"""Which limits hold for whom: default -> tier -> tenant -> user, and who may not stream at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.address_rules import AddressAction, AddressRule, AddressRules
from sse_limits.core.identity import Identity
from sse_limits.core.limits import (
    CHOICES,
    FIELDS,
    NOTHING,
    AtUserLimit,
    Limits,
    Membership,
    Outage,
    Overrides,
    Policy,
    Source,
    StreamClass,
    Tenant,
    Tier,
    UserLimit,
)
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.slots import Scope

DEFAULT = Source("default", "")
# Where each overridable field is found in `Limits`.
EFFECTIVE = {
    "user_limit": "user",
    "tenant_limit": "tenant_total",
    "address_limit": "address",
    "at_user_limit": "evicts",
    "lane_events": "lane_events",
    "max_message_bytes": "max_message_bytes",
    "outage": "outage",
}
DEFAULTS = {"at_user_limit": False, "outage": Outage.LOCAL}
HIGH = (9, True, Outage.CLOSED)
LOW = (3, False, Outage.OPEN)

numbers = st.none() | st.integers(0, 10**6)
overrides = st.builds(
    Overrides,
    *(st.none() | st.sampled_from(CHOICES[name]) if name in CHOICES else numbers for name in FIELDS),
)
given_fields = pytest.mark.parametrize("name", FIELDS)


def only(name: str, *, high: bool = False) -> Overrides:
    """Overrides that set one field and leave the others to be inherited."""
    if name == "at_user_limit":
        return Overrides(at_user_limit=AtUserLimit.EVICT if high else AtUserLimit.REJECT)
    if name == "outage":
        return Overrides(outage=Outage.CLOSED if high else Outage.OPEN)
    return Overrides(**{name: 9 if high else 3})


def policy(
    *,
    tier: Overrides = NOTHING,
    tenant: Overrides = NOTHING,
    user: Overrides | None = None,
    memberships: Mapping[str, tuple[Membership, ...]] | None = None,
    suspended_tenant: bool = False,
    suspended_user: bool = False,
) -> Policy:
    users = {("acme", "u1"): UserLimit(suspended_user, user or NOTHING)} if user or suspended_user else {}
    return Policy(
        version=1,
        tiers={
            "free": Tier("free", "Free", tier),
            "pro": Tier("pro", "Pro", Overrides(100, 200, 300, AtUserLimit.EVICT, 400, 500, Outage.OPEN)),
            "anonymous": Tier("anonymous", "Anonymous", Overrides(address_limit=20)),
        },
        tenants={
            "acme": Tenant("acme", "Acme", "free", suspended_tenant, tenant),
            "globex": Tenant("globex", "Globex", "pro"),
        },
        memberships=memberships or {},
        users=users,
        default_tier="free",
        anonymous_tier="anonymous",
    )


def found(policy: Policy, identity: Identity) -> Limits:
    limits = policy.resolve(identity)
    assert isinstance(limits, Limits)
    return limits


def value(limits: Limits, name: str) -> int | Outage | None:
    result: int | Outage | None = getattr(limits, EFFECTIVE[name])
    return result


def effective(limit: int | AtUserLimit | Outage | None) -> int | Outage | None:
    return limit == AtUserLimit.EVICT if isinstance(limit, AtUserLimit) else limit


U1 = Identity(user="u1", tenant="acme")


class TestInheritance:
    def test_every_overridable_field_takes_part(self) -> None:
        assert [field.name for field in fields(Overrides)] == list(FIELDS) == list(EFFECTIVE)

    @given_fields
    def test_what_nobody_sets_is_the_default_no_limit_reject_and_local(self, name: str) -> None:
        limits = found(policy(), U1)
        assert value(limits, name) == DEFAULTS.get(name)
        assert limits.provenance[name] == DEFAULT

    @given_fields
    def test_a_tier_gives_its_tenants_users_what_it_sets(self, name: str) -> None:
        limits = found(policy(tier=only(name, high=True)), U1)
        assert value(limits, name) in HIGH
        assert limits.provenance[name] == Source("tier", "free")

    @given_fields
    def test_a_tenant_s_own_value_comes_before_its_tier_s(self, name: str) -> None:
        limits = found(policy(tier=only(name), tenant=only(name, high=True)), U1)
        assert value(limits, name) in HIGH
        assert limits.provenance[name] == Source("tenant", "acme")

    @given_fields
    def test_a_user_s_own_value_comes_before_all_others(self, name: str) -> None:
        limits = found(policy(tier=only(name), tenant=only(name), user=only(name, high=True)), U1)
        assert value(limits, name) in HIGH
        assert limits.provenance[name].step == "user"

    @given_fields
    def test_a_later_step_may_also_lower(self, name: str) -> None:
        limits = found(policy(tier=only(name, high=True), user=only(name)), U1)
        assert value(limits, name) in LOW
        assert limits.provenance[name].step == "user"

    def test_a_limit_of_zero_is_a_limit_and_not_inherited(self) -> None:
        limits = found(policy(tier=Overrides(user_limit=5), tenant=Overrides(user_limit=0)), U1)
        assert limits.user == 0
        assert limits.provenance["user_limit"] == Source("tenant", "acme")

    @given(overrides, overrides, st.none() | overrides)
    def test_each_field_is_the_last_value_that_was_set_and_says_where_from(
        self, tier: Overrides, tenant: Overrides, user: Overrides | None
    ) -> None:
        limits = found(policy(tier=tier, tenant=tenant, user=user), U1)
        steps = [("user", user), ("tenant", tenant), ("tier", tier)]
        for name in FIELDS:
            set_by = [(step, got) for step, each in steps if each and (got := getattr(each, name)) is not None]
            step, expected = set_by[0] if set_by else ("default", None)
            assert limits.provenance[name].step == step
            assert value(limits, name) == (effective(expected) if set_by else DEFAULTS.get(name))

    @given(overrides, overrides, overrides)
    def test_what_a_user_was_granted_always_wins(self, tier: Overrides, tenant: Overrides, user: Overrides) -> None:
        limits = found(policy(tier=tier, tenant=tenant, user=user), U1)
        for name in FIELDS:
            if getattr(user, name) is not None:
                assert value(limits, name) == effective(getattr(user, name))

    def test_what_was_found_cannot_be_changed(self) -> None:
        limits = found(policy(), U1)
        with pytest.raises(TypeError):
            limits.provenance["user_limit"] = DEFAULT  # type: ignore[index]
        with pytest.raises(AttributeError):
            limits.user = 1  # type: ignore[misc]


class TestTokenTier:
    TOKEN = Identity(user="u1", tenant="acme", tier="pro")

    def test_it_replaces_the_tenant_s_tier(self) -> None:
        limits = found(policy(tier=Overrides(user_limit=1)), self.TOKEN)
        assert (limits.tier, limits.user, limits.tenant_total, limits.address, limits.evicts) == (
            "pro",
            100,
            200,
            300,
            True,
        )
        assert limits.provenance["user_limit"] == Source("tier", "pro")

    @given(overrides, overrides)
    def test_it_replaces_the_tier_step_only(self, tenant: Overrides, user: Overrides) -> None:
        limits = found(policy(tenant=tenant, user=user), self.TOKEN)
        for name in FIELDS:
            if (own := getattr(user, name)) is not None or (own := getattr(tenant, name)) is not None:
                assert value(limits, name) == effective(own)
            else:
                assert limits.provenance[name] == Source("tier", "pro")

    def test_one_that_the_policy_no_longer_knows_is_passed_over(self) -> None:
        assert found(policy(), Identity(user="u1", tenant="acme", tier="gone")).tier == "free"
        assert found(policy(), Identity(user="u1", tenant="globex", tier="gone")).tier == "pro"
        assert found(policy(), Identity(user="u1", tier="gone")).tier == "free"

    def test_it_holds_for_a_user_without_a_tenant(self) -> None:
        limits = found(policy(), Identity(user="u1", tier="pro"))
        assert (limits.tier, limits.tenant) == ("pro", None)


class TestMemberships:
    def resolve(self, *memberships: Membership) -> Limits | Reject:
        return policy(memberships={"u1": memberships}).resolve(Identity(user="u1"))

    def test_a_user_of_no_tenant_has_the_default_tier(self) -> None:
        limits = self.resolve()
        assert isinstance(limits, Limits)
        assert (limits.tenant, limits.tier) == (None, "free")

    @pytest.mark.parametrize("is_default", [False, True])
    def test_the_only_membership_counts(self, is_default: bool) -> None:
        limits = self.resolve(Membership("globex", is_default))
        assert isinstance(limits, Limits)
        assert (limits.tenant, limits.tier) == ("globex", "pro")

    @pytest.mark.parametrize("position", [0, 1])
    def test_of_several_the_default_one_counts_wherever_it_stands(self, position: int) -> None:
        memberships = [Membership("acme", is_default=position == 0), Membership("globex", is_default=position == 1)]
        limits = self.resolve(*memberships)
        assert isinstance(limits, Limits)
        assert limits.tenant == memberships[position].tenant

    @pytest.mark.parametrize("is_default", [False, True])
    def test_several_without_exactly_one_default_are_ambiguous(self, is_default: bool) -> None:
        refused = self.resolve(Membership("acme", is_default), Membership("globex", is_default))
        assert refused == Reject(Reason.TENANT_AMBIGUOUS, Scope.TENANT)

    def test_a_credential_that_names_a_tenant_settles_it(self) -> None:
        ambiguous = policy(memberships={"u1": (Membership("acme"), Membership("globex"))})
        assert found(ambiguous, Identity(user="u1", tenant="globex")).tenant == "globex"

    def test_a_credential_s_tenant_needs_no_membership(self) -> None:
        """Who mints tokens decides; the API that mints for users checks memberships itself."""
        assert (
            found(policy(memberships={"u1": (Membership("acme"),)}), Identity(user="u1", tenant="globex")).tenant
            == "globex"
        )

    def test_another_user_s_memberships_say_nothing(self) -> None:
        assert found(policy(memberships={"u2": (Membership("acme"),)}), Identity(user="u1")).tenant is None


class TestUsersOfTenants:
    def test_users_of_the_same_name_in_two_tenants_are_two_users(self) -> None:
        """u1 of acme was granted more; u1 of globex, and u1 of nobody, were not."""
        granted = policy(user=Overrides(user_limit=77))
        assert found(granted, Identity(user="u1", tenant="acme")).user == 77
        assert found(granted, Identity(user="u1", tenant="globex")).user == 100
        assert found(granted, Identity(user="u1")).user is None

    def test_a_user_without_a_tenant_can_be_granted_something_too(self) -> None:
        plain = policy()
        granted = Policy(
            version=1,
            tiers=plain.tiers,
            tenants=plain.tenants,
            memberships={},
            users={(None, "u1"): UserLimit(overrides=Overrides(user_limit=7))},
            default_tier="free",
            anonymous_tier="anonymous",
        )
        assert found(granted, Identity(user="u1")).user == 7
        assert found(granted, Identity(user="u1", tenant="acme")).user is None


class TestWhoMayNotStream:
    def test_a_tenant_that_the_policy_does_not_know_is_blocked(self) -> None:
        assert policy().resolve(Identity(user="u1", tenant="nobody")) == Reject(Reason.BLOCKED, Scope.TENANT)

    def test_the_empty_tenant_is_an_unknown_one_and_not_none(self) -> None:
        assert policy().resolve(Identity(user="u1", tenant="")) == Reject(Reason.BLOCKED, Scope.TENANT)

    def test_a_suspended_tenant_takes_all_its_users_with_it(self) -> None:
        suspended = policy(suspended_tenant=True, user=Overrides(user_limit=5))
        assert suspended.resolve(U1) == Reject(Reason.SUSPENDED, Scope.TENANT)
        assert suspended.resolve(Identity(user="u9", tenant="acme")) == Reject(Reason.SUSPENDED, Scope.TENANT)

    def test_a_tier_in_a_token_does_not_get_past_a_suspension(self) -> None:
        assert isinstance(policy(suspended_tenant=True).resolve(TestTokenTier.TOKEN), Reject)
        assert isinstance(policy(suspended_user=True).resolve(TestTokenTier.TOKEN), Reject)

    def test_a_suspended_user_is_suspended_in_that_tenant_only(self) -> None:
        suspended = policy(suspended_user=True)
        assert suspended.resolve(U1) == Reject(Reason.SUSPENDED, Scope.USER)
        assert isinstance(suspended.resolve(Identity(user="u1", tenant="globex")), Limits)
        assert isinstance(suspended.resolve(Identity(user="u2", tenant="acme")), Limits)

    def test_a_suspension_that_a_membership_leads_to_holds_as_well(self) -> None:
        suspended = policy(suspended_tenant=True, memberships={"u1": (Membership("acme"),)})
        assert suspended.resolve(Identity(user="u1")) == Reject(Reason.SUSPENDED, Scope.TENANT)


class TestAnonymous:
    def test_it_has_its_tier_and_no_tenant(self) -> None:
        limits = found(policy(), Identity(address="192.0.2.1"))
        assert (limits.tier, limits.tenant, limits.user, limits.address) == ("anonymous", None, None, 20)
        assert limits.provenance["address_limit"] == Source("tier", "anonymous")

    def test_neither_a_tenant_nor_a_tier_is_believed_without_a_user(self) -> None:
        limits = found(policy(), Identity(tenant="acme", tier="pro"))
        assert (limits.tier, limits.tenant) == ("anonymous", None)

    def test_an_empty_name_is_nobody_so_it_cannot_become_one_shared_user(self) -> None:
        assert found(policy(), Identity(user="", tenant="acme")).tier == "anonymous"


class TestHolders:
    """What the display says of who holds something is what decisions use, and a suspended one still has a limit."""

    @given(overrides, overrides, overrides)
    def test_users_and_tenants_have_the_limits_of_their_streams(
        self, tier: Overrides, tenant: Overrides, user: Overrides
    ) -> None:
        rules = policy(tier=tier, tenant=tenant, user=user)
        limits = found(rules, Identity(user="u1", tenant="acme"))
        assert rules.of_holder(Scope.USER, "acme/u1") == (limits.user, limits.provenance["user_limit"])
        other = found(rules, Identity(user="u2", tenant="acme"))
        expected = (other.tenant_total, other.provenance["tenant_limit"])
        assert rules.of_holder(Scope.TENANT, "acme") == expected

    def test_suspended_ones_too(self) -> None:
        rules = policy(tier=Overrides(user_limit=4), suspended_tenant=True, suspended_user=True)
        assert rules.of_holder(Scope.USER, "acme/u1") == (4, Source("tier", "free"))

    @pytest.mark.parametrize("subject", ["/u9", "u9"])
    def test_a_user_without_a_tenant_is_of_the_default_tier(self, subject: str) -> None:
        rules = policy(tier=Overrides(user_limit=4))
        assert rules.of_holder(Scope.USER, subject) == (4, Source("tier", "free"))

    def test_an_address_has_its_rule_s_limit_else_the_anonymous_tier_s(self) -> None:
        office = AddressRule(ip_network("203.0.113.0/24"), AddressAction.LIMIT, 500)
        rules = replace(policy(), address_rules=AddressRules([office]), fleet_limit=7)
        assert rules.of_holder(Scope.ADDRESS, "203.0.113.7") == (500, Source("rule", "203.0.113.0/24"))
        assert rules.of_holder(Scope.ADDRESS, "198.51.100.1") == (20, Source("tier", "anonymous"))
        assert rules.of_holder(Scope.FLEET, "") == (7, Source("settings", ""))

    @pytest.mark.parametrize(
        ("scope", "subject"), [(Scope.TENANT, "gone"), (Scope.NODE, "n1"), (Scope.CLASS, "acme/c")]
    )
    def test_what_the_policy_does_not_know_has_no_limit(self, scope: Scope, subject: str) -> None:
        assert policy().of_holder(scope, subject) == (None, DEFAULT)


class TestStreamClass:
    def test_it_needs_only_a_name(self) -> None:
        assert StreamClass("events") == StreamClass("events", anonymous=False, limit=None, on_reject="status")

    @pytest.mark.parametrize("on_reject", ["status", "event"])
    def test_a_rejection_is_a_status_or_an_event(self, on_reject: str) -> None:
        assert StreamClass("events", on_reject=on_reject).on_reject == on_reject

    @pytest.mark.parametrize("on_reject", ["", "Event", "close", None])
    def test_anything_else_is_named_with_what_to_write_instead(self, on_reject: str) -> None:
        with pytest.raises(ValueError, match=rf"on_reject is {on_reject!r}; it is 'status' or 'event'"):
            StreamClass("events", on_reject=on_reject)

    @pytest.mark.parametrize("limit", [None, 0, 1, 10**6])
    def test_a_limit_is_a_number_of_streams_or_none(self, limit: int | None) -> None:
        assert StreamClass("events", limit=limit).limit == limit

    def test_a_negative_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="limit is -1; it is a number of streams, or None"):
            StreamClass("events", limit=-1)
