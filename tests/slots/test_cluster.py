"""Slots on a Cluster of three masters: what only several servers can get wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest
from redis.crc import key_slot

from sse_limits.core.slots import Admitted, Full
from sse_limits.slots import keys
from sse_limits.slots.base import Order, StoreUnavailable
from sse_limits.slots.cluster import ClusterStore, groups

from .backends import ALL_AT, SCRIPTS, RedisBackend, ask, every_operation, held, in_use, renew, until
from .servers import ClusterServer, Server, monitored

pytestmark = pytest.mark.redis

USER, TENANT, FLEET, AGE = keys.user("t1", "u1"), keys.tenant("t1"), keys.fleet(), keys.age("t1", "u1")
ADDRESS = keys.address("192.0.2.1")
TIMEOUT = 0.25


@pytest.fixture
async def backend(cluster: ClusterServer) -> AsyncIterator[RedisBackend]:
    """Three masters that each hold a group: the tenant's, the address' and the fleet's."""
    cluster.flushall()
    cluster.spread(TENANT, ADDRESS, FLEET)
    found = RedisBackend(cluster)
    yield found
    await found.aclose()


@pytest.fixture
def store(backend: RedisBackend) -> ClusterStore:
    return backend.store()


async def test_scripts_keep_to_one_hash_slot_and_to_the_keys_they_declare(
    store: ClusterStore, cluster: ClusterServer
) -> None:
    """B30. What each script touched is read from MONITOR; the server itself says which arguments are keys."""
    await every_operation(store)  # so that all scripts are loaded, and MONITOR shows no source
    cluster.flushall()
    async with AsyncExitStack() as stack:
        watched = [await stack.enter_async_context(monitored(master)) for master in cluster.masters]
        await every_operation(store)
    seen: set[str] = set()
    for commands in watched:
        declared: set[str] = set()
        for command in commands:
            words = command["command"].split(" ")
            if words[0] == "EVALSHA":
                seen.add(words[1])
                declared = set(words[3 : 3 + int(words[2])])
                assert len({key_slot(key.encode()) for key in declared}) == 1
            elif command["client_type"] == "lua" and words[0].upper() not in {"TIME", "PUBLISH"}:
                touched = set(cluster.masters[0].client.execute_command("COMMAND GETKEYS", *words))
                assert touched
                assert touched <= declared, command
    assert len(seen) == SCRIPTS


async def impatient(backend: RedisBackend) -> ClusterStore:
    """A store with a short timeout that has its connections; on a busy machine making them may take longer."""
    store = backend.store(timeout_seconds=TIMEOUT)
    for _ in range(20):
        with suppress(StoreUnavailable):
            await store.usage([TENANT, ADDRESS, FLEET])
            return store
    raise AssertionError("no connections")


# --- all or none ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scope", "position"), [("address", 3), ("fleet", 4)])
async def test_what_was_taken_before_a_full_group_is_given_back(
    backend: RedisBackend, store: ClusterStore, scope: str, position: int
) -> None:
    other = ask("other", ALL_AT, user="u2", tenant="t2")
    assert isinstance(await store.acquire(other), Admitted)
    before = backend.dump()
    newcomer = ask("new", {**ALL_AT, scope: 1})
    found = await store.acquire(newcomer)
    assert isinstance(found, Full)
    assert (found.position, found.in_use, found.victim) == (position, 1, None)
    await in_use(store, newcomer)
    assert {key: members for key, (members, _) in backend.dump().items()} == {
        key: members for key, (members, _) in before.items()
    }
    assert backend.ages(AGE) == set()


async def test_simultaneous_attempts_on_the_last_slots_admit_as_many_as_fit(backend: RedisBackend) -> None:
    """Who is turned away may have held earlier groups for a moment: others may be turned away too, none let in."""
    stores = [backend.store() for _ in range(4)]
    for round_ in range(10):
        limits = {"user": 9, "tenant": 40, "address": 5, "fleet": 3}
        claims = [ask(f"r{round_}-{number}", limits, user=f"u{number}") for number in range(40)]
        found = await asyncio.gather(*(stores[at % 4].acquire(claim) for at, claim in enumerate(claims)))
        winners = [claim for claim, each in zip(claims, found, strict=True) if isinstance(each, Admitted)]
        assert len(winners) == 3
        for store in stores:
            await in_use(store, claims[0])
        assert await stores[0].usage([TENANT, ADDRESS, FLEET]) == [3, 3, 3]
        for at, claim in enumerate(claims):
            if claim in winners:
                stores[at % 4].release(held(claim))
        for store in stores:
            await in_use(store, claims[0])


