"""The policy that the database holds: every field arrives and has its effect, and it is read again when it changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from sse_limits.conf import get_conf
from sse_limits.core.address_rules import AddressAction
from sse_limits.core.identity import Identity
from sse_limits.core.limits import FIELDS, Limits, Membership, Source, StreamClass
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.slots import Scope
from sse_limits.limiter import Limiter
from sse_limits.models import AddressRule, Revocation, Tenant, TenantMembership, Tier, UserLimit
from sse_limits.policy import PolicyUnavailable, get_policy, watch
from sse_limits.policy.current import Facts, Watch
from sse_limits.policy.from_database import Reader
from sse_limits.slots.memory import MemoryStore
from tests.core.test_limits import EFFECTIVE

ALICE = Identity(user="alice", tenant="acme", address="203.0.113.7")
OVERRIDES: dict[str, Any] = {
    "user_limit": 1,
    "tenant_limit": 2,
    "address_limit": 3,
    "at_user_limit": "evict",
    "lane_events": 4,
    "max_message_bytes": 5,
    "outage": "closed",
}


@pytest.fixture(autouse=True)
def database_is_the_source(settings: Any, db: None) -> Iterator[None]:
    settings.SSE_LIMITS = {"STORE": "memory"}
    watch.forget()
    yield
    watch.forget()


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme", tier=Tier.objects.create(slug="pro", name="Pro"))


def limits(identity: Identity = ALICE) -> Limits:
    watch.forget()
    found = get_policy().resolve(identity)
    assert isinstance(found, Limits), found
    return found


def refusal(identity: Identity = ALICE) -> Reject:
    watch.forget()
    found = get_policy().resolve(identity)
    assert isinstance(found, Reject), found
    return found


class TestFields:
    @pytest.mark.parametrize("step", ["tier", "tenant", "user"])
    @pytest.mark.parametrize("field", FIELDS)
    def test_every_override_of_every_step_arrives_with_its_provenance(
        self, acme: Tenant, step: str, field: str
    ) -> None:
        row = {"tier": acme.tier, "tenant": acme, "user": UserLimit(tenant=acme, user="alice")}[step]
        setattr(row, field, OVERRIDES[field])
        row.save()
        found = limits()
        value = getattr(found, EFFECTIVE[field])
        assert value == (True if field == "at_user_limit" else OVERRIDES[field])
        assert found.provenance[field] == Source(step, {"tier": "pro", "tenant": "acme", "user": ""}[step])

    def test_a_tenant_s_tier_is_its_tier(self, acme: Tenant) -> None:
        acme.tier = Tier.objects.get(slug="free")
        acme.save()
        assert (limits().tier, limits().user) == ("free", 5)

    def test_a_suspended_tenant_is_refused(self, acme: Tenant) -> None:
        Tenant.objects.update(suspended=True)
        assert refusal() == Reject(Reason.SUSPENDED, Scope.TENANT)

    def test_a_suspended_user_is_refused_and_only_in_that_tenant(self, acme: Tenant) -> None:
        UserLimit.objects.create(tenant=acme, user="alice", suspended=True)
        assert refusal() == Reject(Reason.SUSPENDED, Scope.USER)
        assert limits(Identity(user="alice")).tier == "free"

    def test_the_default_membership_of_several_counts(self, acme: Tenant) -> None:
        user = User.objects.create_user("alice")
        globex = Tenant.objects.create(slug="globex", name="Globex", tier=acme.tier)
        for place in (acme, globex):
            TenantMembership.objects.create(tenant=place, user=user)
        assert refusal(Identity(user="alice")).reason is Reason.TENANT_AMBIGUOUS
        TenantMembership.objects.filter(tenant=globex).update(is_default=True)
        assert limits(Identity(user="alice")).tenant == "globex"
        assert get_policy().memberships["alice"] == (Membership("acme"), Membership("globex", is_default=True))

    def test_tiers_that_the_settings_name_and_nobody_made_are_the_built_in_ones(self, settings: Any) -> None:
        Tier.objects.all().delete()
        settings.SSE_LIMITS = {"STORE": "memory", "DEFAULT_TIER": "gold", "FLEET_LIMIT": 7}
        assert (limits(Identity(user="u1")).tier, limits(Identity(user="u1")).user) == ("gold", 5)
        assert limits(Identity(address="203.0.113.7")).address == 20
        assert get_policy().fleet_limit == 7


class TestAddressRules:
    """Through the limiter: what a rule does to a connect."""

    async def decide(self, limiter: Limiter, *, times: int = 1, user: str | None = None) -> list[object]:
        identity = Identity(user=user, address="203.0.113.7")
        return [await limiter.admit(identity, StreamClass("s", anonymous=True)) for _ in range(times)]

    def limiter(self) -> Limiter:
        watch.forget()
        limiter = Limiter(get_conf(), MemoryStore(lease_seconds=90))
        assert limiter.policy.tiers
        return limiter

    @pytest.mark.parametrize("user", [None, "alice"])
    @pytest.mark.parametrize(
        ("action", "limit", "admitted", "reason"),
        [
            (AddressAction.LIMIT, 2, 2, Reason.ADDRESS_LIMIT),
            (AddressAction.BLOCK, None, 0, Reason.BLOCKED),
            (AddressAction.EXEMPT, None, 5, None),
        ],
    )
    def test_a_rule_holds_for_everybody_from_its_network(
        self, user: str | None, action: AddressAction, limit: int | None, admitted: int, reason: Reason | None
    ) -> None:
        import asyncio

        AddressRule.objects.create(network="203.0.113.0/24", action=action, address_limit=limit)
        Tier.objects.filter(slug="anonymous").update(address_limit=1)
        limiter = self.limiter()
        found = asyncio.run(self.decide(limiter, times=5, user=user))
        rejected = [each for each in found if isinstance(each, Reject)]
        assert len(found) - len(rejected) == admitted
        assert {each.reason for each in rejected} == ({reason} if reason else set())


class TestReading:
    def test_it_is_read_again_only_when_the_version_has_changed(self) -> None:
        reader = Reader()
        assert reader.policy(get_conf()) is not None
        assert reader.policy(get_conf()) is None
        Tier.objects.filter(slug="free").update(user_limit=9)
        found = reader.policy(get_conf())
        assert found is not None
        assert found.tiers["free"].overrides.user_limit == 9

    def test_reading_costs_six_queries_and_looking_one(self, django_assert_num_queries: Any) -> None:
        reader = Reader()
        with django_assert_num_queries(6):
            reader.policy(get_conf())
        with django_assert_num_queries(1):
            reader.policy(get_conf())

    def test_a_process_without_streams_looks_at_most_once_a_second(self, django_assert_num_queries: Any) -> None:
        first = get_policy()
        with django_assert_num_queries(0):
            assert get_policy() is first

    def test_its_own_commit_is_seen_at_once(self, django_capture_on_commit_callbacks: Any) -> None:
        get_policy()
        with django_capture_on_commit_callbacks(execute=True):
            Tier.objects.filter(slug="free").update(user_limit=9)
        assert get_policy().tiers["free"].overrides.user_limit == 9

    def test_a_revocation_is_told_once_and_one_that_was_committed_late_is_not_missed(self) -> None:
        reader = Reader()
        row: dict[str, Any] = {"kind": "user", "subject": "u1", "not_before": 1, "until": 10**15}
        Revocation.objects.create(id=20, created=1_000_000, **row)
        assert [each.subject for each in reader.revocations(1_000_001)] == ["u1"]
        assert reader.revocations(1_000_002) == []
        Revocation.objects.create(id=10, created=999_999, **{**row, "subject": "late"})
        assert [each.subject for each in reader.revocations(1_000_003)] == ["late"]
        assert reader.revocations(1_000_004) == []

    def test_without_the_database_what_was_read_stays_in_force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = get_policy()
        broken = Watch()

        def fail(*_: object) -> None:
            raise OperationalError("away")

        monkeypatch.setattr(Reader, "policy", fail)
        watch.wake()
        assert get_policy() is found
        with pytest.raises(PolicyUnavailable, match=r"\(away\)\. Is it up"):
            broken.policy()

    def test_a_limiter_that_knows_no_policy_answers_503_until_it_learns_one(self) -> None:
        import asyncio

        async def run() -> tuple[object, object]:
            limiter = Limiter(get_conf(), MemoryStore(lease_seconds=90))  # on a loop nothing is read
            before = await limiter.admit(Identity(user="u1"), StreamClass("s"))
            limiter.learn(Facts(known, ()))
            return before, await limiter.admit(Identity(user="u1"), StreamClass("s"))

        known = get_policy()
        watch.forget()
        before, after = asyncio.run(run())
        assert before == Reject(Reason.STORE)
        assert not isinstance(after, Reject)
