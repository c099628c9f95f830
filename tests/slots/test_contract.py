"""What every slot store promises, run over memory, Valkey 9, Redis 7 and a Cluster of three masters."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sse_limits.core.slots import DAMPER_HOLD_MS, Admitted, Claim, Demand, Full, Scope, Victim
from sse_limits.slots import keys
from sse_limits.slots.base import Order, SlotStore
from sse_limits.slots.batches import Batch

from .backends import Backend, RedisBackend, ask, held, in_use, next_ms, renew

USER, TENANT, FLEET, AGE = keys.user("t1", "u1"), keys.tenant("t1"), keys.fleet(), keys.age("t1", "u1")
ALL_AT = {"user": 5, "class": 5, "tenant": 5, "address": 5, "fleet": 5}
SHORT = 0.3


@pytest.fixture
def store(backend: Backend) -> SlotStore:
    return backend.store()


# --- all or none ---------------------------------------------------------------------------------------------------


async def test_an_admitted_stream_holds_a_slot_in_every_scope(backend: Backend, store: SlotStore) -> None:
    claim = ask("s1", ALL_AT)
    assert isinstance(await store.acquire(claim), Admitted)
    assert await in_use(store, claim) == [1, 1, 1, 1, 1]
    assert backend.ages(AGE) == {"s1"}


async def test_an_admitted_stream_is_told_how_much_its_scopes_hold_now(backend: Backend, store: SlotStore) -> None:
    """What has expired is not counted, the newcomer is; a swap changes nothing, and a peek counts nothing."""
    for stream, user in (("s1", "u1"), ("s2", "u1"), ("s3", "u2")):
        await store.acquire(ask(stream, ALL_AT, user=user))
    for key in (USER, TENANT, FLEET):
        backend.expire(key, "s2")
    admitted = await store.acquire(ask("s4", ALL_AT))
    assert isinstance(admitted, Admitted)
    assert admitted.in_use == (2, 4, 3, 4, 3)
    swapped = await store.swap(ask("s5", ALL_AT), "s1")
    assert isinstance(swapped, Admitted)
    assert swapped.in_use == (2, 4, 3, 4, 3)
    peeked = await store.peek(ask("s6", ALL_AT))
    assert isinstance(peeked, Admitted)
    assert peeked.in_use == ()


@pytest.mark.parametrize("first", range(5))
async def test_a_rejection_names_the_first_full_scope_and_writes_nothing(
    backend: Backend, store: SlotStore, first: int
) -> None:
    """The order is user, class, tenant, address, fleet, whatever else is full behind it."""
    subjects = {Scope.USER: "t1/{}", Scope.CLASS: "t1/{}", Scope.TENANT: "t1", Scope.ADDRESS: "{}", Scope.FLEET: ""}
    mine = [Demand(scope, keys.slot(scope, subject.format("mine")), 2, 0) for scope, subject in subjects.items()]
    other = [Demand(scope, keys.slot(scope, subject.format("other")), 9, 0) for scope, subject in subjects.items()]
    other[2:3] = [Demand(Scope.TENANT, "sl:1:slot:{t:t1}:other", 9, 0)]
    other[4:5] = [Demand(Scope.FLEET, "sl:1:slot:{fleet}:other", 9, 0)]
    for stream in ("s1", "s2"):
        crowd = Claim(stream, "n1", (*other[:first], *mine[first:]), keys.age("t1", "other"))
        assert isinstance(await store.acquire(crowd), Admitted)
    newcomer = Claim("s3", "n1", tuple(mine), keys.age("t1", "mine"))
    before = backend.dump()
    verdict = await store.acquire(newcomer)
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.in_use, verdict.victim) == (first, 2, None)
    await in_use(store, newcomer)  # behind what a Cluster gives back
    assert backend.dump() == before


async def test_a_limit_of_zero_admits_nobody(backend: Backend, store: SlotStore) -> None:
    before = backend.dump()
    verdict = await store.acquire(ask("s1", {"tenant": 0}, evict=True))
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.in_use) == (1, 0)
    assert backend.dump() == before


async def test_scopes_without_a_limit_are_held_for_a_later_one(store: SlotStore) -> None:
    await store.acquire(ask("s1"))
    await store.acquire(ask("s2", user="u2"))
    assert await store.usage([USER, TENANT, FLEET]) == [1, 2, 2]
    verdict = await store.acquire(ask("s3", {"fleet": 2}, user="u3", tenant="t2"))
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.in_use) == (2, 2)


async def test_a_user_of_the_same_name_in_another_tenant_is_another_user(store: SlotStore) -> None:
    for tenant in ("t1", "t2"):
        assert isinstance(await store.acquire(ask(f"s-{tenant}", {"user": 1}, tenant=tenant)), Admitted)
    assert await store.usage([keys.user("t1", "u1"), keys.user("t2", "u1"), FLEET]) == [1, 1, 2]


async def test_an_anonymous_stream_has_no_user_and_no_age(backend: Backend, store: SlotStore) -> None:
    claim = ask("s1", {"address": 1}, user=None)
    assert isinstance(await store.acquire(claim), Admitted)
    verdict = await store.acquire(claim._replace(stream="s2", evict=True))
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.victim) == (1, None)
    assert (await renew(store, [held(claim)])).lost == frozenset()
    store.release(held(claim))
    assert await in_use(store, claim) == [0, 0, 0]


async def test_simultaneous_acquires_admit_exactly_the_limit(backend: Backend) -> None:
    """B26: 200 at once for a limit of five, from four processes' stores; then the losers have left nothing (B05)."""
    stores = [backend.store() for _ in range(4)]
    claims = [ask(f"s{number}", ALL_AT) for number in range(200)]
    verdicts = await asyncio.gather(*(stores[at % 4].acquire(claim) for at, claim in enumerate(claims)))
    winners = [claim for claim, verdict in zip(claims, verdicts, strict=True) if isinstance(verdict, Admitted)]
    assert len(winners) == 5
    assert await in_use(stores[0], claims[0]) == [5, 5, 5, 5, 5]
    for at, claim in enumerate(claims):
        if claim in winners:
            stores[at % 4].release(held(claim))
    for store in stores:
        await in_use(store, claims[0])  # behind the releases of each store
    assert await in_use(stores[0], claims[0]) == [0, 0, 0, 0, 0]
    assert isinstance(await stores[0].acquire(ask("late", ALL_AT)), Admitted)