@pytest.mark.parametrize("where", [TENANT, ADDRESS, FLEET])
@pytest.mark.parametrize("operation", ["acquire", "swap"])
async def test_a_master_that_stalls_in_mid_claim_keeps_nothing(
    backend: RedisBackend, cluster: ClusterServer, where: str, operation: str
) -> None:
    store = await impatient(backend)
    claims = [ask(f"s{number}", dict.fromkeys(ALL_AT, 99)) for number in range(20)]
    with cluster.master_of(where).stalled():
        started = time.monotonic()
        attempts = [store.acquire(claim) if operation == "acquire" else store.swap(claim, "x") for claim in claims]
        found = await asyncio.gather(*attempts, return_exceptions=True)
        assert time.monotonic() - started < TIMEOUT + 0.5
        assert all(isinstance(each, StoreUnavailable) for each in found)
        others = [key for key in (TENANT, ADDRESS, FLEET) if key != where]
        await until(lambda: not any(backend.deadlines(key) for key in others))
    await until(lambda: store._unsure.is_settled)
    assert [backend.deadlines(key) for key in (USER, TENANT, ADDRESS, FLEET)] == [{}] * 4
    assert isinstance(await store.acquire(claims[0]), Admitted)


async def test_a_cancelled_attempt_keeps_nothing(store: ClusterStore, backend: RedisBackend) -> None:
    claims = [ask(f"s{number}", dict.fromkeys(ALL_AT, 999)) for number in range(100)]
    for turns, claim in enumerate(claims):
        attempt = asyncio.ensure_future(store.acquire(claim))
        for _ in range(turns % 20):
            await asyncio.sleep(0)
        attempt.cancel()
        await asyncio.wait([attempt])
        if not attempt.cancelled():
            store.release(held(claim))
    await until(lambda: store._unsure.is_settled)
    assert await in_use(store, claims[0]) == [0] * 5


async def test_other_tenants_go_on_while_a_master_stalls(backend: RedisBackend, cluster: ClusterServer) -> None:
    """Only who needs it: here nobody has an address limit."""
    store = await impatient(backend)
    with cluster.master_of(ADDRESS).stalled():
        assert isinstance(await store.acquire(ask("s1")), Admitted)
        with pytest.raises(StoreUnavailable):
            await store.acquire(ask("s2", ALL_AT))
        with pytest.raises(StoreUnavailable):
            await store.probe()
    await store.probe()
    await until(lambda: store._unsure.is_settled)


async def test_while_the_cluster_is_down_it_is_away_and_nothing_is_left_behind(
    backend: RedisBackend, cluster: ClusterServer
) -> None:
    """One hash slot that nobody serves, of another tenant even, and each master answers CLUSTERDOWN."""
    store = await impatient(backend)
    claims = [ask(f"s{number}", dict.fromkeys(ALL_AT, 99)) for number in range(20)]
    await asyncio.gather(*(store.acquire(claim) for claim in claims))
    assert len(backend.deadlines(FLEET)) == len(claims)
    with cluster.down(keys.tenant("t2")):
        for claim in claims:
            store.release(held(claim))
        attempts = [store.acquire(claim) for claim in claims]
        found = await asyncio.gather(*attempts, store.probe(), store.usage([TENANT]), return_exceptions=True)
        assert all(isinstance(each, StoreUnavailable) for each in found)
    await until(lambda: store._unsure.is_settled)
    assert [backend.deadlines(key) for key in (USER, TENANT, ADDRESS, FLEET)] == [{}] * 4
    await store.probe()
    assert isinstance(await store.acquire(claims[0]), Admitted)


# --- hash slots that move ------------------------------------------------------------------------------------------


def elsewhere(cluster: ClusterServer, key: str) -> Server:
    owner = cluster.master_of(key)
    return next(master for master in cluster.masters if master is not owner)


