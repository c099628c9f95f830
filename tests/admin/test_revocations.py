"""Revocations are added, seen and found; never changed."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.test import Client

from sse_limits.core.revocations import RevocationKind
from sse_limits.core.token_keys import TokenKeys
from sse_limits.models import Revocation, Tenant
from sse_limits.revocations import LASTS_SECONDS, revoke
from sse_limits.slots.memory import epoch_ms
from sse_limits.streams.tokens import mint
from tests.admin.pages import SignIn, said, url

KEYS = TokenKeys.from_secrets(settings.SECRET_KEY)


def add(client: Client, kind: str, subject: str) -> str:
    """Add one; returns its subject as stored, or what is wrong with it."""
    answer = client.post(url("revocation_add"), {"kind": kind, "subject": subject})
    if answer.status_code == 200:
        (problem,) = answer.context["adminform"].form.errors["subject"]
        return str(problem)
    return Revocation.objects.latest("id").subject


def test_times_are_set(admin_client: Client) -> None:
    before = epoch_ms()
    answer = admin_client.post(url("revocation_add"), {"kind": "user", "subject": " mallory "})
    row = Revocation.objects.get()
    assert (row.kind, row.subject) == ("user", "mallory")
    assert before <= row.not_before == row.created <= epoch_ms()
    assert row.until == row.created + LASTS_SECONDS * 1000
    assert LogEntry.objects.get().object_id == str(row.pk)
    words = "What was issued to it until now ends on every node within 6 s."
    assert f"{words} A new log-in or a new token is let in again." in said(answer)


def test_of_a_token_only_the_end_is_stored(admin_client: Client) -> None:
    token = mint(KEYS, tenant="acme", user="u1", now=epoch_ms())
    assert add(admin_client, "token", f"\n{token}\n") == token[-22:]
    assert add(admin_client, "token", token[-22:]) == token[-22:]
    assert not Revocation.objects.filter(subject__contains="sl1").exists()


@pytest.mark.parametrize(
    ("kind", "subject", "words"),
    [
        ("token", "abc", "Paste the whole token, or at least its last 22 characters, without spaces."),
        (
            "token",
            "a" * 30 + " " + "b" * 30,
            "Paste the whole token, or at least its last 22 characters, without spaces.",
        ),
        ("session", "abc", "A sid has 11 characters: letters, digits, - and _. To end all of a user, choose “user”."),
        ("tenant", "acmee", "No tenant has this slug. Write the slug as the list of tenants shows it."),
        ("user", "u" * 256, "This is longer than a user name can be. To revoke a token, choose “token”."),
    ],
)
def test_a_mistake_is_told_what_to_write(
    admin_client: Client, acme: Tenant, kind: str, subject: str, words: str
) -> None:
    assert add(admin_client, kind, subject) == words
    assert not Revocation.objects.exists()


def test_sessions_and_tenants_are_named_as_streams_name_them(admin_client: Client, acme: Tenant) -> None:
    sid = KEYS.session_id("some-session-key")
    assert add(admin_client, "session", sid) == sid
    assert add(admin_client, "tenant", "acme") == "acme"


def test_nothing_is_changed_or_deleted(admin_client: Client) -> None:
    revoke(RevocationKind.USER, "mallory")
    pk = Revocation.objects.get().pk
    page = admin_client.get(url("revocation_change", pk)).content.decode()
    assert "mallory" in page
    assert "Counts until" in page
    assert 'name="_save"' not in page
    assert admin_client.post(url("revocation_change", pk), {"subject": "x"}).status_code == 403
    assert admin_client.post(url("revocation_delete", pk), {"post": "yes"}).status_code == 403
    assert "delete_selected" not in admin_client.get(url("revocation_changelist")).content.decode()


def test_the_list_is_searched_and_filtered(admin_client: Client) -> None:
    now = epoch_ms()
    for name, until in (("old", now - 1), ("new", now + 10_000)):
        Revocation.objects.create(kind="user", subject=name, not_before=now, until=until, created=now)
    for query, found in (
        ({"counts": "yes"}, {"new"}),
        ({"counts": "no"}, {"old"}),
        ({"q": "ol"}, {"old"}),
        ({"kind__exact": "token"}, set()),
        ({}, {"old", "new"}),
    ):
        page = admin_client.get(url("revocation_changelist"), query)
        assert {row.subject for row in page.context["cl"].result_list} == found


def test_adding_needs_the_permission_to_add(sign_in: SignIn) -> None:
    operator = sign_in("view_revocation")
    assert operator.get(url("revocation_add")).status_code == 403
    assert operator.get(url("revocation_changelist")).status_code == 200
