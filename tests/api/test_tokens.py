"""`POST /api/token/`: who gets a token, for which tenant, and that it verifies."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from sse_limits.core.rejections import CAUSES, Reason
from sse_limits.core.token_keys import TokenKeys
from sse_limits.streams.tokens import Claims, verify

pytestmark = pytest.mark.django_db

URL = "/api/token/"
POLICY = {
    "tiers": {"anonymous": {}, "free": {}, "pro": {}},
    "tenants": {
        "acme": {"tier": "pro"},
        "globex": {"tier": "free"},
        "initech": {"tier": "free"},
        "hooli": {"tier": "free", "suspended": True},
    },
    "memberships": [
        {"user": "alice", "tenant": "acme"},
        {"user": "marta", "tenant": "acme", "is_default": True},
        {"user": "marta", "tenant": "globex"},
        {"user": "torn", "tenant": "acme"},
        {"user": "torn", "tenant": "globex"},
        {"user": "gavin", "tenant": "hooli"},
        {"user": "banned", "tenant": "acme"},
    ],
    "users": [{"user": "banned", "tenant": "acme", "suspended": True}],
}


def resolve_tenant(user: str, policy: object) -> str | None:
    """A project's TENANT_RESOLVER: it settles the tenant of marta, and of nobody else."""
    return "initech" if user == "marta" else None


@pytest.fixture(autouse=True)
def policy(settings: Any) -> None:
    settings.SSE_LIMITS = {"POLICY": POLICY, "TOKEN_TTL_SECONDS": 60}


