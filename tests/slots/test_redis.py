"""What only Redis and Valkey can get wrong: key expiry, clocks, memory, scripts, connections and their faults."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from sse_limits.core.slots import Admitted, Claim, Full, Victim
from sse_limits.slots import keys
from sse_limits.slots.base import Order, StoreUnavailable
from sse_limits.slots.batches import Batch
from sse_limits.slots.redis import RedisStore
from tests.faults.proxy import Direction, Proxy

from .backends import (
    ALL_AT,
    SCRIPTS,
    RedisBackend,
    ask,
    every_operation,
    held,
    in_use,
    next_ms,
    renew,
    until,
)
from .servers import Server, monitored

USER, TENANT, FLEET, AGE = keys.user("t1", "u1"), keys.tenant("t1"), keys.fleet(), keys.age("t1", "u1")
SHORT = 0.4
TIMEOUT = 0.25


@pytest.fixture
def store(redis_backend: RedisBackend) -> RedisStore:
    return redis_backend.store()


def assert_every_key_expires(server: Server) -> None:
    """I3."""
    ttls = server.ttls()
    assert [key for key, ttl in ttls.items() if ttl == -1] == []


async def evict(store: RedisStore, claim: Claim, victim: str) -> None:
    assert isinstance(await store.swap(claim._replace(evict=True), victim), Admitted)


# --- keys and their time to live -----------------------------------------------------------------------------------


async def test_every_key_has_a_time_to_live_after_every_operation(store: RedisStore, server: Server) -> None:
    claims = [ask(f"s{number}", ALL_AT) for number in range(5)]

    async def release() -> None:
        store.release(held(claims[0]))
        await in_use(store, claims[0])

    async def after(operation: Awaitable[object]) -> None:
        await operation
        assert server.client.dbsize() >= 1
        assert_every_key_expires(server)

    for claim in claims:
        await after(store.acquire(claim))
    await after(store.acquire(ask("rejected", ALL_AT, evict=True)))
    await after(evict(store, ask("new", ALL_AT), "s1"))
    await after(renew(store, [held(claim) for claim in claims]))
    await after(release())
    await after(store.peek(claims[0]))
    await after(store.order(Order("n1-1", "n2", "s1", "evicted"), 0.01))
    server.client.persist(TENANT)
    server.client.persist(AGE)
    await after(renew(store, [held(claims[2])]))


async def test_a_set_lives_as_long_as_its_streams_are_renewed(redis_backend: RedisBackend, server: Server) -> None:
    """FACTS 4: with EXPIRE at reservation only, the set vanishes under living streams at the key's time to live."""
    store = redis_backend.store(2 * SHORT)
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    ends = time.monotonic() + 5 * SHORT
    while time.monotonic() < ends:
        assert (await renew(store, [held(claim)])).lost == frozenset()
        assert await in_use(store, claim) == [1, 1, 1, 1, 1]
        assert_every_key_expires(server)
        await asyncio.sleep(SHORT / 4)


async def test_no_operation_shortens_a_keys_time_to_live(redis_backend: RedisBackend, server: Server) -> None:
    long, short = redis_backend.store(60), redis_backend.store(SHORT)
    await long.acquire(ask("s1", ALL_AT))
    await short.acquire(ask("s2", ALL_AT))
    await renew(short, [held(ask("s2", ALL_AT))])
    await short.acquire(ask("s3", {"user": 2}, evict=True))
    await evict(short, ask("s4", ALL_AT), "s2")
    assert min(server.ttls().values()) > 50_000


async def test_everything_of_a_dead_node_is_gone_at_the_end_of_the_lease(
    redis_backend: RedisBackend, server: Server
) -> None:
    """B02, B11: nobody releases, renews or acquires."""
    store = redis_backend.store(SHORT)
    for number in range(5):
        await store.acquire(ask(f"s{number}", ALL_AT))
    assert server.client.dbsize() == 6
    assert await until(lambda: server.client.dbsize() == 0, SHORT + 1) >= SHORT / 2


@pytest.mark.parametrize("operation", ["acquire", "renew", "swap"])
async def test_expired_streams_leave_no_age_behind(
    redis_backend: RedisBackend, server: Server, store: RedisStore, operation: str
) -> None:
    for number in range(3):
        await store.acquire(ask(f"s{number}"))
    await store.acquire(ask("living"))
    for number in range(3):
        redis_backend.expire(USER, f"s{number}")
    match operation:
        case "acquire":
            await store.acquire(ask("new"))
            expected = {"living", "new"}
        case "swap":
            await evict(store, ask("new"), "living")
            expected = {"new"}
        case _:
            await renew(store, [held(ask("living"))])
            expected = {"living"}
    assert set(redis_backend.deadlines(USER)) == expected
    assert redis_backend.ages(AGE) == expected


