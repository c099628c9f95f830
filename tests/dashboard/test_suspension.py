"""From the room to the limits: their forms, and keeping a tenant or a user out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from sse_limits.models import Tenant, Tier, UserLimit
from sse_limits.policy import watch

from .conftest import ROOM

SUSPEND = f"{ROOM}suspend/"
LIMITS = f"{ROOM}limits/"


@pytest.fixture(autouse=True)
def acme(settings: Any, db: None) -> Iterator[Tenant]:
    """Limits from the database, and a store in memory: nothing here reads who holds what."""
    settings.SSE_LIMITS = {"STORE": "memory"}
    watch.forget()
    yield Tenant.objects.create(slug="acme", name="Acme", tier=Tier.objects.get(slug="free"))
    watch.forget()


def page(client: Client, path: str) -> str:
    watch.forget()
    return client.get(path).content.decode()


def test_a_tenant_is_suspended_and_admitted_again_and_the_history_says_by_whom(admin: Client, acme: Tenant) -> None:
    question = admin.get(SUSPEND, {"tenant": "acme"}).content.decode()
    assert "Suspend acme?" in question
    assert "end within 6" in question
    assert "is suspended" in admin.post(SUSPEND, {"tenant": "acme", "suspended": "1"}, follow=True).content.decode()
    acme.refresh_from_db()
    assert acme.suspended
    assert "Lift the suspension of acme?" in admin.get(SUSPEND, {"tenant": "acme"}).content.decode()
    admin.post(SUSPEND, {"tenant": "acme", "suspended": ""})
    acme.refresh_from_db()
    assert not acme.suspended
    assert [entry.user.username for entry in LogEntry.objects.all()] == ["admin", "admin"]


@pytest.mark.parametrize(("subject", "row"), [("acme/alice", ("acme", "alice")), ("alice", (None, "alice"))])
def test_a_user_needs_no_row_yet(admin: Client, subject: str, row: tuple[str | None, str]) -> None:
    admin.post(SUSPEND, {"user": subject, "suspended": "1"})
    assert UserLimit.objects.values_list("tenant__slug", "user", "suspended").get() == (*row, True)
    admin.post(SUSPEND, {"user": subject, "suspended": ""})
    assert not UserLimit.objects.get().suspended


def test_doing_it_twice_is_doing_it_once(admin: Client) -> None:
    for _ in range(2):
        admin.post(SUSPEND, {"tenant": "acme", "suspended": "1"})
    assert LogEntry.objects.count() == 1


def test_the_question_for_the_dialog_is_the_form_alone_and_its_answer_where_to_go(admin: Client) -> None:
    asked = admin.get(SUSPEND, {"tenant": "acme"}, headers={"X-Requested-With": "fetch"}).content.decode()
    assert asked.startswith("<form")
    answer = admin.post(SUSPEND, {"tenant": "acme", "suspended": "1"}, headers={"X-Requested-With": "fetch"})
    assert answer.json() == {"url": f"{ROOM}streams/"}


@pytest.mark.parametrize("path", [SUSPEND, LIMITS])
@pytest.mark.parametrize("query", [{}, {"tenant": "nobody"}, {"user": "nobody/alice"}])
def test_whoever_is_not_known_is_not_found(admin: Client, path: str, query: dict[str, str]) -> None:
    assert admin.get(path, query).status_code == 404


@pytest.mark.parametrize("path", [SUSPEND, LIMITS])
@pytest.mark.parametrize("query", [{"tenant": "acme"}, {"user": "acme/alice"}])
def test_only_who_may_change_limits(staff: Callable[..., Client], path: str, query: dict[str, str]) -> None:
    client = staff("view_live", "revoke_stream")
    assert client.get(path, query).status_code == 403
    assert client.post(path, {**query, "suspended": "1"}).status_code == 403
    assert not Tenant.objects.filter(suspended=True).exists()


def test_the_ways_to_the_forms_lead_to_the_row_or_to_a_new_one(admin: Client, acme: Tenant) -> None:
    assert admin.get(LIMITS, {"tenant": "acme"})["Location"] == f"/admin/sse_limits/tenant/{acme.pk}/change/"
    new = admin.get(LIMITS, {"user": "acme/alice"})["Location"]
    assert new == f"/admin/sse_limits/userlimit/add/?user=alice&tenant={acme.pk}"
    assert 'value="alice"' in admin.get(new).content.decode()
    row = UserLimit.objects.create(tenant=acme, user="alice")
    assert admin.get(LIMITS, {"user": "acme/alice"})["Location"] == f"/admin/sse_limits/userlimit/{row.pk}/change/"


def test_pages_offer_it_only_to_those_who_may_and_only_where_it_has_an_effect(
    admin: Client, staff: Callable[..., Client], settings: Any
) -> None:
    tenants, user = f"{ROOM}tenants/?open=acme", f"{ROOM}streams/?user=acme/alice"
    assert "Change limits" in page(admin, tenants)
    assert re.search(r"suspend/\?tenant=acme[^>]*>Suspend…", page(admin, tenants))
    assert "Limits of alice" in page(admin, user)
    assert "Suspend…" in page(admin, user)
    watcher = staff("view_live", "revoke_stream")
    assert "Change limits" not in page(watcher, tenants)
    assert "Suspend…" not in page(watcher, user)
    settings.SSE_LIMITS = {"STORE": "memory", "POLICY": {"tiers": {"free": {}, "anonymous": {}}}}
    assert "Suspend…" not in page(admin, user)
    assert admin.get(SUSPEND, {"user": "alice"}).status_code == 403
