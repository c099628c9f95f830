"""Limits as rows: what may be stored, what is said about mistakes, and which changes count as a new version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, models, transaction

from sse_limits.models import AddressRule, PolicyVersion, Revocation, Tenant, TenantMembership, Tier, UserLimit

pytestmark = pytest.mark.django_db


def version() -> int:
    return PolicyVersion.objects.get().version


def tier(slug: str = "pro", **limits: Any) -> Tier:
    return Tier.objects.create(slug=slug, name=slug.title(), **limits)


def tenant(slug: str = "acme", **limits: Any) -> Tenant:
    return Tenant.objects.create(slug=slug, name=slug.title(), tier=Tier.objects.get(slug="free"), **limits)


def rule(**fields: Any) -> AddressRule:
    return AddressRule(**{"network": "203.0.113.0/24", "action": "block", **fields})


class TestVersion:
    def test_a_fresh_database_has_the_two_built_in_tiers_and_version_one(self) -> None:
        assert version() == 1
        assert list(Tier.objects.values_list("slug", "user_limit", "tenant_limit", "address_limit")) == [
            ("anonymous", None, None, 20),
            ("free", 5, 50, None),
        ]

    @pytest.mark.parametrize(
        "change",
        [
            lambda: tier(),
            lambda: Tier.objects.get(slug="free").save(),
            lambda: tenant().delete(),
            lambda: Tier.objects.filter(slug="free").update(user_limit=6),
            lambda: Tier.objects.bulk_create([Tier(slug="a", name="A")]),
            lambda: Tier.objects.bulk_update([Tier.objects.get(slug="free")], ["name"]),
            lambda: Tier.objects.filter(slug="anonymous").delete(),
            lambda: AddressRule.objects.create(network="203.0.113.0/24", action="block"),
            lambda: UserLimit.objects.create(user="u1", user_limit=3),
            lambda: TenantMembership.objects.create(tenant=tenant(), user=User.objects.create_user("u1")),
            lambda: Tier.objects.update_or_create(slug="free", defaults={"user_limit": 7}),
            lambda: Tier.objects.using("default").filter(slug="free").update(user_limit=6),
        ],
    )
    def test_every_way_of_changing_a_row_counts(self, change: Callable[[], Any]) -> None:
        before = version()
        change()
        assert version() > before

    def test_a_change_that_is_rolled_back_leaves_no_trace(self) -> None:
        before = version()
        with transaction.atomic():
            tier()
            transaction.set_rollback(True)
        assert version() == before

    def test_rows_that_go_with_another_count(self) -> None:
        user = User.objects.create_user("u1")
        TenantMembership.objects.create(tenant=tenant(), user=user)
        before = version()
        user.delete()
        assert version() > before
        assert not TenantMembership.objects.exists()

    def test_fixtures_count(self, tmp_path: Path) -> None:
        before = version()
        row = {"model": "sse_limits.tier", "pk": 99, "fields": {"slug": "big", "name": "Big", "user_limit": 9}}
        (tmp_path / "tiers.json").write_text(json.dumps([row]))
        call_command("loaddata", str(tmp_path / "tiers.json"), verbosity=0)
        assert version() > before

    def test_a_new_user_name_counts_since_memberships_go_by_it(self) -> None:
        user = User.objects.create_user("before")
        counted = version()
        user.username = "after"
        user.save()
        assert version() > counted

    def test_a_lost_version_row_is_made_again(self) -> None:
        PolicyVersion.objects.all().delete()
        tier()
        assert version() == 1


class TestRows:
    @pytest.mark.parametrize("field", ["lane_events", "max_message_bytes"])
    def test_a_size_of_zero_is_refused(self, field: str) -> None:
        with pytest.raises(ValidationError, match="greater than or equal to 1"):
            Tier(slug="none", name="None", **{field: 0}).full_clean()
        with pytest.raises(IntegrityError), transaction.atomic():
            tier(**{field: 0})

    def test_a_tier_that_tenants_use_stays(self) -> None:
        tenant()
        with pytest.raises(models.ProtectedError):
            Tier.objects.get(slug="free").delete()

    def test_one_default_tenant_a_user(self) -> None:
        user = User.objects.create_user("u1")
        TenantMembership.objects.create(tenant=tenant("acme"), user=user, is_default=True)
        second = TenantMembership(tenant=tenant("globex"), user=user, is_default=True)
        with pytest.raises(ValidationError, match=r"has a default tenant already\. Clear that one first"):
            second.full_clean()

    def test_one_row_a_user_with_and_without_a_tenant(self) -> None:
        acme = tenant("acme")
        for place in (acme, None):
            UserLimit.objects.create(tenant=place, user="u1")
            with pytest.raises(ValidationError, match="already: change that one"):
                UserLimit(tenant=place, user="u1").full_clean()

    @pytest.mark.parametrize(
        ("network", "said"),
        [
            ("203.0.113.7/24", r"Write the network, 203\.0\.113\.0/24"),
            ("nowhere", "such as 203.0.113.0/24"),
            ("", "cannot be blank"),
            ("2001:db8::1", "write at most /64"),
            ("10.0.0.0/33", "This is no network"),
        ],
    )
    def test_a_network_that_is_none_is_refused_with_what_to_write(self, network: str, said: str) -> None:
        with pytest.raises(ValidationError, match=said):
            rule(network=network).full_clean()

    @pytest.mark.parametrize(
        ("written", "stored"), [(" 203.0.113.7 ", "203.0.113.7/32"), ("2001:DB8:0::/48", "2001:db8::/48")]
    )
    def test_a_network_has_one_spelling(self, written: str, stored: str) -> None:
        found = rule(network=written)
        found.full_clean()
        assert found.network == stored

    @pytest.mark.parametrize("fields", [{"action": "limit"}, {"action": "block", "address_limit": 3}])
    def test_a_number_goes_with_the_action_limit_and_only_with_it(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="and only with it"):
            rule(**fields).full_clean()

    def test_rows_say_what_they_are(self) -> None:
        acme = tenant()
        assert [
            str(row) for row in (acme, acme.tier, rule(), UserLimit(tenant=acme, user="u1"), UserLimit(user="u1"))
        ] == [
            "acme",
            "free",
            "203.0.113.0/24",
            "acme/u1",
            "/u1",
        ]
        assert str(Revocation(kind="user", subject="u1")) == "user u1"