# --- own: after the store has lost its memory ----------------------------------------------------------------------


async def test_newcomers_do_not_displace_incumbents_after_a_flush(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("s0", {"user": 5}))
    backend.flush()
    empty = backend.dump()
    verdict = await store.acquire(ask("s1", {"user": 5}, own={"user": 5}, evict=True))
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.in_use, verdict.victim) == (0, 5, None)
    assert backend.dump() == empty
    assert isinstance(await store.acquire(ask("s2", {"user": 5}, own={"user": 4})), Admitted)


async def test_the_larger_of_counted_and_own_decides(store: SlotStore) -> None:
    for number in range(3):
        await store.acquire(ask(f"s{number}"))
    for own, expected in ((0, 3), (2, 3), (3, 3), (4, 4)):
        verdict = await store.peek(ask("new", {"user": 3}, own={"user": own}))
        assert isinstance(verdict, Full)
        assert verdict.in_use == expected


# --- release -------------------------------------------------------------------------------------------------------


async def test_release_is_idempotent_and_touches_only_its_own(backend: Backend, store: SlotStore) -> None:
    """B12: three releases of one stream beside four others."""
    claims = [ask(f"s{number}", ALL_AT) for number in range(5)]
    for claim in claims:
        await store.acquire(claim)
    others = {stream: at for stream, at in backend.deadlines(USER).items() if stream != "s0"}
    for _ in range(3):
        store.release(held(claims[0]))
    assert await in_use(store, claims[0]) == [4, 4, 4, 4, 4]
    assert backend.deadlines(USER) == others
    assert backend.ages(AGE) == {"s1", "s2", "s3", "s4"}


async def test_releasing_what_was_never_held_changes_nothing(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("s1"))
    before = backend.dump()
    store.release(held(ask("s2", ALL_AT)))
    await in_use(store, ask("s1"))
    assert backend.dump() == before


async def test_the_last_release_leaves_no_member_behind(backend: Backend, store: SlotStore) -> None:
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    store.release(held(claim))
    assert await in_use(store, claim) == [0, 0, 0, 0, 0]
    assert [backend.deadlines(demand.key) for demand in claim.demands] == [{}] * 5
    assert backend.ages(AGE) == set()


# --- renew ---------------------------------------------------------------------------------------------------------