def logged_in(name: str, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(get_user_model().objects.create_user(name))
    return client


def post(client: Client, body: object = None, **options: Any) -> Any:
    return client.post(URL, {} if body is None else body, content_type="application/json", **options)


def claims(response: Any) -> Claims:
    assert response.status_code == 200, response.content
    keys = TokenKeys.from_secrets(django_settings.SECRET_KEY)
    found = verify(keys, response.json()["token"], now=time.time_ns() // 1_000_000)
    assert isinstance(found, Claims)
    return found


def refused(response: Any, reason: Reason) -> None:
    cause = CAUSES[reason]
    assert response.status_code == cause.status == 403
    assert response.json() == {"detail": cause.detail, "error": "forbidden", "reason": str(reason)}


class TestWhoAsks:
    def test_an_anonymous_client_gets_none(self) -> None:
        response = post(Client())
        assert response.status_code in (401, 403)
        assert "token" not in response.json()

    @pytest.mark.parametrize("body", [{}, {"tenant": "acme"}, {"user": "alice", "tenant": "acme"}])
    def test_a_body_that_names_somebody_logs_nobody_in(self, body: dict[str, str]) -> None:
        assert post(Client(), body).status_code in (401, 403)

    def test_a_stream_token_does_not_buy_another_one(self) -> None:
        token = post(logged_in("alice")).json()["token"]
        assert post(Client(), headers={"authorization": f"Bearer {token}"}).status_code in (401, 403)

    def test_a_post_without_the_csrf_token_is_refused(self) -> None:
        response = post(logged_in("alice", enforce_csrf_checks=True))
        assert response.status_code == 403
        assert "CSRF" in response.json()["detail"]

    def test_a_post_with_it_is_answered(self) -> None:
        client = logged_in("alice", enforce_csrf_checks=True)
        client.cookies["csrftoken"] = "a" * 32
        assert claims(post(client, headers={"x-csrftoken": "a" * 32})).user == "alice"

    def test_a_user_who_was_deactivated_gets_none(self) -> None:
        client = logged_in("alice")
        get_user_model().objects.update(is_active=False)
        assert post(client).status_code in (401, 403)

    @pytest.mark.parametrize("method", ["get", "head", "put", "patch", "delete"])
    def test_only_post_mints(self, method: str) -> None:
        response = getattr(logged_in("alice"), method)(URL)
        assert response.status_code == 405
        assert "POST" in response["Allow"]

    def test_it_has_a_name_to_be_reversed_by(self) -> None:
        assert reverse("sse_limits_api:token") == URL


class TestTenant:
    def test_the_only_membership_is_the_tenant(self) -> None:
        response = post(logged_in("alice"))
        assert (response.json()["user"], response.json()["tenant"]) == ("alice", "acme")
        assert (claims(response).user, claims(response).tenant) == ("alice", "acme")

    def test_of_several_the_default_one_is(self) -> None:
        assert claims(post(logged_in("marta"))).tenant == "acme"

    @pytest.mark.parametrize("tenant", ["acme", "globex"])
    def test_one_s_own_tenants_can_be_chosen(self, tenant: str) -> None:
        assert claims(post(logged_in("marta"), {"tenant": tenant})).tenant == tenant

    def test_without_a_default_a_choice_is_needed(self) -> None:
        client = logged_in("torn")
        refused(post(client), Reason.TENANT_AMBIGUOUS)
        assert claims(post(client, {"tenant": "globex"})).tenant == "globex"

    @pytest.mark.parametrize("tenant", ["initech", "no-such-tenant"])
    def test_another_s_tenant_is_refused_like_one_that_does_not_exist(self, tenant: str) -> None:
        refused(post(logged_in("alice"), {"tenant": tenant}), Reason.BLOCKED)

    def test_a_user_without_membership_has_no_tenant_and_cannot_choose_one(self) -> None:
        client = logged_in("nobody")
        assert claims(post(client)).tenant is None
        assert post(client).json()["tenant"] is None
        refused(post(client, {"tenant": "acme"}), Reason.BLOCKED)

    def test_a_suspended_tenant_s_users_get_none(self) -> None:
        client = logged_in("gavin")
        refused(post(client), Reason.SUSPENDED)
        refused(post(client, {"tenant": "hooli"}), Reason.SUSPENDED)

    def test_a_suspended_user_gets_none(self) -> None:
        refused(post(logged_in("banned")), Reason.SUSPENDED)

    def test_a_resolver_s_word_replaces_memberships(self, settings: Any) -> None:
        settings.SSE_LIMITS = {"POLICY": POLICY, "TENANT_RESOLVER": f"{__name__}.resolve_tenant"}
        client = logged_in("marta")
        assert claims(post(client)).tenant == "initech"
        assert claims(post(client, {"tenant": "initech"})).tenant == "initech"
        refused(post(client, {"tenant": "acme"}), Reason.BLOCKED)
        assert claims(post(logged_in("alice"))).tenant == "acme"


class TestToken:
    def test_it_lasts_as_long_as_the_settings_say_and_the_answer_says_until_when(self) -> None:
        before = time.time_ns() // 1_000_000
        response = post(logged_in("alice"))
        found = claims(response)
        assert found.expires_at == response.json()["expires_at"]
        assert 60_000 <= found.expires_at - before < 65_000
        assert found.expires_at - found.issued_at == 60_000

    def test_it_carries_the_session_so_that_logging_out_ends_its_streams(self) -> None:
        client = logged_in("alice")
        keys = TokenKeys.from_secrets(django_settings.SECRET_KEY)
        key = client.session.session_key
        assert key is not None
        assert claims(post(client)).sid == keys.session_id(key)
        assert key not in json.dumps(post(client).json())

    def test_it_never_names_a_tier_for_tiers_are_the_policy_s(self) -> None:
        assert claims(post(logged_in("alice"), {"tier": "pro"})).tier is None

    def test_the_answer_says_what_is_in_it(self) -> None:
        assert set(post(logged_in("alice")).json()) == {"token", "expires_at", "user", "tenant"}


class TestTopics:
    @pytest.mark.parametrize(
        ("asked", "allowed"),
        [({}, None), ({"topics": []}, ()), ({"topics": ["news", "a/b", "ü"]}, ("news", "a/b", "ü"))],
    )
    def test_a_client_can_limit_its_token(self, asked: dict[str, Any], allowed: tuple[str, ...] | None) -> None:
        assert claims(post(logged_in("alice"), asked)).topics == allowed

    @pytest.mark.parametrize(
        "topics",
        [
            None,
            "news",
            {"a": 1},
            [None],
            [""],
            ["x" * 201],
            ["a"] * 33,
            ["a\x00"],
            ["a\nb"],
            ["\ud800"],
            [["a"]],
            ["ü" * 200] * 32,
        ],
        ids=lambda topics: ascii(topics)[:20],
    )
    def test_topics_that_cannot_stand_in_a_token_are_400(self, topics: object) -> None:
        response = post(logged_in("alice"), {"topics": topics})
        assert response.status_code == 400
        assert response.json()


class TestBadRequests:
    @pytest.mark.parametrize("body", ["{", "[]", '"a"', "1", "null", "\x00"])
    def test_what_is_no_json_object_is_400(self, body: str) -> None:
        assert post(logged_in("alice"), body).status_code == 400

    @pytest.mark.parametrize("tenant", ["", "a b", "a/b", 1.5, ["acme"], {"a": 1}, None, "ä"])
    def test_a_tenant_that_is_no_slug_is_400(self, tenant: object) -> None:
        response = post(logged_in("alice"), {"tenant": tenant})
        assert response.status_code == 400
        assert set(response.json()) == {"tenant"}

    def test_another_content_type_is_415(self) -> None:
        assert logged_in("alice").post(URL, "x", content_type="text/plain").status_code == 415

    def test_no_body_at_all_asks_for_the_default(self) -> None:
        assert claims(logged_in("alice").post(URL)).tenant == "acme"

    def test_a_form_is_understood_too(self) -> None:
        found = claims(logged_in("marta").post(URL, {"tenant": "globex", "topics": ["a", "b"]}))
        assert (found.tenant, found.topics) == ("globex", ("a", "b"))

    def test_a_name_that_cannot_stand_in_a_token_is_400(self) -> None:
        response = post(logged_in("a\nb"))
        assert response.status_code == 400
        assert "control characters" in str(response.json())
