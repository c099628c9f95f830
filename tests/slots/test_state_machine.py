"""Holds the Lua scripts to the pure model: the same calls on both must give the same answers and the same state.

Redis uses its own clock, so each call is made there first, and the model gets the `now` that the script returned.
Leases are long: nothing ends by itself, only by the rules that move a deadline, or the damper's times, into the past.
"""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from sse_limits.core.slots import NO_LIMIT, Admitted, Claim, Demand, Full, Held, Scope, SlotModel
from sse_limits.slots import keys
from sse_limits.slots.redis import RedisStore

from .backends import PAST, RedisBackend, held, renew
from .servers import Server

LEASE_SECONDS = 3600
LONG_AGO_MS = 40_000

limits = st.sampled_from([NO_LIMIT, 0, 1, 1, 2, 2, 3])
own = st.sampled_from([0, 0, 0, 0, 1, 2, 3])


@st.composite
def demand(draw: st.DrawFn, scope: Scope, key: str) -> Demand:
    return Demand(scope, key, draw(limits), draw(own))


@st.composite
def wishes(draw: st.DrawFn) -> tuple[str, tuple[Demand, ...], str | None, bool]:
    """Node, demands, age and eviction of a claim: few names, so that they meet each other."""
    tenant = draw(st.sampled_from(["t1", "t1", "t2"]))
    user = draw(st.sampled_from(["u1", "u1", "u2", None]))
    scopes = [] if user is None else [(Scope.USER, keys.user(tenant, user))]
    if draw(st.booleans()):
        scopes.append((Scope.CLASS, keys.stream_class(tenant, draw(st.sampled_from(["clock", "chat"])))))
    scopes.append((Scope.TENANT, keys.tenant(tenant)))
    if draw(st.booleans()):
        scopes.append((Scope.ADDRESS, keys.address(draw(st.sampled_from(["192.0.2.1", "2001:db8::"])))))
    scopes.append((Scope.FLEET, keys.fleet()))
    demands = tuple(draw(demand(scope, key)) for scope, key in scopes)
    node = draw(st.sampled_from(["web:1:aaaaaaaa", "web:2:bbbbbbbb"]))
    return node, demands, keys.age(tenant, user) if user else None, draw(st.booleans())


