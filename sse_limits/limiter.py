"""The composition root, and the one door that every edge calls: who is it, may it stream, and here is the slot back.

`build_limiter()` makes the parts from the settings; the node calls it at the first scope and never at import, since
servers fork. A decision is one store call (an evicting one three). While the store is away the circuit is open: the
tier's outage policy decides then, from what this node itself holds (`slots/outage.py`), and what it admits is adopted
by the store when that is back (`streams/renewal.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
import socket
from collections import Counter
from collections.abc import Collection, Hashable, Mapping

from .claims import Claims
from .conf import Conf, get_conf
from .core.decisions import NODE_BYTES, Decision, DecisionMint, explain, node_name
from .core.identity import Identity
from .core.known_full import KnownFull, Refusal
from .core.limits import Limits, Outage, Policy, StreamClass
from .core.rejections import LIMIT_REASONS, Answer, Reason, Reject, answer
from .core.revocations import RevocationKind, Revocations
from .core.slots import NO_LIMIT, Admitted, Claim, Full, Held, Victim
from .explaining import decision_key, explain_decision
from .live.journal import Journal
from .policy import Facts
from .sessions import SessionUsers
from .slots.availability import Availability
from .slots.base import OnOrder, Order, SlotStore, StoreUnavailable
from .slots.batches import Batch, Batches
from .slots.calls import held_by
from .slots.memory import epoch_ms
from .slots.outage import LocalTable, count_down
from .stores import build_board, build_sink, build_store, get_board, store_url

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

log = logging.getLogger("sse_limits.limiter")

ACK_SECONDS = 0.25
MARKER_CHARS = 8
TOLD = 1


class Lease:
    """The slots of one open stream, since when (epoch ms). `held` changes when the lease is lost and won again.

    `deadline` (store ms) is what the store has acknowledged for this lease itself; renewals acknowledge its whole
    `batch`. 0: the store was away, and has never heard of it; `TOLD`: it may have.
    """

    __slots__ = ("batch", "deadline", "held", "identity", "since", "stream_class")

    def __init__(
        self, held: Held, identity: Identity, stream_class: StreamClass, since: int, deadline: int = 0
    ) -> None:
        self.held = held
        self.identity = identity
        self.stream_class = stream_class
        self.since = since
        self.deadline = deadline
        self.batch: Batch | None = None


class Limiter:
    """Decides, counts what this process holds, and gives slots back. Owned by one event loop."""

    def __init__(self, conf: Conf, store: SlotStore) -> None:
        self.conf = conf
        self.store = store
        self.node = node_name(os.urandom(NODE_BYTES))
        self.node_id = f"{conf.node_name or socket.gethostname()}:{os.getpid()}:{self.node}"
        self._lease_ms = round(conf.lease_seconds * 1000)
        self.local = LocalTable(self._lease_ms)
        self.claims = Claims(conf, self.node, self.local.own)
        self.availability = Availability(store, self.local)
        self.circuit = self.availability.circuit
        self.known_full = KnownFull()
        self.sessions = SessionUsers(conf.session_cache_seconds)
        self.journal = Journal()
        self.leases: dict[str, Lease] = {}
        self.batches = Batches()
        self.addresses: Counter[str] = Counter()
        self._orders = itertools.count(1)
        self._carry_out: OnOrder | None = None
        self._key = decision_key()
        self._decisions = DecisionMint(self._key, self.node)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.claims.policy

    @property
    def revocations(self) -> Revocations:
        """What no longer counts although it was signed."""
        return self.claims.revocations

    def learn(self, facts: Facts) -> None:
        """Take in what is new: from here on every decision follows it. Counts stay as they are."""
        if facts.policy is not None and self.conf.policy is None:
            self.claims.learn(facts.policy)
            self.known_full.clear()
        fresh = self.revocations.add(facts.revoked, epoch_ms())
        if fresh:
            self.known_full.clear()
        self.sessions.forget(
            users={row.subject for row in fresh if row.kind is RevocationKind.USER},
            sids={row.subject for row in fresh if row.kind is RevocationKind.SESSION},
        )

    def listen(self, carry_out: OnOrder) -> None:
        """Have orders to this node carried out, those of other nodes and our own. Called once, on the event loop."""

        def on_order(order: Order) -> None:
            self.known_full.clear()
            carry_out(order)

        self._carry_out = on_order
        self.store.listen(self.node, on_order)

    def verdict(self, identity: Identity) -> Reason | None:
        """Why an open stream of this identity must end; None while it may go on. Without I/O."""
        return self.claims.verdict(identity)

    def limits_of(self, identity: Identity) -> Limits | None:
        """What holds for an identity; None when it may not stream."""
        return self.claims.limits_of(identity)

    def tenant_of(self, identity: Identity | None) -> str | None:
        """In whose name a client comes, whether or not it may stream; None where nobody is known."""
        return self.claims.tenant_of(identity)

    # -- deciding ------------------------------------------------------------------------------------------------

    def known(self, identity: Identity, stream_class: StreamClass) -> Refusal | None:
        """How an identity is refused that has just been refused several times; None: it has to be decided."""
        return self.known_full.find(asker(identity, stream_class), epoch_ms()) if len(self.known_full) else None

    async def admit(self, identity: Identity, stream_class: StreamClass) -> Lease | Reject:
        """Take the slots for a stream, or say why not. The lease must be given back with `release`."""
        claim = self._claim(identity, stream_class)
        if isinstance(claim, Reject):
            return claim
        who = asker(identity, stream_class)
        found = None if self.circuit.is_open else await self._take(claim, identity, stream_class, who)
        if found is None:
            found = self._decide_alone(self.claims.again(claim), identity, stream_class)
        if isinstance(found, Lease):
            limits = self.limits_of(identity)
            self.journal.admitted[limits.tier if limits is not None else ""] += 1
        return found

    async def _take(
        self, claim: Claim, identity: Identity, stream_class: StreamClass, who: Hashable | None
    ) -> Lease | Reject | None:
        """Take the slots from the store; None when it is away."""
        confirmed = None
        deadline = asyncio.get_running_loop().time() + self.conf.store_timeout_seconds
        try:
            found = await self.store.acquire(claim)
            if isinstance(found, Full) and found.victim is not None:
                confirmed = self._order_end(found.victim)
                claim = self.claims.recounted(claim)
                async with asyncio.timeout_at(deadline):
                    found = await self.store.swap(claim, found.victim.stream)
        except (StoreUnavailable, TimeoutError) as exc:
            self._failed(exc)
            return None
        self.availability.answered()
        if isinstance(found, Full):
            reject = rejected(claim, found)
            if who is not None and not claim.evict:
                self.known_full.note(who, claim.demands[found.position].key, reject, epoch_ms())
            return reject
        lease = self._admitted(claim, found, identity, stream_class)
        if confirmed is not None and found.swapped:
            await self._confirmed(confirmed, lease)
        return lease

    def _admitted(self, claim: Claim, found: Admitted, identity: Identity, stream_class: StreamClass) -> Lease:
        lease = Lease(held_by(claim), identity, stream_class, found.now, found.now + self._lease_ms)
        self._hold(lease)
        if claim.age is not None:
            self.journal.per_user.observe(found.in_use[0])
        return lease

    def _decide_alone(self, claim: Claim, identity: Identity, stream_class: StreamClass) -> Lease | Reject:
        """Decide while the store is away, as the tier wants it. What is admitted, the store adopts when it is back.

        Under an id of its own: an acquire that was not answered is released in the end, this stream must not be.
        """
        now = self.journal.now_ms()
        shared = self.local.shared(claim)
        refused = self._refused_alone(shared, identity, now)
        if isinstance(refused, Reject):
            self.journal.outage["rejected"] += 1
            return refused
        if refused is not None:
            self.local.evicted(claim, now)
            self._end_own(refused)
        lease = Lease(held_by(claim), identity, stream_class, now)
        self._hold(lease)
        if claim.age is not None:
            self.journal.per_user.observe(self.local.own[claim.demands[0].key])
        self.journal.outage["admitted"] += 1
        return lease

    def _refused_alone(self, shared: Claim, identity: Identity, now: int) -> Reject | Victim | None:
        """Why the outage policy refuses a claim with shares, or who gives way for it; None: there is room."""
        limits = self.limits_of(identity)
        if limits is None or limits.outage is Outage.CLOSED:
            return Reject(Reason.STORE)
        if limits.outage is Outage.OPEN:
            return None
        full = self.local.judge(shared, self.leases.values(), now)
        return full.victim or rejected(shared, full) if full is not None else None

    def exempt(self, stream_class: StreamClass) -> Lease:
        """A lease without a slot: the store is not asked, and the node ends its stream like every other."""
        return Lease(Held(self.claims.new_id(), (), None), Identity(), stream_class, self.journal.now_ms())

    async def peek(self, identity: Identity, stream_class: StreamClass) -> Reject | None:
        """Say what `admit` would, and take nothing: for HEAD."""
        claim = self._claim(identity, stream_class)
        if isinstance(claim, Reject):
            return claim
        if not self.circuit.is_open:
            try:
                found = await self.store.peek(claim)
            except StoreUnavailable as exc:
                self._failed(exc)
            else:
                return rejected(claim, found) if isinstance(found, Full) else None
        refused = self._refused_alone(self.local.shared(claim), identity, self.journal.now_ms())
        return refused if isinstance(refused, Reject) else None

    def release(self, lease: Lease) -> None:
        """Give a lease back; at once, never waits, and doing it again changes nothing."""
        if self.leases.pop(lease.held.stream, None) is not None:
            self._disown(lease)
            if lease.deadline:  # else the store has never heard of it
                self.store.release(lease.held)

    async def readmit(self, lease: Lease) -> Reject | None:
        """Send a stream whose lease was lost through the gate again, under a new id; away, it is held on trust."""
        self.release(lease)
        claim = self.claims.make(lease.identity, lease.stream_class)
        if isinstance(claim, Reject):
            return claim
        found = await self._take(claim, lease.identity, lease.stream_class, None)
        if isinstance(found, Reject):
            return found
        if found is None:
            lease.held, lease.deadline = held_by(self.claims.again(claim)), 0
            self._hold(lease)
            return Reject(Reason.STORE)
        lease.held, lease.batch, lease.deadline = found.held, found.batch, found.deadline
        self.leases[lease.held.stream] = lease
        return None

    def is_over_limit(self, lease: Lease, in_use: Mapping[str, int]) -> bool:
        """Whether a scope of this lease, of which so many are in use, holds more than its limit."""
        claim = self.claims.make(lease.identity, lease.stream_class)
        if isinstance(claim, Reject):
            return False
        return any(NO_LIMIT != demand.limit < in_use.get(demand.key, 0) for demand in claim.demands)

    # -- telling -------------------------------------------------------------------------------------------------

    def answer(self, reject: Reject, note: str = "") -> Answer:
        """Mint the decision's id and build what the client is told."""
        decision = self._decisions.mint(reject, self.journal.now_ms(), self.policy.version)
        return answer(reject, decision, self._decisions.count, note)

    def decision(self, text: str) -> Decision | None:
        """Read the id of a decision of this deployment."""
        return explain(text, self._key)

    def held_keys(self) -> Collection[str]:
        """The keys of the slot sets in which this node holds something."""
        return self.local.own.keys()

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
        known = self.known(identity, stream_class)
        return known.reject if known is not None else self.claims.make(identity, stream_class)

    def _order_end(self, victim: Victim) -> asyncio.Future[bool]:
        """Order the victim's end before its place is taken: its node must know why its lease is gone."""
        order = Order(f"{self.node}-{next(self._orders)}", victim.node, victim.stream, Reason.EVICTED)
        confirmed = self.store.order(order, ACK_SECONDS)
        confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
        return confirmed

    def _failed(self, exc: Exception) -> None:
        self.known_full.clear()
        self.availability.failed(exc)

    def _end_own(self, victim: Victim) -> None:
        """Have a stream of this node end for another of its user."""
        order = Order(f"{self.node}-{next(self._orders)}", self.node, victim.stream, Reason.EVICTED)
        if self._carry_out is not None:
            self._carry_out(order)

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
        lease.batch = self.batches.add(lease.held)
        self.local.hold(lease.held)
        self.journal.touched.update(lease.held.keys)
        if lease.identity.address is not None:
            self.addresses[lease.identity.address] += 1

    def _disown(self, lease: Lease) -> None:
        if lease.batch is not None:
            self.batches.discard(lease.batch, lease.held)
        self.local.drop(lease.held)
        self.known_full.freed(lease.held.keys)
        self.journal.touched.update(lease.held.keys)
        if lease.identity.address is not None:
            count_down(self.addresses, lease.identity.address)


def build_limiter() -> Limiter:
    """Make the parts from the settings in force; starts the embedded server where it is needed (blocks briefly)."""
    conf = get_conf()
    return Limiter(conf, build_store(conf))


def rejected(claim: Claim, full: Full) -> Reject:
    """The rejection that a full scope means."""
    demand = claim.demands[full.position]
    return Reject(LIMIT_REASONS[demand.scope], demand.scope, demand.limit, full.in_use)


def asker(identity: Identity, stream_class: StreamClass) -> Hashable:
    """Who asks for what: whoever is equal in this is answered alike."""
    return identity.user, identity.tenant, identity.tier, identity.address, stream_class.name