async def test_no_age_is_orphaned_when_a_damped_users_set_expires(redis_backend: RedisBackend, server: Server) -> None:
    """The damper keeps the age hash for 40 s; with a shorter lease the set must not vanish from under it."""
    store = redis_backend.store(SHORT)
    await store.acquire(ask("s0"))
    await evict(store, ask("s1"), "s0")
    await until(lambda: server.client.zcount(USER, int(time.time() * 1000), "+inf") == 0)
    await asyncio.sleep(0.05)
    await store.acquire(ask("s2"))
    assert redis_backend.ages(AGE) == {"s2"}


async def test_a_damped_user_stays_damped_beyond_its_lease(redis_backend: RedisBackend, server: Server) -> None:
    store = redis_backend.store(SHORT)
    await store.acquire(ask("s0"))
    for number in range(3):
        await evict(store, ask(f"s{number + 1}"), f"s{number}")
    deadline = time.monotonic() + SHORT + 1
    while await store.usage([USER]) != [0]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    await store.acquire(ask("new"))
    verdict = await store.acquire(ask("newer", {"user": 1}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim is None


async def test_two_thousand_users_come_and_go_and_nothing_is_left(store: RedisStore, server: Server) -> None:
    """B31."""
    limits = dict.fromkeys(ALL_AT, 9999)
    claims = [ask(f"s{at}", limits, user=f"u{at}", address=f"a{at}") for at in range(2000)]
    verdicts = await asyncio.gather(*(store.acquire(claim) for claim in claims))
    assert all(isinstance(verdict, Admitted) for verdict in verdicts)
    assert server.client.dbsize() == 3 * 2000 + 3
    for claim in claims:
        store.release(held(claim))
    await in_use(store, claims[0])
    assert server.client.dbsize() == 0


@pytest.mark.parametrize("position", range(6))
async def test_losing_any_one_key_makes_no_script_fail(
    redis_backend: RedisBackend, server: Server, store: RedisStore, position: int
) -> None:
    """B31: a server that evicts keys evicts one of a pair."""
    claim, other = ask("s1", ALL_AT), ask("s2", ALL_AT)
    lost_key = [*(demand.key for demand in claim.demands), AGE][position]

    async def run(operation: Callable[[], Awaitable[object]]) -> None:
        server.client.flushall()
        for number in range(3):
            await store.acquire(ask(f"old{number}", ALL_AT))
        await store.acquire(claim)
        assert server.client.delete(lost_key) == 1
        await operation()
        assert_every_key_expires(server)

    async def release() -> None:
        await store._send_release(held(claim))

    await run(lambda: store.acquire(other))
    await run(lambda: store.acquire(ask("s2", ALL_AT | {"user": 4}, evict=True)))
    await run(lambda: store.swap(other, "s1"))
    await run(lambda: renew(store, [held(claim)]))
    await run(lambda: store.peek(other))
    await run(lambda: in_use(store, claim))
    await run(release)


async def test_renewals_of_many_leases_report_who_is_lost(store: RedisStore, server: Server) -> None:
    """More members than one call takes, in sets that are shared, own and split between calls."""
    claims = [ask(f"s{at}", {"address": 9999}, user=f"u{at % 7}", address=f"a{at % 2}") for at in range(1300)]
    await asyncio.gather(*(store.acquire(claim) for claim in claims))
    lost = {claims[at].stream for at in range(0, 1300, 97)}
    for at in range(0, 1300, 97):
        key = random.choice(claims[at].demands).key
        server.client.zrem(key, claims[at].stream)
    assert (await renew(store, [held(claim) for claim in claims])).lost == lost
    assert_every_key_expires(server)


async def test_a_batch_is_renewed_again_and_again_by_what_was_packed_once(store: RedisStore, server: Server) -> None:
    claims = [ask(f"s{number}", ALL_AT) for number in range(3)]
    for claim in claims:
        await store.acquire(claim)
    batch = Batch.of([held(claim) for claim in claims])
    prepared = None
    for _ in range(3):
        await next_ms()
        renewed = await store.renew(batch)
        assert renewed.lost == frozenset()
        batch.deadline = renewed.now + 60_000
        assert set(server.client.zrange(FLEET, 0, -1, withscores=True)) == {
            (claim.stream, batch.deadline) for claim in claims
        }
        assert prepared in (None, batch.prepared)
        prepared = batch.prepared
    store.release(held(claims[0]))
    await in_use(store, claims[0])
    assert (await store.renew(batch)).lost == {"s0"}, "not even before its deadline"
    batch.discard(held(claims[0]))
    assert (await store.renew(batch)).lost == frozenset()
    assert_every_key_expires(server)


async def test_behind_its_deadline_a_batch_is_searched_for_who_has_expired(
    redis_backend: RedisBackend, server: Server
) -> None:
    store = redis_backend.store(SHORT)
    claims = [ask("s1"), ask("other", user="u2")]
    for claim in claims:
        await store.acquire(claim)
    batch = Batch.of([held(claims[0])])
    batch.deadline = (await store.renew(batch)).now + round(SHORT * 1000)
    long = redis_backend.store(60)
    await renew(long, [held(claims[1])])  # keeps the fleet's set, and with it the member that expires
    await asyncio.sleep(SHORT)
    assert (await store.renew(batch)).lost == {"s1"}
    assert await in_use(store, claims[0]) == [0, 1, 1]


# --- whose clock ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [-120, 120])
async def test_the_callers_clock_does_not_matter(
    redis_backend: RedisBackend, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """B28, FACTS 4: a node whose clock is ahead deletes the living slots of others; one behind is never purged."""
    store, other = redis_backend.store(), redis_backend.store()
    for number in range(2):
        await store.acquire(ask(f"s{number}"))
        await next_ms()
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + ahead * 10**9)
    admitted = await other.acquire(ask("new"))
    assert abs(admitted.now - real() * 1000) < 5_000
    assert (await renew(other, [held(ask("new"))])).lost == frozenset()
    assert set(redis_backend.deadlines(USER)) == {"s0", "s1", "new"}
    assert redis_backend.deadlines(USER)["new"] - real() * 1000 == pytest.approx(60_000, abs=5_000)
    verdict = await other.acquire(ask("newer", {"user": 3}, evict=True))
    assert isinstance(verdict, Full)
    assert verdict.victim == Victim("s0", "n1")


# --- heartbeats and retriers ---------------------------------------------------------------------------------------


async def test_a_late_heartbeat_does_not_bring_released_streams_back(
    redis_backend: RedisBackend, server: Server
) -> None:
    """B08: the renewal is on its way for 100 ms, and the streams are released meanwhile."""
    with Proxy(server.socket) as proxy:
        slow, store = redis_backend.store(url=proxy.url), redis_backend.store()
        claims = [ask(f"s{number}") for number in range(20)]
        for claim in claims:
            await store.acquire(claim)
        await slow.renew(Batch())
        await renew(slow, [held(claims[0])])
        proxy.delay(0.1, "request")
        renewal = asyncio.ensure_future(renew(slow, [held(claim) for claim in claims]))
        await asyncio.sleep(0.02)
        for claim in claims:
            store.release(held(claim))
        assert await in_use(store, claims[0]) == [0, 0, 0]
        assert not renewal.done()
        assert (await renewal).lost == {claim.stream for claim in claims}
        assert server.dump() == {}
        await slow.aclose()


async def test_refused_retriers_never_hold_a_freed_slot(redis_backend: RedisBackend) -> None:
    """FACTS 4: with reserve-then-remove the attempts of the refused keep a freed slot unusable."""
    stores = [redis_backend.store() for _ in range(3)]
    limits = {"user": 1}
    await stores[0].acquire(ask("holder", limits))
    released = False

    async def retry(store: RedisStore, name: str) -> str | None:
        for attempt in range(100):
            was_released = released
            verdict = await store.acquire(ask(f"{name}-{attempt}", limits))
            if isinstance(verdict, Admitted):
                return f"{name}-{attempt}"
            assert verdict.in_use == 1
            if was_released and not winners:
                tries_behind_the_release.append(name)
        return None

    async def release() -> None:
        nonlocal released
        await asyncio.sleep(0.02)
        await stores[0]._send_release(held(ask("holder", limits)))
        released = True

    winners: list[str] = []
    tries_behind_the_release: list[str] = []
    retriers = [asyncio.ensure_future(retry(stores[at % 3], f"r{at}")) for at in range(30)]
    for retrier in retriers:
        retrier.add_done_callback(lambda done: done.result() and winners.append(done.result()))
    await release()
    await asyncio.gather(*retriers)
    assert len(winners) == 1
    # Rejections between the release and the winner's admission: at most what the winner itself caused.
    assert len(tries_behind_the_release) <= len(retriers)
    assert await stores[0].usage([USER]) == [1]


# --- scripts -------------------------------------------------------------------------------------------------------


async def test_forgotten_scripts_are_loaded_again_without_an_error(redis_backend: RedisBackend, server: Server) -> None:
    """B35: SCRIPT FLUSH every other millisecond during 2,000 acquires and releases, and renewals beside them."""
    stores = [redis_backend.store() for _ in range(2)]
    limits = {"user": 10, "tenant": 10}
    living: set[str] = set()
    admitted = 0

    async def come_and_go(worker: int) -> None:
        nonlocal admitted
        store = stores[worker % 2]
        for number in range(100):
            claim = ask(f"s{worker}-{number}", limits)
            if isinstance(await store.acquire(claim), Admitted):
                admitted += 1
                living.add(claim.stream)
                assert len(living) <= 10
                assert (await renew(store, [held(claim)])).lost == frozenset()
                living.remove(claim.stream)
                store.release(held(claim))

    async def flush() -> None:
        # Ended by a flag: with a socket timeout redis-py uses wait_for, which may swallow a cancellation before 3.12.
        async with Redis.from_url(server.url, socket_timeout=None) as client:
            while working:
                await client.script_flush()
                await asyncio.sleep(0.002)

    working = True
    flushing = asyncio.ensure_future(flush())
    await asyncio.gather(*(come_and_go(worker) for worker in range(20)))
    assert not flushing.done()
    working = False
    await flushing
    assert admitted >= 200
    for store in stores:
        await in_use(store, ask("s"))
        assert store._unsure.is_settled
    assert await in_use(stores[0], ask("s")) == [0, 0, 0]


async def test_scripts_touch_only_the_keys_they_declare(store: RedisStore, server: Server) -> None:
    """B30. What each script touched is read from MONITOR; the server itself says which arguments are keys."""
    await every_operation(store)  # so that all scripts are loaded, and MONITOR shows no source
    server.client.flushall()
    async with monitored(server) as commands:
        await every_operation(store)
    seen: set[str] = set()
    declared: set[str] = set()
    for command in commands:
        words = command["command"].split(" ")
        if words[0] == "EVALSHA":
            seen.add(words[1])
            declared = set(words[3 : 3 + int(words[2])])
        elif command["client_type"] == "lua" and words[0].upper() not in {"TIME", "PUBLISH"}:
            touched = set(server.client.execute_command("COMMAND GETKEYS", *words))
            assert touched
            assert touched <= declared, command
    assert len(seen) == SCRIPTS


async def test_an_attempt_is_one_command(store: RedisStore, server: Server) -> None:
    """B04: nothing can come between the parts of an acquire, and a rejected one writes nothing."""
    await every_operation(store)
    server.client.flushall()
    async with monitored(server) as commands:
        await store.acquire(ask("s1", {"user": 1}))
        await store.acquire(ask("s2", {"user": 1}))
    sent = [command["command"].split(" ")[0] for command in commands if command["client_type"] != "lua"]
    assert sent == ["EVALSHA", "EVALSHA", "ECHO"]
    second = max(at for at, command in enumerate(commands) if command["command"].startswith("EVALSHA"))
    assert [command["command"].split(" ")[0].upper() for command in commands[second + 1 : -1]] == ["TIME", "ZCOUNT"]


# --- a server that says no -----------------------------------------------------------------------------------------


async def test_out_of_memory_an_attempt_fails_and_writes_nothing(
    redis_backend: RedisBackend, store: RedisStore, server: Server
) -> None:
    """B36a. Also when expired streams could be purged first, and when a victim would give way."""
    for number in range(5):
        await store.acquire(ask(f"s{number}", ALL_AT))
    for demand in ask("s0", ALL_AT).demands:
        redis_backend.expire(demand.key, "s0")
    before = server.dump()
    with server.out_of_memory():
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await store.acquire(ask("new", ALL_AT))
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await store.swap(ask("new", ALL_AT), "s1")
        await until(lambda: store._unsure.is_settled)
        assert server.dump() == before
    assert isinstance(await store.acquire(ask("new", ALL_AT)), Admitted)


async def test_out_of_memory_streams_are_renewed_and_released(store: RedisStore, server: Server) -> None:
    """B36a."""
    claims = [ask(f"s{number}", ALL_AT) for number in range(5)]
    for claim in claims:
        await store.acquire(claim)
    await next_ms()
    with server.out_of_memory():
        assert (await renew(store, [held(claim) for claim in claims])).lost == frozenset()
        store.release(held(claims[0]))
        assert await in_use(store, claims[0]) == [4, 4, 4, 4, 4]
    assert_every_key_expires(server)


async def test_out_of_memory_a_damped_users_streams_are_renewed(redis_backend: RedisBackend, server: Server) -> None:
    """The damper gives the age hash a longer time to live than the lease, so that no write comes before the ZADD."""
    store = redis_backend.store(10)
    await store.acquire(ask("s0"))
    await evict(store, ask("s1"), "s0")
    await next_ms()
    with server.out_of_memory():
        assert (await renew(store, [held(ask("s1"))])).lost == frozenset()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "noeviction"])
