"""What the forms show, what they refuse and with which words, and what they say after saving."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, override_settings

from sse_limits.models import AddressRule, PolicyVersion, Tenant, TenantMembership, Tier, UserLimit
from tests.admin.pages import SignIn, form_data, said, url

OPEN_STAY = "In force on every node within 2 s. Streams that are open stay open."


def errors(response: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = response.context["adminform"].form.errors
    return found


class TestTheTableOfLimits:
    def test_each_limit_shows_what_is_in_force(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        rows = {row.name: row for row in page.context["limit_rows"]}
        assert list(rows) == [
            *("tenant_limit", "user_limit", "address_limit", "at_user_limit", "lane_events", "max_message_bytes"),
            "outage",
        ]
        assert [name for name, row in rows.items() if row.is_set] == ["tenant_limit"]
        assert "<b>240</b>" in rows["tenant_limit"].in_force
        assert "acme (tier pro: 200)" in rows["tenant_limit"].in_force
        body = page.content.decode()
        assert 'placeholder="10"' in body
        assert ">Inherit<" in body

    def test_the_browser_is_told_the_steps(self, admin_client: Client, acme: Tenant) -> None:
        data = admin_client.get(url("tenant_change", acme.pk)).context["limits_data"]
        assert json.loads(json.dumps(data)) == data
        assert (data["own"], data["parent"], data["url"]) == ("acme", "tier", "/admin/sse_limits/tenant/inherited/")
        assert data["steps"][-1] == {
            "label": "tier pro",
            "values": {"tenant_limit": 200, "user_limit": 10, "at_user_limit": "evict"},
        }

    def test_a_choice_says_what_it_does(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        row = next(row for row in page.context["limit_rows"] if row.name == "outage")
        assert row.label == "While the store is away"
        assert "Closed: refused with 503. Open streams stay open." in row.help
        assert "<b>local</b>" in row.in_force
        assert "default" in row.in_force
        answer = admin_client.post(url("tenant_change", acme.pk), form_data(page, outage="closed"))
        assert answer.status_code == 302
        page = admin_client.get(url("tenant_change", acme.pk))
        row = next(row for row in page.context["limit_rows"] if row.name == "outage")
        assert "<b>closed</b>" in row.in_force
        assert "acme (default: local)" in row.in_force
        assert page.context["limits_data"]["choices"]["outage"]["open"] == "open"

    def test_nothing_on_the_page_is_inline(self, admin_client: Client, acme: Tenant) -> None:
        body = admin_client.get(url("tenant_change", acme.pk)).content.decode()
        assert "style=" not in body
        assert "<style" not in body
        assert "onclick" not in body
        assert '<script src="/static/sse_limits/admin/limits.js" type="module"></script>' in body

    @pytest.mark.parametrize("model", ["tier", "tenant", "userlimit"])
    def test_a_new_row_shows_what_it_would_inherit(self, admin_client: Client, pro: Tier, model: str) -> None:
        rows = admin_client.get(url(f"{model}_add")).context["limit_rows"]
        assert len(rows) == 7
        assert not any(row.is_set for row in rows)

    def test_a_row_that_is_begun_elsewhere_inherits_from_there(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("userlimit_add"), {"tenant": acme.pk})
        rows = {row.name: row.in_force for row in page.context["limit_rows"]}
        assert "← </span>" not in rows["tenant_limit"]
        assert "acme" in rows["tenant_limit"]
        assert "tier pro" in rows["user_limit"]

    def test_a_limit_without_effect_says_so(self, admin_client: Client, runner: UserLimit) -> None:
        anonymous = Tier.objects.get(slug="anonymous")
        rows = admin_client.get(url("tier_change", anonymous.pk)).context["limit_rows"]
        assert {row.name for row in rows if row.note} == {"tenant_limit", "user_limit", "at_user_limit"}
        free = Tier.objects.get(slug="free")
        rows = admin_client.get(url("tier_change", free.pk)).context["limit_rows"]
        assert {row.name for row in rows if row.note} == {"tenant_limit"}
        bob = UserLimit.objects.create(user="bob")
        rows = admin_client.get(url("userlimit_change", bob.pk)).context["limit_rows"]
        assert [row.note for row in rows if row.note] == ["No effect: this user has no tenant."]
        rows = admin_client.get(url("userlimit_change", runner.pk)).context["limit_rows"]
        assert {row.name for row in rows if row.note} == {"tenant_limit"}

    def test_the_version_stands_on_the_page(self, admin_client: Client, acme: Tenant) -> None:
        version = PolicyVersion.objects.get().version
        for page in (url("tenant_change", acme.pk), url("tenant_changelist")):
            assert f"Version {version} of the limits" in admin_client.get(page).content.decode()


class TestAnotherParent:
    def test_its_steps_are_answered(self, admin_client: Client, acme: Tenant) -> None:
        steps = admin_client.get(url("tenant_inherited"), {"parent": acme.tier.pk}).json()["steps"]
        assert steps[-1]["label"] == "tier pro"
        steps = admin_client.get(url("userlimit_inherited"), {"parent": acme.pk}).json()["steps"]
        assert [step["label"] for step in steps[-2:]] == ["tier pro", "acme"]
        steps = admin_client.get(url("userlimit_inherited"), {"parent": ""}).json()["steps"]
        assert steps[-1]["label"] == "tier free"
        assert admin_client.get(url("tier_inherited")).json()["steps"][0]["label"] == "default"

    @pytest.mark.parametrize("pk", ["999999", "x", "-1", "1e9", "\x00"])
    def test_one_that_does_not_exist_is_not_found(self, admin_client: Client, pk: str) -> None:
        assert admin_client.get(url("tenant_inherited"), {"parent": pk}).status_code == 404

    def test_it_is_for_those_who_may_see_the_page(self, sign_in: SignIn, client: Client, acme: Tenant) -> None:
        assert client.get(url("tenant_inherited")).status_code == 302
        operator = sign_in("view_tier")
        assert operator.get(url("tenant_inherited")).status_code == 403
        assert operator.get(url("tier_inherited")).status_code == 200


class TestSaving:
    def test_ten_more_for_a_tenant(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        answer = admin_client.post(url("tenant_change", acme.pk), form_data(page, tenant_limit="250"))
        assert answer.status_code == 302
        acme.refresh_from_db()
        assert (acme.tenant_limit, acme.user_limit, acme.at_user_limit) == (250, None, None)
        assert OPEN_STAY in said(answer)

    def test_without_a_change_nothing_is_said(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        assert OPEN_STAY not in said(admin_client.post(url("tenant_change", acme.pk), form_data(page)))

    def test_a_suspension_says_what_ends(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        assert "Ends the open streams within 6 s and refuses new ones with 403." in page.content.decode()
        answer = admin_client.post(url("tenant_change", acme.pk), form_data(page, suspended="on"))
        assert "Suspended: acme. New streams are refused with 403, open ones end within 6 s." in said(answer)

    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("tenant_limit", "-1", "Write a whole number from 0 on, or leave this empty to inherit."),
            ("user_limit", "many", "Write a whole number from 0 on, or leave this empty to inherit."),
            ("lane_events", "0", "Write a whole number from 1 on, or leave this empty to inherit."),
            ("max_message_bytes", "1.5", "Write a whole number from 1 on, or leave this empty to inherit."),
        ],
    )
    def test_a_wrong_number_is_told_what_to_write(
        self, admin_client: Client, acme: Tenant, name: str, value: str, words: str
    ) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        answer = admin_client.post(url("tenant_change", acme.pk), form_data(page, **{name: value}))
        assert errors(answer) == {name: [words]}
        assert words in answer.content.decode()

    @pytest.mark.parametrize(("limit", "is_warned"), [("300", True), ("240", False), ("", False)])
    def test_a_user_limit_above_the_tenant_limit_is_warned_of(
        self, admin_client: Client, acme: Tenant, limit: str, is_warned: bool
    ) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        answer = admin_client.post(url("tenant_change", acme.pk), form_data(page, name="A", user_limit=limit))
        words = "One user may hold 300 streams, but the tenant 240 in all (acme): it is full first."
        assert (words in said(answer)) is is_warned
        assert answer.status_code == 302

    def test_a_user_whom_nobody_knows_is_mentioned(self, admin_client: Client, acme: Tenant) -> None:
        User.objects.create_user("alice")
        for name, is_known in (("alice", True), ("alcie", False)):
            answer = admin_client.post(url("userlimit_add"), {"tenant": acme.pk, "user": name, "user_limit": 3})
            words = f"No user here has the name “{name}”: the limit counts for tokens that carry this name."
            assert (words not in said(answer)) is is_known
        assert UserLimit.objects.count() == 2

    def test_history_tells_what_was_changed(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        admin_client.post(url("tenant_change", acme.pk), form_data(page, tenant_limit="250"))
        assert "Changed Tenant streams." in admin_client.get(url("tenant_history", acme.pk)).content.decode()


class TestSlugs:
    def test_a_tenant_s_slug_stays(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        assert "It cannot be changed: tokens, topics and the slots of open streams carry it." in page.content.decode()
        admin_client.post(url("tenant_change", acme.pk), form_data(page, slug="other", name="Other"))
        acme.refresh_from_db()
        assert (acme.slug, acme.name) == ("acme", "Other")

    def test_a_tier_that_the_settings_name_keeps_its_slug(self, admin_client: Client, db: None) -> None:
        free = Tier.objects.get(slug="free")
        page = admin_client.get(url("tier_change", free.pk))
        answer = admin_client.post(url("tier_change", free.pk), form_data(page, slug="gratis"))
        words = "DEFAULT_TIER in the settings names this tier “free”. Change the setting first, or keep the slug"
        assert errors(answer) == {"slug": [f"{words} and change the name."]}
        assert admin_client.post(url("tier_change", free.pk), form_data(page, name="Gratis")).status_code == 302

    def test_another_tier_s_new_slug_is_new_to_tokens(self, admin_client: Client, pro: Tier) -> None:
        page = admin_client.get(url("tier_change", pro.pk))
        answer = admin_client.post(url("tier_change", pro.pk), form_data(page, slug="gold"))
        assert "Tokens that name the tier “pro” get the tier of their tenant from now on." in said(answer)


class TestMemberships:
    def test_a_second_default_names_the_first(self, admin_client: Client, acme: Tenant) -> None:
        marta = User.objects.create_user("marta")
        TenantMembership.objects.create(tenant=acme, user=marta, is_default=True)
        globex = Tenant.objects.create(slug="globex", name="Globex", tier=acme.tier)
        data = {"tenant": globex.pk, "user": marta.pk, "is_default": "on"}
        answer = admin_client.post(url("tenantmembership_add"), data)
        words = "The default tenant of marta is acme. Clear it there first, or leave this empty."
        assert errors(answer) == {"is_default": [words]}
        assert admin_client.post(url("tenantmembership_add"), {**data, "is_default": ""}).status_code == 302

    def test_a_default_may_be_saved_again(self, admin_client: Client, acme: Tenant) -> None:
        row = TenantMembership.objects.create(tenant=acme, user=User.objects.create_user("marta"), is_default=True)
        page = admin_client.get(url("tenantmembership_change", row.pk))
        assert admin_client.post(url("tenantmembership_change", row.pk), form_data(page)).status_code == 302


class TestAddressRules:
    @pytest.mark.parametrize(
        ("data", "wrong"),
        [
            (
                {"network": "10.0.0.1/8", "action": "block"},
                {
                    "network": [
                        "This address lies inside a network. Write the network, 10.0.0.0/8, or the address alone."
                    ]
                },
            ),
            (
                {"network": "office", "action": "block"},
                {"network": ["This is no network. Write an address with a prefix length, such as 203.0.113.0/24."]},
            ),
            (
                {"network": "2001:db8::/65", "action": "block"},
                {"network": ["IPv6 clients are counted by /64 networks: write at most /64."]},
            ),
            (
                {"network": "10.0.0.0/8", "action": "limit"},
                {"address_limit": ["Write how many streams each address may hold."]},
            ),
            (
                {"network": "10.0.0.0/8", "action": "exempt", "address_limit": "5"},
                {"address_limit": ["Empty this: only “limit each address” needs a number."]},
            ),
            ({"network": "", "action": "block"}, {"network": ["This field is required."]}),
        ],
    )
    def test_a_mistake_is_told_what_to_write(
        self, admin_client: Client, data: dict[str, str], wrong: dict[str, list[str]]
    ) -> None:
        assert errors(admin_client.post(url("addressrule_add"), data)) == wrong

    def test_a_block_says_what_ends(self, admin_client: Client) -> None:
        answer = admin_client.post(url("addressrule_add"), {"network": "0.0.0.0/0", "action": "block"})
        blocked, everybody = said(answer)[:2]
        assert blocked == "Blocked: 0.0.0.0/0. New streams are refused with 403, open ones end within 6 s."
        assert everybody.startswith("0.0.0.0/0 is every address of its kind")
        answer = admin_client.post(url("addressrule_add"), {"network": "10.0.0.0/8", "action": "exempt"})
        assert OPEN_STAY in said(answer)

    def test_searching_for_an_address_finds_its_networks(self, admin_client: Client) -> None:
        for network in ("10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24", "2001:db8::/48"):
            AddressRule.objects.create(network=network, action="block", note="Scraper")
        for term, found in (
            ("10.1.2.3", {"10.0.0.0/8", "10.1.0.0/16"}),
            ("2001:db8::1", {"2001:db8::/48"}),
            ("203.0.113.1", set()),
            ("192.0", {"192.0.2.0/24"}),
        ):
            page = admin_client.get(url("addressrule_changelist"), {"q": term})
            assert {rule.network for rule in page.context["cl"].result_list} == found


class TestTenantsWithManyUsers:
    def test_few_rows_are_on_the_page_and_many_behind_a_link(self, admin_client: Client, acme: Tenant) -> None:
        User.objects.bulk_create(User(username=f"u{number}") for number in range(51))
        members = [TenantMembership(tenant=acme, user=user) for user in User.objects.filter(username__startswith="u")]
        TenantMembership.objects.bulk_create(members[:50])
        page = admin_client.get(url("tenant_change", acme.pk))
        assert [each.opts.model for each in page.context["inline_admin_formsets"]] == [UserLimit, TenantMembership]
        TenantMembership.objects.bulk_create(members[50:])
        page = admin_client.get(url("tenant_change", acme.pk))
        assert [each.opts.model for each in page.context["inline_admin_formsets"]] == [UserLimit]
        link = f'<a href="/admin/sse_limits/tenantmembership/?tenant__id__exact={acme.pk}">51 tenant memberships</a>'
        assert link in page.content.decode()
        answer = admin_client.post(url("tenant_change", acme.pk), form_data(page, tenant_limit="9"))
        assert answer.status_code == 302
        assert TenantMembership.objects.filter(tenant=acme).count() == 51

    def test_a_page_that_was_shown_with_its_rows_is_saved_with_them(self, admin_client: Client, acme: Tenant) -> None:
        page = admin_client.get(url("tenant_change", acme.pk))
        data = form_data(page)
        UserLimit.objects.bulk_create(UserLimit(tenant=acme, user=f"u{number}") for number in range(51))
        data |= {"user_limits-TOTAL_FORMS": 1, "user_limits-0-user": "ci-runner", "user_limits-0-user_limit": 3}
        data["user_limits-0-tenant"] = acme.pk
        answer = admin_client.post(url("tenant_change", acme.pk), data)
        assert answer.status_code == 302
        assert UserLimit.objects.get(user="ci-runner").user_limit == 3
        assert OPEN_STAY in said(answer)


class TestPolicyInTheSettings:
    FIXED = {"POLICY": {"tiers": {"free": {}, "anonymous": {}}, "tenants": {"acme": {"tier": "free"}}}}  # noqa: RUF012
    NOTICE = "Limits come from SSE_LIMITS[&#x27;POLICY&#x27;] in the settings. Remove it to edit them here."

    @pytest.mark.parametrize("model", ["tier", "tenant", "userlimit", "tenantmembership", "addressrule"])
    def test_everything_is_shown_and_nothing_changed(
        self, admin_client: Client, runner: UserLimit, acme: Tenant, model: str
    ) -> None:
        TenantMembership.objects.create(tenant=acme, user=User.objects.create_user("marta"))
        AddressRule.objects.create(network="10.0.0.0/8", action="block")
        with override_settings(SSE_LIMITS=self.FIXED):
            page = admin_client.get(url(f"{model}_changelist"))
            assert self.NOTICE in page.content.decode().replace("'", "&#x27;")
            assert not page.context["has_add_permission"]
            pk = page.context["cl"].result_list[0].pk
            form = admin_client.get(url(f"{model}_change", pk)).content.decode()
            assert self.NOTICE in form.replace("'", "&#x27;")
            assert 'name="_save"' not in form
            assert "In force" not in form
            assert admin_client.get(url(f"{model}_add")).status_code == 403
            assert admin_client.post(url(f"{model}_change", pk), {}).status_code == 403
            assert admin_client.get(url(f"{model}_delete", pk)).status_code == 403

    def test_users_can_be_deleted_with_their_memberships(self, admin_client: Client, acme: Tenant) -> None:
        marta = User.objects.create_user("marta")
        TenantMembership.objects.create(tenant=acme, user=marta)
        with override_settings(SSE_LIMITS=self.FIXED):
            answer = admin_client.post(f"/admin/auth/user/{marta.pk}/delete/", {"post": "yes"})
        assert answer.status_code == 302
        assert not TenantMembership.objects.exists()

    def test_revocations_work(self, admin_client: Client) -> None:
        with override_settings(SSE_LIMITS=self.FIXED):
            for tenant, status in (("acme", 302), ("globex", 200)):
                answer = admin_client.post(url("revocation_add"), {"kind": "tenant", "subject": tenant})
                assert answer.status_code == status


class TestViewOnly:
    def test_it_shows_the_limits_in_force(self, sign_in: SignIn, acme: Tenant) -> None:
        body = sign_in("view_tenant").get(url("tenant_change", acme.pk)).content.decode()
        assert "acme (tier pro: 200)" in body
        assert 'name="tenant_limit"' not in body
        assert 'name="_save"' not in body

    def test_a_user_limit_too(self, sign_in: SignIn, runner: UserLimit) -> None:
        body = sign_in("view_userlimit").get(url("userlimit_change", runner.pk)).content.decode()
        assert "ci-runner (tier pro: 10)" in body

    def test_long_lists_are_only_for_those_who_may_see_them(self, sign_in: SignIn, acme: Tenant) -> None:
        UserLimit.objects.bulk_create(UserLimit(tenant=acme, user=f"u{number}") for number in range(51))
        body = sign_in("view_tenant").get(url("tenant_change", acme.pk)).content.decode()
        assert "51 user limits" not in body