class SlotMachine(RuleBasedStateMachine):
    """One store and one model, driven in step."""

    leases: Bundle[Held] = Bundle("leases")

    def __init__(self, server: Server, runner: asyncio.Runner) -> None:
        super().__init__()
        self.server = server
        self.run = runner.run
        self.backend = RedisBackend(server)
        self.model = SlotModel(LEASE_SECONDS * 1000)
        self.streams = 0
        self.now = 0
        self.store: RedisStore

    @initialize()
    def start(self) -> None:
        self.server.client.flushall()

        async def make() -> RedisStore:
            return self.backend.store(LEASE_SECONDS)

        self.store = self.run(make())

    def teardown(self) -> None:
        self.run(self.backend.aclose())

    def claim(self, wish: tuple[str, tuple[Demand, ...], str | None, bool]) -> Claim:
        self.streams += 1
        node, demands, age, evict = wish
        return Claim(f"s{self.streams}", node, demands, age, evict)

    def agree(self, call: Any, *args: Any) -> Any:
        """Make a call on Redis, repeat it on the model with Redis's time, and compare the answers in full."""
        found = self.run(getattr(self.store, call)(*args))
        self.now = max(self.now, found.now)
        assert getattr(self.model, call)(*args, found.now) == found
        return found

    @rule(target=leases, wish=wishes())
    def acquire(self, wish: tuple[str, tuple[Demand, ...], str | None, bool]) -> Any:
        claim = self.claim(wish)
        return held(claim) if isinstance(self.agree("acquire", claim), Admitted) else multiple()

    @rule(target=leases, wish=wishes())
    def acquire_or_swap(self, wish: tuple[str, tuple[Demand, ...], str | None, bool]) -> Any:
        """What the limiter does: take the place of the victim that was offered."""
        claim = self.claim(wish)._replace(evict=True)
        found = self.agree("acquire", claim)
        if isinstance(found, Full) and found.victim is not None:
            found = self.agree("swap", claim, found.victim.stream)
            assert isinstance(found, Admitted)
            assert found.swapped
        return held(claim) if isinstance(found, Admitted) else multiple()

    @rule(target=leases, wish=wishes(), victim=leases)
    def swap_with_any(self, wish: tuple[str, tuple[Demand, ...], str | None, bool], victim: Held) -> Any:
        """The victim may be gone, expired, or a stream of somebody else."""
        claim = self.claim(wish)
        if claim.age is None:
            return multiple()
        return held(claim) if isinstance(self.agree("swap", claim, victim.stream), Admitted) else multiple()

    @rule(wish=wishes())
    def peek(self, wish: tuple[str, tuple[Demand, ...], str | None, bool]) -> None:
        self.agree("peek", self.claim(wish))

    @rule(leases=st.lists(leases, max_size=6, unique=True))
    def renew(self, leases: list[Held]) -> None:
        if leases:
            found = self.run(renew(self.store, leases))
            self.now = max(self.now, found.now)
            assert self.model.renew(leases, found.now) == found

    @rule(leases=st.lists(leases, min_size=1, max_size=6, unique=True), since=st.integers(1, 10))
    def adopt(self, leases: list[Held], since: int) -> None:
        """Streams that the store knows, and others: as after a flush, or when it was away."""
        self.agree("adopt", "web:1:aaaaaaaa", [(lease, since) for lease in leases])

    @rule(lease=leases)
    def release(self, lease: Held) -> None:
        """The lease stays in the bundle: it may be released, renewed or evicted again."""
        self._release(lease)

    @rule(lease=consumes(leases))
    def release_for_good(self, lease: Held) -> None:
        self._release(lease)

    def _release(self, lease: Held) -> None:
        async def release() -> None:
            self.store.release(lease)
            await self.store._decisions.idle()

        self.run(release())
        self.model.release(lease)

    @rule(lease=leases, everywhere=st.booleans(), choice=st.integers(0, 4))
    def expire(self, lease: Held, everywhere: bool, choice: int) -> None:
        """Let a lease end in all its scopes, or in one."""
        for key in lease.keys if everywhere else [lease.keys[choice % len(lease.keys)]]:
            if lease.stream in self.model.members.get(key, {}):
                self.server.client.zadd(key, {lease.stream: PAST}, xx=True)
                self.model.members[key][lease.stream] = PAST

    @rule(wish=wishes())
    def let_the_damper_pass(self, wish: tuple[str, tuple[Demand, ...], str | None, bool]) -> None:
        age = self.model.ages.get(wish[2] or "")
        if age is not None and age.damper is not None:
            self.backend.pass_damper(wish[2] or "", LONG_AGO_MS)
            age.damper.until = max(0, age.damper.until - LONG_AGO_MS)
            age.damper.times = tuple(at - LONG_AGO_MS for at in age.damper.times)

    @rule(key=st.sampled_from([keys.age("t1", "u1"), keys.age("t1", "u2")]))
    def let_a_users_streams_be_of_one_age(self, key: str) -> None:
        """As when they came within one millisecond: the name decides which of them is the oldest."""
        acquired = self.model.ages[key].acquired if key in self.model.ages else {}
        for stream, (_, node) in acquired.items():
            acquired[stream] = (self.now, node)
            self.server.client.hset(key, stream, f"{self.now}|{node}|0")

    @rule(key=st.sampled_from([keys.user("t1", "u1"), keys.tenant("t1"), keys.fleet(), keys.age("t1", "u1")]))
    def lose_a_key(self, key: str) -> None:
        """As a server that evicts keys does."""
        self.server.client.delete(key)
        self.model.members.pop(key, None)
        self.model.ages.pop(key, None)

    @rule()
    def flush(self) -> None:
        self.server.client.flushall()
        self.model.members.clear()
        self.model.ages.clear()

    @invariant()
    def states_are_equal(self) -> None:
        """Expired members are purged when a script comes by, so the living are compared, and no key is eternal."""
        members: dict[str, dict[str, int]] = {}
        ages: dict[str, dict[str, str]] = {}
        for key, (content, expires_at) in self.server.dump().items():
            assert expires_at > 0
            if ":age:" in key:
                ages[key] = content
            else:
                members[key] = content
        assert self.living(members) == self.living(self.model.members)
        dampers = {key: fields["*"] for key, fields in ages.items() if "*" in fields}
        assert dampers == {
            key: "|".join(map(str, (age.damper.until, *age.damper.times)))
            for key, age in self.model.ages.items()
            if age.damper
        }
        acquired = {
            key: {stream: f"{at}|{node}|0" for stream, (at, node) in age.acquired.items()}
            for key, age in self.model.ages.items()
            if age.acquired
        }
        assert self.without_dampers(ages) == acquired

    @staticmethod
    def without_dampers(ages: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        streams = {key: {name: at for name, at in fields.items() if name != "*"} for key, fields in ages.items()}
        return {key: fields for key, fields in streams.items() if fields}

    def living(self, members: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        alive = {key: {name: int(at) for name, at in found.items() if at > self.now} for key, found in members.items()}
        return {key: found for key, found in alive.items() if found}

    @invariant()
    def usage_counts_the_living(self) -> None:
        names = sorted({*self.model.members, keys.fleet(), keys.tenant("t3")})
        assert self.run(self.store.usage(names)) == [self.model.count(name, self.now) for name in names]


@pytest.fixture
def runner() -> Any:
    with asyncio.Runner() as found:
        yield found


@pytest.mark.redis
@pytest.mark.parametrize(("kind", "examples"), [("valkey", 60), ("redis7", 15)])
def test_the_scripts_do_what_the_model_does(
    request: pytest.FixtureRequest, runner: asyncio.Runner, kind: str, examples: int
) -> None:
    server = request.getfixturevalue(kind)
    run_state_machine_as_test(
        lambda: SlotMachine(server, runner),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