async def test_a_server_that_drops_keys_is_known_by_its_policy(store: RedisStore, server: Server, policy: str) -> None:
    assert await store.eviction_policy() is None
    with server.evicting(policy):
        assert await store.eviction_policy() == (None if policy == "noeviction" else policy)


async def test_a_demoted_server_is_unavailable_until_it_is_master_again(store: RedisStore, server: Server) -> None:
    """B34. The connection is dropped as well, so that the next exchange can reach the new master."""
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    connection = store._decisions._connection
    with server.demoted():
        for number in range(3):
            with pytest.raises(StoreUnavailable, match=r"(?i)read.?only"):
                await store.acquire(ask(f"new{number}", ALL_AT))
        with pytest.raises(StoreUnavailable):
            await renew(store, [held(claim)])
        assert store._decisions._connection is not connection
    assert isinstance(await store.acquire(ask("s2", ALL_AT)), Admitted)
    assert (await renew(store, [held(claim)])).lost == frozenset()
    await until(lambda: store._unsure.is_settled)
    assert await in_use(store, claim) == [2, 2, 2, 2, 2]


async def test_a_release_that_a_demoted_server_refused_is_made_up_for(store: RedisStore, server: Server) -> None:
    claim = ask("s1", ALL_AT)
    await store.acquire(claim)
    with server.demoted():
        store.release(held(claim))
        await until(lambda: not store._unsure.is_settled)
    await until(lambda: server.client.dbsize() == 0)


