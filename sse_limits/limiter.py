"""The composition root, and the one door that every edge calls: who is it, may it stream, and here is the slot back.

`build_limiter()` makes the parts from the settings; the node calls it at the first scope and never at import, since
servers fork. A decision is one store call (an evicting one three); an unreachable store is `Reject(STORE)`.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import socket
from collections import Counter
from collections.abc import Collection, Iterator
from functools import lru_cache

from .conf import Conf, get_conf
from .core.address_rules import AddressAction
from .core.decisions import NODE_BYTES, Decision, DecisionMint, explain, node_name
from .core.identity import Identity
from .core.limits import Limits, StreamClass
from .core.rejections import LIMIT_REASONS, Answer, Reason, Reject, answer
from .core.revocations import RevocationKind, Revocations
from .core.slots import NO_LIMIT, Claim, Demand, Full, Held, Scope, Victim
from .explaining import decision_key, explain_decision
from .live.journal import Journal
from .policy import Facts, get_policy, resolve_tenant
from .sessions import SessionUsers
from .slots import keys
from .slots.base import Order, SlotStore, StoreUnavailable
from .slots.memory import epoch_ms
from .stores import build_board, build_sink, build_store, get_board, store_url

log = logging.getLogger("sse_limits.limiter")

__all__ = [
    "Lease",
    "Limiter",
    "build_board",
    "build_limiter",
    "build_sink",
    "build_store",
    "explain_decision",
    "get_board",
    "store_url",
]

ACK_SECONDS = 0.25
MARKER_CHARS = 8
SUBJECTS_REMEMBERED = 1024
NEVER_REACHED = (
    ". Set REDIS_URL of SSE_LIMITS (in the demo: the variable SSE_LIMITS_REDIS_URL) to a running Redis >= 6.2 or Valkey"
)


class Lease:
    """The slots of one open stream, since when (epoch ms). `held` changes when the lease is lost and won again."""

    __slots__ = ("held", "identity", "since", "stream_class")

    def __init__(self, held: Held, identity: Identity, stream_class: StreamClass, since: int) -> None:
        self.held = held
        self.identity = identity
        self.stream_class = stream_class
        self.since = since


class Limiter:
    """Decides, counts what this process holds, and gives slots back. Owned by one event loop."""

    def __init__(self, conf: Conf, store: SlotStore) -> None:
        self.conf = conf
        self.store = store
        self.policy = get_policy()
        self.revocations = Revocations()
        self.node = node_name(os.urandom(NODE_BYTES))
        self.node_id = f"{conf.node_name or socket.gethostname()}:{os.getpid()}:{self.node}"
        self.sessions = SessionUsers(conf.session_cache_seconds)
        self.journal = Journal()
        self.leases: dict[str, Lease] = {}
        self.addresses: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._orders = itertools.count(1)
        self._key = decision_key()
        self._decisions = DecisionMint(self._key, self.node)
        self._resolve = lru_cache(maxsize=SUBJECTS_REMEMBERED)(self._resolve_uncached)
        self._reachable: bool | None = None  # nobody has asked yet

    def learn(self, facts: Facts) -> None:
        """Take in what is new: from here on every decision follows it. Counts stay as they are."""
        if facts.policy is not None and self.conf.policy is None:
            self.policy = facts.policy
            self._resolve.cache_clear()
        fresh = self.revocations.add(facts.revoked, epoch_ms())
        self.sessions.forget(
            users={row.subject for row in fresh if row.kind is RevocationKind.USER},
            sids={row.subject for row in fresh if row.kind is RevocationKind.SESSION},
        )

    def verdict(self, identity: Identity) -> Reason | None:
        """Why an open stream of this identity must end; None while it may go on. Without I/O."""
        if identity.expires_at is not None and identity.expires_at <= epoch_ms():
            return Reason.EXPIRED_TOKEN
        refused = self._barred(identity) or self._resolve(identity.user, identity.tenant, identity.tier)
        return refused.reason if isinstance(refused, Reject) and refused.reason is not Reason.STORE else None

    # -- deciding ------------------------------------------------------------------------------------------------

    async def admit(self, identity: Identity, stream_class: StreamClass) -> Lease | Reject:
        """Take the slots for a stream, or say why not. The lease must be given back with `release`."""
        found = await self._take(identity, stream_class)
        if isinstance(found, Lease):
            limits = self.limits_of(identity)
            self.journal.admitted[limits.tier if limits is not None else ""] += 1
        return found

    async def _take(self, identity: Identity, stream_class: StreamClass) -> Lease | Reject:
        claim = self._claim(identity, stream_class)
        if isinstance(claim, Reject):
            return claim
        confirmed = None
        deadline = asyncio.get_running_loop().time() + self.conf.store_timeout_seconds
        try:
            found = await self.store.acquire(claim)
            if isinstance(found, Full) and found.victim is not None:
                confirmed = self._order_end(found.victim)
                claim = self._recounted(claim)
                async with asyncio.timeout_at(deadline):
                    found = await self.store.swap(claim, found.victim.stream)
        except (StoreUnavailable, TimeoutError) as exc:
            return self._unavailable(exc)
        self._answered()
        if isinstance(found, Full):
            return rejected(claim, found)
        held = Held(claim.stream, tuple(d.key for d in claim.demands), claim.age)
        lease = Lease(held, identity, stream_class, found.now)
        self._hold(lease)
        if claim.age is not None:
            self.journal.per_user.observe(found.in_use[0])
        if confirmed is not None and found.swapped:
            await self._confirmed(confirmed, lease)
        return lease

    def exempt(self, stream_class: StreamClass) -> Lease:
        """A lease without a slot: the store is not asked, and the node ends its stream like every other."""
        return Lease(
            Held(f"{self.node}-{next(self._numbers)}", (), None), Identity(), stream_class, self.journal.now_ms()
        )

    def limits_of(self, identity: Identity) -> Limits | None:
        """What holds for an identity; None when it may not stream."""
        limits = self._resolve(identity.user, identity.tenant, identity.tier)
        return limits if isinstance(limits, Limits) else None

    def tenant_of(self, identity: Identity | None) -> str | None:
        """In whose name a client comes, whether or not it may stream; None where nobody is known."""
        if identity is None or identity.user is None or identity.tenant is not None:
            return identity.tenant if identity is not None else None
        limits = self.limits_of(identity)
        return limits.tenant if limits is not None else None

    async def greet(self) -> None:
        """Look for the store before a stream needs it: a wrong address is told at the start."""
        try:
            await self.store.usage([])
        except StoreUnavailable as exc:
            self._unavailable(exc)
        else:
            self._answered()

    async def peek(self, identity: Identity, stream_class: StreamClass) -> Reject | None:
        """Say what `admit` would, and take nothing: for HEAD."""
        claim = self._claim(identity, stream_class)
        if isinstance(claim, Reject):
            return claim
        try:
            found = await self.store.peek(claim)
        except StoreUnavailable as exc:
            return self._unavailable(exc)
        self._answered()
        return rejected(claim, found) if isinstance(found, Full) else None

    def release(self, lease: Lease) -> None:
        """Give a lease back; at once, never waits, and doing it again changes nothing."""
        if self.leases.pop(lease.held.stream, None) is not None:
            self._disown(lease)
            self.store.release(lease.held)

    async def readmit(self, lease: Lease) -> Reject | None:
        """Send a stream whose lease was lost through the gate again, under a new id."""
        self.release(lease)
        found = await self._take(lease.identity, lease.stream_class)
        if isinstance(found, Reject):
            return found
        lease.held = found.held
        self.leases[lease.held.stream] = lease
        return None

    def answer(self, reject: Reject, note: str = "") -> Answer:
        """Mint the decision's id and build what the client is told."""
        decision = self._decisions.mint(reject, self.journal.now_ms(), self.policy.version)
        return answer(reject, decision, self._decisions.count, note)

    def decision(self, text: str) -> Decision | None:
        """Read the id of a decision of this deployment."""
        return explain(text, self._key)

    def held_keys(self) -> Collection[str]:
        """The keys of the slot sets in which this node holds something."""
        return self._own.keys()

    def evicted_marker(self, identity: Identity) -> str:
        """The last event id of an evicted stream: who comes back with it is told not to."""
        mac = hmac.digest(self._key, (identity.subject or "").encode(), "sha256")
        return f"evicted.{mac.hex()[:MARKER_CHARS]}"

    async def aclose(self) -> None:
        """Give back what is still held and close the store."""
        for lease in list(self.leases.values()):
            self.release(lease)
        await self.store.aclose()
        self.sessions.close()

    # -- details -------------------------------------------------------------------------------------------------

    def _claim(self, identity: Identity, stream_class: StreamClass) -> Claim | Reject:
        limits = self._resolve(identity.user, identity.tenant, identity.tier)
        if isinstance(limits, Reject):
            return limits
        barred = self._barred(identity)
        if barred is not None:
            return barred
        demands = tuple(self._demands(identity, limits, stream_class))
        age = keys.age(limits.tenant, identity.user) if identity.user is not None else None
        return Claim(f"{self.node}-{next(self._numbers)}", self.node, demands, age, limits.evicts and age is not None)

    def _demands(self, identity: Identity, limits: Limits, stream_class: StreamClass) -> Iterator[Demand]:
        if identity.user is not None:
            yield self._demand(Scope.USER, keys.user(limits.tenant, identity.user), limits.user)
        if stream_class.limit is not None:
            yield self._demand(Scope.CLASS, keys.stream_class(limits.tenant, stream_class.name), stream_class.limit)
        if limits.tenant is not None:
            yield self._demand(Scope.TENANT, keys.tenant(limits.tenant), limits.tenant_total)
        address_limit = self._address_limit(identity, limits)
        if address_limit is not None and identity.address is not None:
            yield self._demand(Scope.ADDRESS, keys.address(identity.address), address_limit)
        yield self._demand(Scope.FLEET, keys.fleet(), self.policy.fleet_limit)

    def _barred(self, identity: Identity) -> Reject | None:
        """Whether an identity may hold nothing at all, whatever its limits."""
        if self.revocations.covers(identity):
            return Reject(Reason.REVOKED)
        rule = self.policy.address_rules.find(identity.address)
        if rule is not None and rule.action is AddressAction.BLOCK:
            return Reject(Reason.BLOCKED, Scope.ADDRESS)
        return None

    def _address_limit(self, identity: Identity, limits: Limits) -> int | None:
        rule = self.policy.address_rules.find(identity.address)
        return limits.address if rule is None else rule.limit

    def _demand(self, scope: Scope, key: str, limit: int | None) -> Demand:
        return Demand(scope, key, NO_LIMIT if limit is None else limit, self._own.get(key, 0))

    def _resolve_uncached(self, user: str | None, tenant: str | None, tier: str | None) -> Limits | Reject:
        if user is not None and tenant is None:
            try:
                tenant = resolve_tenant(user, self.policy, self.conf)
            except (
                Exception
            ):  # the project's own code: never a 500 for a connect, and never a stream without its limits
                log.exception("TENANT_RESOLVER failed for a user: rejected with 503")
                return Reject(Reason.STORE)
        return self.policy.resolve(Identity(user=user, tenant=tenant, tier=tier))

    def _recounted(self, claim: Claim) -> Claim:
        """The claim with what this node holds now: the victim may have been ours, and have ended meanwhile."""
        return claim._replace(demands=tuple(d._replace(own=self._own.get(d.key, 0)) for d in claim.demands))

    def _order_end(self, victim: Victim) -> asyncio.Future[bool]:
        """Order the victim's end before its place is taken: its node must know why its lease is gone."""
        order = Order(f"{self.node}-{next(self._orders)}", victim.node, victim.stream, Reason.EVICTED)
        confirmed = self.store.order(order, ACK_SECONDS)
        confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
        return confirmed

    async def _confirmed(self, confirmed: asyncio.Future[bool], lease: Lease) -> None:
        """Give the victim's node a moment to end it; without its word the newcomer goes on."""
        try:
            await confirmed
        except StoreUnavailable as exc:
            log.debug("an eviction was not confirmed: %s", exc)
        except asyncio.CancelledError:
            self.release(lease)
            raise

    def _hold(self, lease: Lease) -> None:
        self.leases[lease.held.stream] = lease
        self.journal.touched.update(lease.held.keys)
        for key in lease.held.keys:
            self._own[key] += 1
        if lease.identity.address is not None:
            self.addresses[lease.identity.address] += 1

    def _disown(self, lease: Lease) -> None:
        self.journal.touched.update(lease.held.keys)
        for key in lease.held.keys:
            count_down(self._own, key)
        if lease.identity.address is not None:
            count_down(self.addresses, lease.identity.address)

    def _unavailable(self, exc: Exception) -> Reject:
        if self._reachable is not False:
            cause = str(exc) or f"no answer within {self.conf.store_timeout_seconds:g} s"
            hint = "" if self._reachable else NEVER_REACHED
            self._reachable = False
            log.warning(
                "the slot store does not answer (%s): streams are rejected with 503 until it does%s", cause, hint
            )
        return Reject(Reason.STORE)

    def _answered(self) -> None:
        if not self._reachable:
            if self._reachable is False:
                log.warning("the slot store answers again")
            self._reachable = True


def count_down(counts: Counter[str], key: str) -> None:
    """Take one away; what is at zero takes no room."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def build_limiter() -> Limiter:
    """Make the parts from the settings in force; starts the embedded server where it is needed (blocks briefly)."""
    conf = get_conf()
    return Limiter(conf, build_store(conf))


def rejected(claim: Claim, full: Full) -> Reject:
    """The rejection that a full scope means."""
    demand = claim.demands[full.position]
    return Reject(LIMIT_REASONS[demand.scope], demand.scope, demand.limit, full.in_use)
