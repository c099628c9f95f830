"""The lists: what they show, find and filter, with how many queries; and the actions on them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.core import checks
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sse_limits.models import AddressRule, PolicyVersion, Tenant, TenantMembership, Tier, UserLimit
from tests.admin.pages import SignIn, said, url

MODELS = ("tier", "tenant", "userlimit", "tenantmembership", "addressrule", "revocation")


def slugs(page: Any) -> list[str]:
    return [str(row) for row in page.context["cl"].result_list]


def test_django_s_checks_find_nothing(db: None) -> None:
    assert checks.run_checks() == []


def test_the_version_and_the_live_room_have_no_page_here(admin_client: Client) -> None:
    body = admin_client.get("/admin/sse_limits/").content.decode()
    assert all(f"/admin/sse_limits/{model}/" in body for model in MODELS)
    assert "policyversion" not in body


class TestTenants:
    def test_the_limits_in_force_stand_in_the_list(self, admin_client: Client, acme: Tenant) -> None:
        body = admin_client.get(url("tenant_changelist")).content.decode()
        assert "acme (tier pro: 200)" in body
        assert "<b>10</b>" in body

    def test_they_can_be_sorted_by(self, admin_client: Client, acme: Tenant) -> None:
        free = Tier.objects.get(slug="free")
        Tenant.objects.create(slug="globex", name="Globex", tier=free)
        Tenant.objects.create(slug="initech", name="Initech", tier=free, tenant_limit=500)
        page = admin_client.get(url("tenant_changelist"), {"o": "-4"})
        assert slugs(page) == ["initech", "acme", "globex"]

    def test_filters_and_search(self, admin_client: Client, acme: Tenant) -> None:
        other = Tenant.objects.create(slug="wonka", name="Chocolate", tier=acme.tier, suspended=True)
        for query, found in (
            ({"own": "yes"}, [acme]),
            ({"own": "no"}, [other]),
            ({"suspended__exact": "1"}, [other]),
            ({"tier__id__exact": acme.tier.pk}, [acme, other]),
            ({"at_user_limit__exact": "evict"}, []),
            ({"outage__exact": "closed"}, []),
            ({"q": "choc"}, [other]),
        ):
            assert list(admin_client.get(url("tenant_changelist"), query).context["cl"].result_list) == found

    def test_autocomplete_finds_tiers_and_tenants(self, admin_client: Client, acme: Tenant) -> None:
        for model, field, term in (("tenant", "tier", "pr"), ("userlimit", "tenant", "ac")):
            query = {"app_label": "sse_limits", "model_name": model, "field_name": field, "term": term}
            assert len(admin_client.get("/admin/autocomplete/", query).json()["results"]) == 1


class TestQueries:
    def queries(self, client: Client, page: str) -> int:
        with CaptureQueriesContext(connection) as found:
            assert client.get(page).status_code == 200
        return len(found)

    @pytest.mark.parametrize("model", MODELS[:5])
    def test_a_list_costs_the_same_whatever_its_length(self, admin_client: Client, acme: Tenant, model: str) -> None:
        self.fill(acme, 1)
        page = url(f"{model}_changelist")
        admin_client.get(page)
        few = self.queries(admin_client, page)
        self.fill(acme, 20)
        assert self.queries(admin_client, page) == few
        assert few <= 12

    def fill(self, acme: Tenant, count: int) -> None:
        for number in range(count):
            name = f"x{count}-{number}"
            tier = Tier.objects.create(slug=name, name=name)
            tenant = Tenant.objects.create(slug=name, name=name, tier=tier, tenant_limit=9)
            UserLimit.objects.create(tenant=tenant, user=name)
            UserLimit.objects.create(user=name)
            TenantMembership.objects.create(tenant=tenant, user=User.objects.create(username=name))
            AddressRule.objects.create(network=f"10.{count}.{number}.0/24", action="block")


class TestUserLimits:
    def test_a_user_without_a_tenant_inherits_from_the_default_tier(self, admin_client: Client) -> None:
        UserLimit.objects.create(user="bob", lane_events=7)
        body = admin_client.get(url("userlimit_changelist")).content.decode()
        assert "tier free" in body
        assert "queued events" in body


class TestMemberships:
    def test_they_are_found_by_user_and_tenant(self, admin_client: Client, acme: Tenant) -> None:
        row = TenantMembership.objects.create(tenant=acme, user=User.objects.create_user("marta"))
        for term in ("mar", "acm"):
            page = admin_client.get(url("tenantmembership_changelist"), {"q": term})
            assert list(page.context["cl"].result_list) == [row]
        assert not admin_client.get(url("tenantmembership_changelist"), {"q": "x"}).context["cl"].result_list


class TestTiers:
    def test_the_number_of_tenants_leads_to_them(self, admin_client: Client, acme: Tenant) -> None:
        body = admin_client.get(url("tier_changelist")).content.decode()
        assert f'<a href="/admin/sse_limits/tenant/?tier__id__exact={acme.tier.pk}">1</a>' in body
        assert "users without a tenant" in body
        assert "anonymous streams" in body

    def test_one_that_tenants_have_stays(self, admin_client: Client, acme: Tenant) -> None:
        link = f'<a href="/admin/sse_limits/tenant/?tier__id__exact={acme.tier.pk}">1 tenant has it</a>'
        words = f"The tier pro stays: {link}. Give them another tier first."
        answer = admin_client.get(url("tier_delete", acme.tier.pk))
        assert answer.url == url("tier_change", acme.tier.pk)  # type: ignore[attr-defined]
        assert said(answer) == [words]
        assert said(self.delete(admin_client, acme.tier))[-1] == words
        assert Tier.objects.filter(slug="pro").exists()

    def test_one_that_the_settings_name_stays(self, admin_client: Client) -> None:
        free = Tier.objects.get(slug="free")
        words = "The tier free stays: DEFAULT_TIER in the settings names it. Name another tier there first."
        assert said(admin_client.post(url("tier_delete", free.pk), {"post": "yes"})) == [words]
        assert said(self.delete(admin_client, free, post="yes"))[-1] == words
        assert Tier.objects.filter(slug="free").exists()

    def test_another_one_goes(self, admin_client: Client, pro: Tier) -> None:
        assert "Are you sure" in self.delete(admin_client, pro).content.decode()
        assert admin_client.post(url("tier_delete", pro.pk), {"post": "yes"}).status_code == 302
        assert not Tier.objects.filter(slug="pro").exists()

    def test_one_that_is_gone_already_is_said_to_be(self, admin_client: Client) -> None:
        assert admin_client.get(url("tier_delete", 999)).status_code == 302

    def delete(self, client: Client, tier: Tier, **more: str) -> Any:
        data = {"action": "delete_selected", "_selected_action": [tier.pk], **more}
        return client.post(url("tier_changelist"), data)


class TestSuspending:
    def act(self, client: Client, action: str, rows: list[Any], model: str = "tenant", **more: str) -> Any:
        data = {"action": action, "_selected_action": [row.pk for row in rows], **more}
        return client.post(url(f"{model}_changelist"), data)

    def test_it_asks_first(self, admin_client: Client, acme: Tenant) -> None:
        answer = self.act(admin_client, "suspend", [acme])
        body = answer.content.decode()
        assert "Suspend acme?" in body
        assert "New streams are refused with 403, and open ones end within 6 s" in body
        acme.refresh_from_db()
        assert not acme.suspended

    def test_it_is_done_counted_and_logged(self, admin_client: Client, acme: Tenant) -> None:
        wonka = Tenant.objects.create(slug="wonka", name="Wonka", tier=acme.tier)
        gone = Tenant.objects.create(slug="gone", name="Gone", tier=acme.tier, suspended=True)
        version = PolicyVersion.objects.get().version
        rows = [acme, wonka, gone]
        assert "Suspend 2 tenants?" in self.act(admin_client, "suspend", rows).content.decode()
        answer = self.act(admin_client, "suspend", rows, post="yes")
        assert said(answer) == ["Suspended: 2 tenants. New streams are refused with 403, open ones end within 6 s."]
        assert Tenant.objects.filter(suspended=True).count() == 3
        assert PolicyVersion.objects.get().version > version
        entries = LogEntry.objects.filter(action_flag=CHANGE)
        assert {entry.object_repr for entry in entries} == {"acme", "wonka"}
        assert {entry.get_change_message() for entry in entries} == {"Changed Suspended."}

    def test_it_can_be_lifted(self, admin_client: Client, runner: UserLimit) -> None:
        UserLimit.objects.update(suspended=True)
        assert (
            "Lift the suspension of acme/ci-runner?"
            in self.act(admin_client, "unsuspend", [runner], "userlimit").content.decode()
        )
        answer = self.act(admin_client, "unsuspend", [runner], "userlimit", post="yes")
        assert said(answer) == ["Suspension lifted, in force on every node within 2 s: acme/ci-runner."]
        assert not UserLimit.objects.get().suspended
        assert LogEntry.objects.get().object_repr == "acme/ci-runner"

    def test_where_there_is_nothing_to_do_it_says_so(self, admin_client: Client, acme: Tenant) -> None:
        assert said(self.act(admin_client, "unsuspend", [acme])) == ["None of them is suspended."]
        Tenant.objects.update(suspended=True)
        assert said(self.act(admin_client, "suspend", [acme]))[-1] == "All of them are suspended already."

    def test_all_rows_of_a_long_list_can_be_chosen(self, admin_client: Client, acme: Tenant) -> None:
        Tenant.objects.bulk_create(Tenant(slug=f"t{number}", name="T", tier=acme.tier) for number in range(1200))
        asked = self.act(admin_client, "suspend", [acme], select_across="1").content.decode()
        assert "Suspend 1201 tenants?" in asked
        assert "and 1181 more" in asked
        assert '<input type="hidden" name="select_across" value="1">' in asked
        self.act(admin_client, "suspend", [acme], select_across="1", post="yes")
        assert Tenant.objects.filter(suspended=True).count() == 1201

    def test_those_who_may_only_view_have_no_actions(self, sign_in: SignIn, acme: Tenant) -> None:
        operator = sign_in("view_tenant")
        assert "Suspend…" not in operator.get(url("tenant_changelist")).content.decode()
        self.act(operator, "suspend", [acme], post="yes")
        assert not Tenant.objects.get().suspended

    def test_a_suspended_row_says_so_in_a_word(self, admin_client: Client, acme: Tenant) -> None:
        Tenant.objects.update(suspended=True)
        body = admin_client.get(url("tenant_changelist")).content.decode()
        assert '<span class="sl-warn">suspended</span>' in body