# --- callers that leave --------------------------------------------------------------------------------------------


async def test_a_cancelled_caller_disturbs_nobody_and_keeps_no_slot(
    redis_backend: RedisBackend, server: Server
) -> None:
    """B21: replies are told apart by an `own` count that the script hands back."""
    with Proxy(server.socket) as proxy:
        proxy.delay(0.002, "reply")
        store = redis_backend.store(url=proxy.url)
        answers = 0
        leaving = True

        async def check(worker: int) -> None:
            nonlocal answers
            number = worker
            while leaving or number < 1000:
                number += 10
                verdict = await store.peek(ask("x", {"user": number}, user="checker", own={"user": number}))
                assert isinstance(verdict, Full)
                assert verdict.in_use == number
                verdict = await store.acquire(ask("x", {"user": number}, user="checker", own={"user": number}))
                assert isinstance(verdict, Full)
                assert verdict.in_use == number
                answers += 2

        async def leave(number: int) -> None:
            attempt = asyncio.ensure_future(store.acquire(ask(f"s{number}")))
            await asyncio.sleep(random.random() * 0.008)
            if not attempt.cancel():
                store.release(held(ask(f"s{number}")))
            else:
                await asyncio.wait([attempt])
                assert attempt.cancelled()

        checkers = [asyncio.ensure_future(check(worker)) for worker in range(1, 11)]
        for start in range(0, 500, 25):
            await asyncio.gather(*(leave(number) for number in range(start, start + 25)))
        leaving = False
        await asyncio.gather(*checkers)
        assert answers >= 1000
        await until(lambda: store._unsure.is_settled)
        assert await in_use(store, ask("s")) == [0, 0, 0]
        assert server.client.dbsize() == 0
        await store.aclose()