async def test_renewal_moves_the_deadline_in_every_scope(backend: Backend, store: SlotStore) -> None:
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    before = [backend.deadlines(demand.key)["s1"] for demand in claim.demands]
    await next_ms()
    assert (await renew(store, [held(claim)])).lost == frozenset()
    after = [backend.deadlines(demand.key)["s1"] for demand in claim.demands]
    assert all(later > earlier for earlier, later in zip(before, after, strict=True))


async def test_renewal_never_revives_a_released_stream(backend: Backend, store: SlotStore) -> None:
    """B08: a heartbeat in flight when the stream closes."""
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    store.release(held(claim))
    await in_use(store, claim)
    before = backend.dump()
    assert (await renew(store, [held(claim)])).lost == {"s1"}
    assert await in_use(store, claim) == [0, 0, 0, 0, 0]
    assert [backend.deadlines(demand.key) for demand in claim.demands] == [{}] * 5
    if isinstance(backend, RedisBackend):
        assert backend.dump() == before


async def test_renewal_never_revives_an_expired_stream(backend: Backend, store: SlotStore) -> None:
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    for demand in claim.demands:
        backend.expire(demand.key, "s1")
    assert (await renew(store, [held(claim)])).lost == {"s1"}
    assert await in_use(store, claim) == [0, 0, 0, 0, 0]
    assert backend.ages(AGE) == set()


async def test_renewal_reports_who_is_lost(backend: Backend, store: SlotStore) -> None:
    """A stream is lost when it is missing in one scope only; the others go on."""
    claims = [ask(f"s{number}", ALL_AT, user=f"u{number % 2}") for number in range(5)]
    for claim in claims:
        await store.acquire(claim)
    store.release(held(claims[1]))
    backend.expire(TENANT, "s3")
    await in_use(store, claims[0])
    renewed = await renew(store, [held(claim) for claim in (*claims, ask("never"))])
    assert renewed.lost == {"s1", "s3", "never"}
    assert (await renew(store, [held(claims[at]) for at in (0, 2, 4)])).lost == frozenset()
    assert await store.usage([TENANT]) == [3]


async def test_renewing_nothing_is_fine(store: SlotStore) -> None:
    assert (await store.renew(Batch())).lost == frozenset()


async def test_a_user_whose_ages_are_gone_has_lost_its_leases(backend: Backend, store: SlotStore) -> None:
    """B36: a server that evicts keys may take the hash alone, and eviction would find nobody any more."""
    claims = [ask("s1"), ask("s2"), ask("other", user="u2")]
    for claim in claims:
        await store.acquire(claim)
    backend.lose(AGE)
    await store.acquire(ask("s3"))
    assert (await renew(store, [held(claim) for claim in claims])).lost == {"s1", "s2"}


# --- adoption ------------------------------------------------------------------------------------------------------