async def test_a_moved_hash_slot_is_followed(store: ClusterStore, cluster: ClusterServer) -> None:
    claim = ask("s1", ALL_AT)
    assert isinstance(await store.acquire(claim), Admitted)
    for key in (TENANT, FLEET, keys.orders("n2")):
        cluster.move(key, elsewhere(cluster, key))
    found = await asyncio.gather(*(store.acquire(ask(f"s{number}", ALL_AT)) for number in range(2, 9)))
    assert sum(isinstance(each, Admitted) for each in found) == 4
    assert (await renew(store, [held(claim)])).lost == frozenset()
    assert await in_use(store, claim) == [5] * 5
    assert not await store.order(Order("n1-1", "n2", "s1", "evicted"), 0.01)
    assert store._unsure.is_settled


async def test_a_hash_slot_on_its_way_is_followed(
    store: ClusterStore, backend: RedisBackend, cluster: ClusterServer
) -> None:
    """ASK: what is on neither server yet is taken at the new one, also where the script is not known."""
    await store.acquire(ask("s0"))
    for master in cluster.masters:
        master.client.script_flush()
    cluster.flushall()
    source, target = cluster.master_of(FLEET), elsewhere(cluster, FLEET)
    with cluster.moving(FLEET, target):
        assert isinstance(await store.acquire(ask("s1", ALL_AT)), Admitted)
        assert target.client.dbsize() > 0
        assert source.client.execute_command("CLUSTER", "COUNTKEYSINSLOT", key_slot(FLEET.encode())) == 0
    assert cluster.master_of(FLEET) is target
    assert await in_use(store, ask("s1", ALL_AT)) == [1] * 5


async def test_keys_that_are_moved_one_by_one_are_waited_for(
    backend: RedisBackend, store: ClusterStore, cluster: ClusterServer
) -> None:
    """TRYAGAIN: the user's set is at the new master already, the tenant's is not."""
    await store.acquire(ask("s0", ALL_AT))
    target = elsewhere(cluster, TENANT)
    with cluster.moving(TENANT, target, first=[USER]):
        attempt = asyncio.ensure_future(store.acquire(ask("s1", ALL_AT)))
        await asyncio.sleep(0.05)
        assert not attempt.done()
    assert isinstance(await attempt, Admitted)
    assert await in_use(store, ask("s1", ALL_AT)) == [2] * 5


async def test_a_lost_connection_has_the_map_read_again(store: ClusterStore, cluster: ClusterServer) -> None:
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    for master in cluster.masters:
        master.client.client_kill_filter(_type="normal", skipme=True)
    cluster.move(FLEET, elsewhere(cluster, FLEET))
    for number in range(3):
        try:
            await store.acquire(ask(f"try{number}", ALL_AT))
        except StoreUnavailable:
            continue
    await until(lambda: store._unsure.is_settled)
    assert isinstance(await store.acquire(ask("new", ALL_AT)), Admitted)


async def test_a_cluster_that_is_away_is_unavailable_at_once(backend: RedisBackend) -> None:
    store = backend.store(url="redis+cluster://127.0.0.1:1,127.0.0.1:2", timeout_seconds=1)
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.acquire(ask("s1"))
        assert time.monotonic() - started < 1


async def test_one_address_that_answers_is_enough(backend: RedisBackend, cluster: ClusterServer) -> None:
    store = backend.store(url=f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.ports[2]}")
    assert isinstance(await store.acquire(ask("s1", ALL_AT)), Admitted)


# --- orders and probes ---------------------------------------------------------------------------------------------


async def test_a_probe_writes_on_each_master(store: ClusterStore, cluster: ClusterServer) -> None:
    await store.probe()
    await store.probe()
    assert [master.client.dbsize() for master in cluster.masters] == [1, 1, 1]
    with cluster.masters[1].out_of_memory(), pytest.raises(StoreUnavailable):
        await store.probe()


async def test_each_master_is_asked_whether_it_drops_keys(store: ClusterStore, cluster: ClusterServer) -> None:
    await store.usage([])
    assert await store.eviction_policy() is None
    client = cluster.masters[2].client
    client.config_set("maxmemory", "100mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert await store.eviction_policy() == "allkeys-lru"
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)


def test_a_claim_falls_into_its_groups_in_order() -> None:
    claim = ask("s1", ALL_AT)
    found = groups(claim)
    assert [group.first for group in found] == [0, 3, 4]
    assert [group.held_by("s1").age for group in found] == [AGE, None, None]
    assert [key for group in found for key in group.slot_sets] == [demand.key for demand in claim.demands]
    assert [group.first for group in groups(ask("s1", ALL_AT, user=None))] == [0, 2, 3]