# --- a server that does not answer ---------------------------------------------------------------------------------


async def failure_seconds(attempt: Awaitable[object]) -> float:
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await attempt
    return time.monotonic() - started


async def test_after_a_stall_no_slot_waits_for_its_lease(redis_backend: RedisBackend, server: Server) -> None:
    """B32: twenty acquires lie in the stalled server's buffer, and are executed when it goes on."""
    store = redis_backend.store(60, timeout_seconds=TIMEOUT)
    claims = [ask(f"s{number}", ALL_AT | dict.fromkeys(ALL_AT, 99)) for number in range(20)]
    await store.usage([])
    with server.stalled():
        took = await asyncio.gather(*(failure_seconds(store.acquire(claim)) for claim in claims))
        assert max(took) < TIMEOUT + 0.15
    server.client.ping()
    await until(lambda: server.client.dbsize() == 0 and store._unsure.is_settled, 1)
    assert isinstance(await store.acquire(claims[0]), Admitted)


async def test_a_large_burst_before_a_stall_leaves_no_slot_either(redis_backend: RedisBackend, server: Server) -> None:
    """More than the socket buffer takes: what the client still holds must not follow behind the releases."""
    store = redis_backend.store(60, timeout_seconds=TIMEOUT)
    await store.usage([])
    claims = [ask(f"s{number}", dict.fromkeys(ALL_AT, 9999)) for number in range(1500)]
    with server.stalled():
        await asyncio.gather(*(failure_seconds(store.acquire(claim)) for claim in claims))
    server.client.ping()
    await until(lambda: store._unsure.is_settled, 5)
    await asyncio.sleep(0.1)
    assert await in_use(store, claims[0]) == [0, 0, 0, 0, 0]