async def test_after_a_flush_streams_are_adopted_over_any_limit(backend: Backend, store: SlotStore) -> None:
    claims = [ask(f"s{number}", {"user": 2, "address": 9}) for number in range(3)]
    await store.acquire(claims[0])
    backend.flush()
    adopted = await store.adopt("n1", [(held(claim), 1000 + at) for at, claim in enumerate(claims)])
    assert adopted.in_use == {demand.key: 3 for demand in claims[0].demands}
    assert backend.ages(AGE) == {"s0", "s1", "s2"}
    assert (await renew(store, [held(claim) for claim in claims])).lost == frozenset()
    verdict = await store.acquire(ask("s9", {"user": 3}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim == Victim("s0", "n1"), "the oldest by when its stream was opened"


async def test_adopting_who_is_there_changes_no_count(backend: Backend, store: SlotStore) -> None:
    claims = [ask("s1"), ask("s2")]
    for claim in claims:
        await store.acquire(claim)
    assert (await store.adopt("n1", [(held(claims[0]), 1)])).in_use == {d.key: 2 for d in claims[0].demands}
    for claim in claims:
        store.release(held(claim))
    assert await in_use(store, claims[0]) == [0, 0, 0]


async def test_an_adoption_counts_the_living_only(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("s1"))
    for key in (USER, TENANT, FLEET):
        backend.expire(key, "s1")
    assert (await store.adopt("n1", [(held(ask("s2")), 1)])).in_use == {USER: 1, TENANT: 1, FLEET: 1}
    assert backend.ages(AGE) == {"s2"}


async def test_a_store_that_answers_can_be_probed(store: SlotStore) -> None:
    await store.probe()


# --- reads ---------------------------------------------------------------------------------------------------------


async def test_reads_count_only_the_living_also_when_nobody_acquires(backend: Backend) -> None:
    """B06: the holder is dead; usage must fall to 0 by itself, within the lease."""
    store = backend.store(SHORT)
    claim = ask("s1", {"user": 1})
    await store.acquire(claim)
    deadline = time.monotonic() + SHORT + 1
    while await in_use(store, claim) != [0, 0, 0]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert isinstance(await store.peek(ask("s2", {"user": 1})), Admitted)
    assert isinstance(await store.acquire(ask("s2", {"user": 1})), Admitted)


async def test_the_place_of_an_expired_stream_is_free_at_once(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("s1", {"user": 1}))
    for key in (USER, TENANT, FLEET):
        backend.expire(key, "s1")
    assert isinstance(await store.acquire(ask("s2", {"user": 1})), Admitted)
    assert [set(backend.deadlines(key)) for key in (USER, TENANT, FLEET)] == [{"s2"}] * 3
    assert backend.ages(AGE) == {"s2"}


async def test_usage_of_unknown_keys_is_zero_and_of_none_is_empty(store: SlotStore) -> None:
    assert await store.usage([USER, "sl:1:nobody"]) == [0, 0]
    assert await store.usage([]) == []


async def test_peek_answers_as_acquire_would_and_takes_nothing(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("s1", {"user": 2}))
    before = backend.dump()
    assert isinstance(await store.peek(ask("s2", {"user": 2})), Admitted)
    rejected = await store.peek(ask("s2", {"user": 1, "tenant": 1}))
    assert isinstance(rejected, Full)
    assert (rejected.position, rejected.in_use, rejected.victim) == (0, 1, None)
    behind = await store.peek(ask("s2", {"user": 2, "tenant": 1}, evict=True))
    assert isinstance(behind, Full)
    assert (behind.position, behind.in_use) == (1, 1)
    assert backend.dump() == before


async def test_peek_admits_where_eviction_would_make_room(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("s1", {"user": 1}))
    before = backend.dump()
    assert isinstance(await store.peek(ask("s2", {"user": 1}, evict=True)), Admitted)
    assert backend.dump() == before


async def test_peek_of_an_anonymous_claim_never_counts_on_eviction(store: SlotStore) -> None:
    claim = Claim("s1", "n1", (Demand(Scope.CLASS, "sl:1:class", 0, 0),), None, evict=True)
    assert isinstance(await store.acquire(claim), Full)
    assert isinstance(await store.peek(claim), Full)


# --- eviction ------------------------------------------------------------------------------------------------------


def contents(dump: Any) -> dict[str, object]:
    """A dump without the instants at which keys expire."""
    return {key: found for key, (found, _) in dump.items()}


async def fill(store: SlotStore, *streams: str, limits: dict[str, int] | None = None) -> None:
    """Acquire one stream after the other, each younger than the one before; each on a node of its own."""
    for stream in streams:
        assert isinstance(await store.acquire(ask(stream, limits, node=f"node-of-{stream}")), Admitted)
        await next_ms()


async def test_the_victim_is_the_oldest_by_acquisition_not_by_renewal(backend: Backend, store: SlotStore) -> None:
    await fill(store, "s2", "s1", "s3")
    await renew(store, [held(ask("s2"))])  # now s2 has the latest deadline, and is still the oldest
    assert max(backend.deadlines(USER), key=backend.deadlines(USER).__getitem__) == "s2"
    before = backend.dump()
    verdict = await store.acquire(ask("s4", {"user": 3}, evict=True))
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.in_use, verdict.victim) == (0, 3, Victim("s2", "node-of-s2"))
    assert backend.dump() == before


async def test_an_expired_stream_is_no_victim(backend: Backend, store: SlotStore) -> None:
    await fill(store, "s1", "s2", "s3")
    backend.expire(USER, "s1")
    verdict = await store.acquire(ask("s4", {"user": 2}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim == Victim("s2", "node-of-s2")


async def test_a_claim_that_may_not_evict_is_offered_no_victim(store: SlotStore) -> None:
    await fill(store, "s1")
    verdict = await store.acquire(ask("s2", {"user": 1}))
    assert isinstance(verdict, Full)
    assert verdict.victim is None


@pytest.mark.parametrize("scope", ["tenant", "fleet"])
async def test_a_victim_that_makes_room_there_too_is_offered(store: SlotStore, scope: str) -> None:
    await fill(store, "s1", "s2")
    verdict = await store.acquire(ask("s3", {"user": 2, scope: 2}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim == Victim("s1", "node-of-s1")


@pytest.mark.parametrize("scope", ["tenant", "address", "fleet"])
async def test_no_victim_is_offered_where_another_scope_stays_full(
    backend: Backend, store: SlotStore, scope: str
) -> None:
    """On a Cluster the script of the tenant's group cannot see the other two: there the swap finds them full."""
    await store.acquire(ask("old", user="u1"))
    for number in range(2):
        await store.acquire(ask(f"s{number}", {"address": 9}, user=f"other{number}"))
    newcomer = ask("new", {"user": 1, scope: 2}, evict=True)
    verdict = await store.acquire(newcomer)
    assert isinstance(verdict, Full)
    if backend.is_cluster and scope != "tenant":
        assert (verdict.position, verdict.victim) == (0, Victim("old", "n1"))
        assert isinstance(await store.swap(newcomer, "old"), Full)
        assert await in_use(store, ask("old")) == [1, 3, 3]
    else:
        assert (verdict.position, verdict.victim) == (0, None)


async def test_only_a_full_user_is_offered_a_victim(store: SlotStore) -> None:
    await store.acquire(ask("s1"))
    verdict = await store.acquire(ask("s2", {"user": 2, "tenant": 1}, evict=True))
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.victim) == (1, None)


async def test_swap_takes_the_victims_place_in_every_scope(backend: Backend, store: SlotStore) -> None:
    limits = {"user": 2, "class": 2, "tenant": 2, "address": 2, "fleet": 2}
    await fill(store, "s1", "s2", limits=limits)
    claim = ask("s3", limits, node="n3", evict=True)
    assert isinstance(await store.acquire(claim), Full)
    admitted = await store.swap(claim, "s1")
    assert isinstance(admitted, Admitted)
    assert admitted.swapped
    assert [set(backend.deadlines(demand.key)) for demand in claim.demands] == [{"s2", "s3"}] * 5
    assert backend.ages(AGE) == {"s2", "s3"}
    verdict = await store.acquire(ask("s4", limits, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim == Victim("s2", "node-of-s2")


async def test_swap_leaves_a_victims_other_address_to_its_owner(backend: Backend, store: SlotStore) -> None:
    old = ask("s1", {"address": 1}, address="192.0.2.1")
    await store.acquire(old)
    new = ask("s2", {"user": 1, "address": 1}, address="192.0.2.2", evict=True)
    assert isinstance(await store.swap(new, "s1"), Admitted)
    assert set(backend.deadlines(keys.address("192.0.2.1"))) == {"s1"}
    assert set(backend.deadlines(keys.address("192.0.2.2"))) == {"s2"}
    store.release(held(old))
    assert await in_use(store, old) == [1, 1, 0, 1]
    assert await in_use(store, new) == [1, 1, 1, 1]


async def test_swap_for_a_victim_that_has_gone_is_a_plain_acquire(backend: Backend, store: SlotStore) -> None:
    await fill(store, "s1", "s2")
    store.release(held(ask("s1")))
    admitted = await store.swap(ask("s3", {"user": 2}, evict=True), "s1")
    assert isinstance(admitted, Admitted)
    assert not admitted.swapped
    assert set(backend.deadlines(USER)) == {"s2", "s3"}


async def test_swap_is_rejected_when_somebody_else_has_taken_the_place(backend: Backend, store: SlotStore) -> None:
    await fill(store, "s1", "s2")
    store.release(held(ask("s1")))
    await store.acquire(ask("s3"))
    before = backend.dump()
    verdict = await store.swap(ask("s4", {"user": 2}, evict=True), "s1")
    assert isinstance(verdict, Full)
    assert (verdict.position, verdict.in_use) == (0, 2)
    await in_use(store, ask("s4"))  # behind what a Cluster gives back
    assert contents(backend.dump()) == contents(before) if backend.is_cluster else backend.dump() == before


async def test_two_newcomers_with_one_victim_are_not_both_admitted(store: SlotStore) -> None:
    await fill(store, "s1", "s2")
    limits = {"user": 2, "tenant": 2}
    verdicts = await asyncio.gather(*(store.swap(ask(f"new{number}", limits, evict=True), "s1") for number in range(5)))
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 1
    assert await store.usage([USER, TENANT]) == [2, 2]


async def evict_times(store: SlotStore, times: int, *, user: str = "u1") -> None:
    for number in range(times):
        claim = ask(f"{user}-{number + 1}", {"user": 1}, user=user, evict=True)
        admitted = await store.swap(claim, f"{user}-{number}")
        assert isinstance(admitted, Admitted)
        assert admitted.swapped


async def test_three_evictions_within_ten_seconds_close_eviction_for_thirty(backend: Backend, store: SlotStore) -> None:
    for user in ("u1", "u2"):
        await store.acquire(ask(f"{user}-0", user=user))
    newcomer = ask("new", {"user": 1}, evict=True)
    await evict_times(store, 2)
    offered = await store.acquire(newcomer)
    assert isinstance(offered, Full)
    assert offered.victim == Victim("u1-2", "n1")
    assert isinstance(await store.swap(newcomer, "u1-2"), Admitted)

    damped = await store.acquire(newcomer._replace(stream="new2"))
    assert isinstance(damped, Full)
    assert damped.victim is None
    other = await store.acquire(ask("other", {"user": 1}, user="u2", evict=True))
    assert isinstance(other, Full)
    assert other.victim == Victim("u2-0", "n1")

    backend.pass_damper(AGE, DAMPER_HOLD_MS - 5_000)
    still = await store.acquire(newcomer._replace(stream="new2"))
    assert isinstance(still, Full)
    assert still.victim is None
    backend.pass_damper(AGE, 5_001)
    again = await store.acquire(newcomer._replace(stream="new2"))
    assert isinstance(again, Full)
    assert again.victim == Victim("new", "n1")


async def test_evictions_further_apart_than_ten_seconds_are_not_damped(backend: Backend, store: SlotStore) -> None:
    await store.acquire(ask("u1-0"))
    await evict_times(store, 2)
    backend.pass_damper(AGE, 10_001)
    assert isinstance(await store.swap(ask("new", {"user": 1}, evict=True), "u1-2"), Admitted)
    verdict = await store.acquire(ask("new2", {"user": 1}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim == Victim("new", "n1")


async def test_swaps_that_evict_nobody_do_not_count_for_the_damper(store: SlotStore) -> None:
    for number in range(4):
        assert isinstance(await store.swap(ask(f"s{number}", {"user": 9}, evict=True), "gone"), Admitted)
    verdict = await store.acquire(ask("new", {"user": 4}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim is not None


# --- orders --------------------------------------------------------------------------------------------------------


async def test_an_order_is_delivered_and_confirmed(backend: Backend) -> None:
    asking, owning = backend.store(), backend.store()
    received: list[Order] = []

    def carry_out(order: Order) -> None:
        received.append(order)
        owning.confirm(order)

    asking.listen("n1", lambda order: None)
    owning.listen("n2", carry_out)
    order = Order("n1-1", "n2", "s1", "evicted")
    deadline = time.monotonic() + 5
    while not await asking.order(order, ack_seconds=0.2):  # until both have subscribed
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    assert set(received) == {order}


async def test_an_order_without_a_confirmation_is_given_up_in_time(backend: Backend) -> None:
    asking, owning = backend.store(), backend.store()
    received: list[Order] = []
    owning.listen("n2", received.append)
    deadline = started = time.monotonic() + 5
    while not received:  # until the owner has subscribed
        started = time.monotonic()
        assert started < deadline
        assert not await asking.order(Order("n1-1", "n2", "s1", "evicted"), ack_seconds=0.05)
    assert 0.04 < time.monotonic() - started < 1


async def test_a_confirmation_that_comes_late_or_twice_does_no_harm(backend: Backend) -> None:
    asking, owning = backend.store(), backend.store()
    owning.listen("n2", lambda order: None)
    for _ in range(2):
        owning.confirm(Order("n1-1", "n2", "s1", "evicted"))
    assert await owning.usage([FLEET]) == [0]
    assert await asking.usage([FLEET]) == [0]


async def test_an_order_that_nobody_listens_for_is_answered_at_once(store: SlotStore) -> None:
    started = time.monotonic()
    assert not await store.order(Order("n1-1", "n2", "s1", "evicted"), ack_seconds=30)
    assert time.monotonic() - started < 5


async def test_there_are_no_orders_before_listening(store: SlotStore) -> None:
    assert await store.orders() == []
