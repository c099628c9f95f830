"""Provenance in the admin says what the policy does, for every way in which values can be set."""

from __future__ import annotations

import itertools

import pytest

from sse_limits.admin.inheritance import Step, find, in_force, inherited_by_tenant, inherited_by_user
from sse_limits.conf import get_conf
from sse_limits.core.identity import Identity
from sse_limits.core.limits import Limits
from sse_limits.models import Tenant, Tier, UserLimit
from sse_limits.policy.from_database import read_policy

CHOICES = (None, 1, 2)


@pytest.mark.parametrize(("tier", "tenant", "user"), list(itertools.product(CHOICES, repeat=3)))
def test_it_agrees_with_the_policy(db: None, tier: int | None, tenant: int | None, user: int | None) -> None:
    choices = {"at_user_limit": "evict", "outage": "closed"} if tier else {}
    pro = Tier.objects.create(slug="pro", user_limit=tier, lane_events=tier, **choices)
    acme = Tenant.objects.create(slug="acme", tier=pro, user_limit=tenant, tenant_limit=tenant)
    row = UserLimit.objects.create(tenant=acme, user="u1", user_limit=user, address_limit=user)
    limits = read_policy(get_conf(), 1).resolve(Identity(user="u1", tenant="acme"))
    assert isinstance(limits, Limits)
    steps = [*inherited_by_user(acme), Step("u1", row.overrides())]
    shown = {name: find(name, steps)[0] for name in limits.provenance}
    assert shown["user_limit"] == limits.user
    assert shown["tenant_limit"] == limits.tenant_total
    assert shown["address_limit"] == limits.address
    assert shown["lane_events"] == (limits.lane_events or get_conf().lane_events)
    assert shown["max_message_bytes"] == limits.max_message_bytes
    assert (shown["at_user_limit"] == "evict") == limits.evicts
    assert shown["outage"] == limits.outage
    labels = {"default": "default", "tier": "tier pro", "tenant": "acme", "user": "u1"}
    for name, source in limits.provenance.items():
        if name != "lane_events" or source.step != "default":
            assert find(name, steps)[1] == labels[source.step]


def text(name: str, tier: Tier, **own: object) -> str:
    html = in_force(name, inherited_by_tenant(tier), Step("acme", own))
    return (
        html.replace('<span class="sl-arrow" role="img" aria-label="from">', "")
        .replace('<span class="sl-provenance">', "")
        .replace("</span>", "")
        .replace("  ", " ")
    )


def test_it_reads_like_a_sentence(db: None) -> None:
    pro = Tier(slug="pro", tenant_limit=200, max_message_bytes=65536, at_user_limit="evict")
    assert text("tenant_limit", pro, tenant_limit=1240) == "<b>1,240</b> ← acme (tier pro: 200)"
    assert text("tenant_limit", pro) == "<b>200</b> ← tier pro"
    assert text("user_limit", pro) == "<b>none</b> ← default"
    assert text("user_limit", pro, user_limit=0) == "<b>0</b> ← acme (default: none)"
    assert text("at_user_limit", pro) == "<b>evict the user&#x27;s oldest stream</b> ← tier pro"
    assert text("outage", pro, outage="open") == "<b>open</b> ← acme (default: local)"
    assert text("max_message_bytes", pro) == "<b>65,536 bytes</b> ← tier pro"
    assert text("lane_events", pro) == "<b>64</b> ← LANE_EVENTS in the settings"


def test_users_without_a_tenant_inherit_from_the_default_tier(db: None) -> None:
    assert find("user_limit", inherited_by_user(None)) == (5, "tier free")
    Tier.objects.filter(slug="free").update(user_limit=7)
    assert find("user_limit", inherited_by_user(None)) == (7, "tier free")
    Tier.objects.filter(slug="free").delete()
    assert find("user_limit", inherited_by_user(None)) == (5, "tier free")  # the built-in one


def test_names_are_escaped(db: None) -> None:
    assert "<i>" not in in_force("user_limit", inherited_by_user(None), Step("<i>", {"user_limit": 1}))