async def test_each_caller_waits_for_its_own_deadline_only(redis_backend: RedisBackend, server: Server) -> None:
    """An attempt that comes while a stalled exchange is under way fails in time as well."""
    store = redis_backend.store(60, timeout_seconds=TIMEOUT)
    await store.usage([])
    attempts = []
    with server.stalled():
        for number in range(10):
            attempts.append(asyncio.ensure_future(failure_seconds(store.acquire(ask(f"s{number}")))))
            await asyncio.sleep(TIMEOUT / 5)
        took = await asyncio.gather(*attempts)
    assert max(took) < TIMEOUT + 0.1


async def test_connecting_to_a_stalled_server_fails_in_time(redis_backend: RedisBackend, server: Server) -> None:
    """The kernel accepts, and nobody answers the greeting."""
    store = redis_backend.store(timeout_seconds=TIMEOUT)
    with server.stalled():
        for number in range(2):
            assert await failure_seconds(store.acquire(ask(f"s{number}"))) < TIMEOUT + 0.1
    assert isinstance(await store.acquire(ask("new")), Admitted)
    await until(lambda: store._unsure.is_settled)
    assert await in_use(store, ask("new")) == [1, 1, 1]


async def test_releases_during_a_stall_are_made_up_for(redis_backend: RedisBackend, server: Server) -> None:
    store = redis_backend.store(60, timeout_seconds=TIMEOUT)
    claims = [ask(f"s{number}") for number in range(20)]
    for claim in claims:
        await store.acquire(claim)
    with server.stalled():
        for claim in claims:
            store.release(held(claim))
        await until(lambda: not store._unsure.is_settled)
    await until(lambda: server.client.dbsize() == 0, 1)


async def test_a_renewal_that_is_not_answered_fails_in_time(redis_backend: RedisBackend, server: Server) -> None:
    """And decisions do not wait for it: they have a connection of their own."""
    store = redis_backend.store(60, timeout_seconds=TIMEOUT, slow_timeout_seconds=2 * TIMEOUT)
    claim = ask("s1")
    await store.acquire(claim)
    await renew(store, [held(claim)])
    with server.stalled():
        renewal = asyncio.ensure_future(failure_seconds(renew(store, [held(claim)])))
        assert await failure_seconds(store.acquire(ask("s2"))) < TIMEOUT + 0.1
        assert not renewal.done()
        assert await renewal < 2 * TIMEOUT + 0.15
    assert (await renew(store, [held(claim)])).lost == frozenset()


async def test_an_answer_behind_the_deadline_is_a_failure_and_is_released(
    redis_backend: RedisBackend, server: Server
) -> None:
    """B10."""
    with Proxy(server.socket) as proxy:
        store = redis_backend.store(60, url=proxy.url, timeout_seconds=TIMEOUT)
        await store.usage([])
        proxy.delay(1.5 * TIMEOUT, "reply")
        took = await failure_seconds(store.acquire(ask("s1", ALL_AT)))
        assert took < TIMEOUT + 0.1
        proxy.pass_all()
        for number in (7, 8, 9):  # and what comes late is nobody else's answer
            verdict = await store.peek(ask("x", {"user": number}, own={"user": number}))
            assert isinstance(verdict, Full)
            assert verdict.in_use == number
        await until(lambda: server.client.dbsize() == 0 and store._unsure.is_settled, 3)
        await store.aclose()


@pytest.mark.parametrize("url", ["unix:///nonexistent/socket", "redis://127.0.0.1:1"])
async def test_a_refused_connection_is_a_failure_at_once(redis_backend: RedisBackend, url: str) -> None:
    store = redis_backend.store(url=url, timeout_seconds=TIMEOUT)
    await failure_seconds(store.usage([]))
    assert await failure_seconds(store.acquire(ask("s1"))) < 0.05


async def test_a_name_that_cannot_be_sent_harms_only_its_caller(store: RedisStore) -> None:
    """A lone surrogate, as JSON may hold it: other callers of the same tick must get their answers."""
    bad, good = await asyncio.gather(
        store.acquire(ask("s1", user="\ud83d")), store.acquire(ask("s2")), return_exceptions=True
    )
    assert isinstance(good, Admitted)
    assert isinstance(bad, StoreUnavailable | ValueError)


# --- links that are cut --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("operation", ["acquire", "release", "renew", "swap", "adopt"])
async def test_a_link_cut_anywhere_leaves_no_slot_and_no_eternal_key(
    redis_backend: RedisBackend, server: Server, operation: str, direction: Direction, every: bool
) -> None:
    """B04: behind the n-th byte of the call or of its answer, for many n; in the long runs for every one."""
    lease = 1.0
    size, step = (390, 27) if direction == "request" else (24, 3)
    cut_counts = range(0, size, 1 if every else step)
    claims = {count: ask(f"s{count}", {"user": 5}, user=f"u{count}") for count in cut_counts}
    all_slots = {demand.key for claim in claims.values() for demand in claim.demands}
    with Proxy(server.socket) as proxy:
        store, direct = redis_backend.store(lease, url=proxy.url), redis_backend.store(lease)
        await every_operation(direct)
        server.client.flushall()
        for count, claim in claims.items():
            old = claim._replace(stream=f"old{count}")
            if operation not in ("acquire", "adopt"):
                await direct.acquire(old if operation == "swap" else claim)
            for _ in range(2):  # the first may find its connection cut by the last round
                await settle(store.usage([]))
                await settle(renew(store, [held(ask("x"))]))
            proxy.cut_after(count, direction)
            match operation:
                case "acquire":
                    await settle(store.acquire(claim))
                case "swap":
                    await settle(store.swap(claim, old.stream))
                case "renew":
                    await settle(renew(store, [held(claim)]))
                case "adopt":
                    await settle(store.adopt(claim.node, [(held(claim), 1)]))
                case _:
                    store.release(held(claim))
                    await settle(store.usage([]))
            proxy.pass_all()
            assert_every_key_expires(server)
        assert proxy.counts["cuts"] >= len(cut_counts) / 3  # the highest counts are behind the shorter messages
        deadline = time.monotonic() + lease + 1
        while any(await direct.usage(sorted(all_slots))):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        await until(lambda: store._unsure.is_settled)
        assert_every_key_expires(server)
        await store.aclose()


async def settle(call: Awaitable[object]) -> None:
    """Wait for a call whose answer may be lost."""
    with suppress(StoreUnavailable):
        await call


# --- connections ---------------------------------------------------------------------------------------------------


async def test_a_crowd_shares_two_connections(store: RedisStore, server: Server) -> None:
    """B38."""
    before = len(server.client.client_list())
    claims = [ask(f"s{number}", ALL_AT) for number in range(500)]
    verdicts = await asyncio.gather(*(store.acquire(claim) for claim in claims))
    await renew(store, [held(claim) for claim in claims])
    assert sum(isinstance(verdict, Admitted) for verdict in verdicts) == 5
    assert len(server.client.client_list()) == before + 2


async def test_closing_sends_the_last_releases_and_ends_every_connection(
    redis_backend: RedisBackend, server: Server
) -> None:
    before = len(server.client.client_list())
    tasks = asyncio.all_tasks()
    store = redis_backend.store()
    store.listen("n1", lambda order: None)
    claims = [ask(f"s{number}", ALL_AT) for number in range(5)]
    for claim in claims:
        await store.acquire(claim)
    for claim in claims:
        store.release(held(claim))
    await store.aclose()
    assert server.client.dbsize() == 0
    await until(lambda: len(server.client.client_list()) == before)
    assert asyncio.all_tasks() == tasks


async def test_closing_beside_a_stalled_server_ends_in_time(redis_backend: RedisBackend, server: Server) -> None:
    store = redis_backend.store(timeout_seconds=TIMEOUT, slow_timeout_seconds=TIMEOUT)
    tasks = asyncio.all_tasks()
    claim = ask("s1")
    await store.acquire(claim)
    with server.stalled():
        store.release(held(claim))
        waiting = asyncio.ensure_future(store.acquire(ask("s2")))
        await asyncio.sleep(0)
        started = time.monotonic()
        await store.aclose()
        assert time.monotonic() - started < 4 * TIMEOUT
        await asyncio.wait([waiting])
    await until(lambda: asyncio.all_tasks() <= tasks)


# --- orders --------------------------------------------------------------------------------------------------------


async def listening(server: Server, *nodes: str) -> None:
    """Wait until exactly these nodes listen, to orders and to confirmations."""
    expected = {keys.orders(node): 1 for node in nodes}
    await until(lambda: dict(server.client.pubsub_numsub(*expected)) == expected)
    await until(lambda: server.client.pubsub_numpat() == len(nodes))


async def test_an_unread_order_is_read_on_the_slow_path_once(redis_backend: RedisBackend, server: Server) -> None:
    asking, owning = redis_backend.store(), redis_backend.store()
    received: list[Order] = []
    owning.listen("n2", received.append)
    await listening(server, "n2")
    orders = [Order(f"n1-{number}", "n2", f"s{number}", "evicted") for number in range(3)]
    for order in orders[:2]:
        assert not await asking.order(order, 0.01)
    assert await owning.orders() == orders[:2]
    assert await owning.orders() == []
    await asking.order(orders[2], 0.01)
    assert await owning.orders() == orders[2:]
    assert received == orders


async def test_orders_reach_only_the_node_they_are_for(redis_backend: RedisBackend, server: Server) -> None:
    asking, owning, other = (redis_backend.store() for _ in range(3))
    received: list[Order] = []
    owning.listen("n2", lambda order: None)
    other.listen("n22", received.append)
    await listening(server, "n2", "n22")
    await asking.order(Order("n1-1", "n2", "s1", "evicted"), 0.05)
    assert received == []
    assert await other.orders() == []


async def test_a_listener_comes_back_after_its_connection_was_cut(redis_backend: RedisBackend, server: Server) -> None:
    asking, owning = redis_backend.store(), redis_backend.store()
    asking.listen("n1", lambda order: None)
    owning.listen("n2", owning.confirm)
    await listening(server, "n1", "n2")
    assert await asking.order(Order("n1-1", "n2", "s1", "evicted"), 5)
    assert server.client.client_kill_filter(_type="pubsub") == 2
    deadline = time.monotonic() + 5
    while not await asking.order(Order("n1-2", "n2", "s1", "evicted"), 0.1):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_an_order_that_cannot_be_read_is_passed_over(
    redis_backend: RedisBackend, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    asking, owning = redis_backend.store(), redis_backend.store()
    received: list[Order] = []
    owning.listen("n2", received.append)
    await listening(server, "n2")
    for data in ("no json", '{"id": "1"}', '{"later": 1}', "[]", "7"):
        server.client.publish(keys.orders("n2"), data)
        server.client.xadd(keys.orders("n2"), {"order": data})
    order = Order("n1-1", "n2", "s1", "evicted")
    await asking.order(order, 0.05)
    assert await owning.orders() == [order]
    await until(lambda: received == [order])
    assert "passed over" in caplog.text


async def test_a_callback_that_fails_does_not_deafen_the_node(redis_backend: RedisBackend, server: Server) -> None:
    asking, owning = redis_backend.store(), redis_backend.store()
    received: list[Order] = []

    def carry_out(order: Order) -> None:
        received.append(order)
        raise RuntimeError("a fault of the owner")

    owning.listen("n2", carry_out)
    await listening(server, "n2")
    await asking.order(Order("n1-1", "n2", "s1", "evicted"), 0.01)
    await until(lambda: len(received) == 1)
    await listening(server, "n2")
    await asking.order(Order("n1-2", "n2", "s2", "evicted"), 0.01)
    await until(lambda: len(received) == 2, 2)
