"""This process as a node: its streams, what runs beside them, and the orders from other nodes.

One node per event loop, made at the first scope, so that forks and reloads get their own. Everything that runs beside
the requests (heartbeat, goodbyes) is a task of the node, ended by `aclose`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Callable, Coroutine
from resource import RLIMIT_NOFILE, getrlimit
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from django.core.signals import setting_changed

from sse_limits.conf import SETTING
from sse_limits.core.identity import Identity
from sse_limits.core.limits import StreamClass
from sse_limits.core.rejections import CAUSES, Answer, Reason, Reject
from sse_limits.limiter import Lease, Limiter, build_limiter, build_sink
from sse_limits.live.rows import NodeRow, StreamRow
from sse_limits.live.writer import LagMeter, Writer
from sse_limits.policy import Facts, watch
from sse_limits.slots.base import Order
from sse_limits.slots.memory import epoch_ms

from . import cors
from .descriptors import lowest_free_descriptor
from .feeds import build_feed
from .hub import Hub
from .identification import Identifier, Request, Scope, Session
from .reaping import Reaping
from .recheck import Recheck
from .renewal import Renewal
from .reporting import About, NodeSource, load_of
from .running import RunningStream
from .server_options import tell_missing
from .servers import on_termination

log = logging.getLogger("sse_limits.streams.node")

TICK_SECONDS = 0.5
DRAIN_POLL_SECONDS = 0.02
DESCRIPTOR_SHARE = 0.7


class Node:
    """The streams of this process and event loop. Not thread-safe."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.identifier = Identifier(limiter.conf, limiter.sessions, epoch_ms)
        self.readers = cors.readers(limiter.conf)
        self.hub = Hub(build_feed(limiter.conf), limiter.journal.now_ms, self._patience_seconds)
        self._streams: dict[str, RunningStream] = {}
        self._exempt: dict[str, RunningStream] = {}  # they hold no slot, so nobody counts or renews them
        self._tasks: set[asyncio.Task[None]] = set()
        self._recheck = Recheck(self)
        self._renewal = Renewal(self)
        self._forget_policy: Callable[[], None] | None = None
        self._is_short = False
        self._lag = LagMeter()
        self._source = NodeSource(limiter, self._streams, self._lag)
        sink = build_sink(limiter.conf, limiter.store)
        self._writer = Writer(self._source, limiter.journal, sink, limiter.conf.heartbeat_seconds)
        self._reaping = Reaping(limiter, sink, sink.remains) if sink.remains is not None else None

    def _patience_seconds(self) -> float:
        """How long a client may wait for the store beside its decision: not at all while that is away."""
        return 0.0 if self.limiter.circuit.is_open else self.limiter.conf.store_timeout_seconds

    @property
    def is_draining(self) -> bool:
        """Whether this process goes, and takes no newcomers."""
        return self._source.is_draining

    def start(self) -> None:
        """Follow the policy, listen for orders and begin to renew; called once, on the event loop. Blocks briefly."""
        loop = asyncio.get_running_loop()
        known, self._forget_policy = watch.subscribe(lambda facts: _tell(loop, self.limiter, facts))
        self.limiter.learn(known)
        self.limiter.listen(self.carry_out)
        works = [
            self._renewal.run,
            self._renewal.look_for_the_store,
            self._renewal.still.run,
            self._watch,
            self._recheck.run,
            self.hub.run,
            self._writer.run,
            self._lag.run,
        ]
        works += [self._reaping.run] if self._reaping is not None else []
        for work in works:
            self.spawn(self._keep_running(work))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the requests, in a context of its own."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_running(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await work()
            except Exception:  # whatever it was, leases must be renewed and events delivered
                log.exception("%s failed and is started again", work.__qualname__)
            await asyncio.sleep(TICK_SECONDS)

    def streams(self) -> list[RunningStream]:
        """The admitted streams."""
        return list(self._streams.values())

    def row(self) -> NodeRow:
        """The node's row as it is now."""
        self._source.loads()
        return self._source.row()

    def rows(self) -> list[StreamRow]:
        """The rows of the admitted streams; from any thread."""
        found = (self._source.describe(id, load_of(stream)) for id, stream in self._streams.copy().items())
        return [row for row in found if row is not None]

    def find(self, name: str) -> RunningStream | None:
        """The admitted stream with this id; from any thread."""
        return self._streams.get(name)

    def add(self, stream: RunningStream) -> None:
        """Note an admitted stream."""
        if stream.lease is not None:
            self._kept(stream.lease)[stream.lease.held.stream] = stream

    def remove(self, stream: RunningStream) -> None:
        """Forget a stream; doing it again changes nothing."""
        if stream.lease is not None:
            self._kept(stream.lease).pop(stream.lease.held.stream, None)

    def _kept(self, lease: Lease) -> dict[str, RunningStream]:
        return self._streams if lease.held.keys else self._exempt

    def _all(self) -> list[RunningStream]:
        return [*self._streams.values(), *self._exempt.values()]

    def answer_known(
        self, who: Identity | Session, scope: Scope, request: Request, stream_class: StreamClass
    ) -> Answer | None:
        """The answer to a client that retries without a pause; None where it has to be decided."""
        if self.is_draining or stream_class.exempt or request.last_event_id is not None or isinstance(who, Session):
            return None  # nothing but its limit may be the answer
        known = self.limiter.known(who, stream_class)
        if known is None:
            return None
        suits_all = request.origin is None and not self._is_short
        found = known.again() if suits_all else None
        if found is not None:
            self.limiter.journal.count(known.reject.reason, self.limiter.tenant_of(who))
            return found
        found = self.answer(known.reject, scope, request, who, stream_class.name)
        if suits_all:
            known.keep(found)
        return found

    def answer(
        self,
        reject: Reject,
        scope: Scope,
        request: Request | None,
        identity: Identity | None = None,
        stream_class: str = "",
    ) -> Answer:
        """What to tell a refused client: CORS headers included, and the connection's end if descriptors are short.

        Here every rejection is counted that is decided; those that repeat one, `answer_known` counts.
        """
        found = self.limiter.answer(reject)
        log.debug("rejected: %s", reject.reason)
        if self.limiter.journal.reject(reject.reason, self.limiter.tenant_of(identity)):
            self._detail(reject, found, About(scope, request, identity, stream_class))
        found.headers.extend(self.readers.headers(request.origin if request is not None else None))
        if self._is_short and scope.get("http_version") == "1.1":
            found.headers.append((b"connection", b"close"))
        return found

    def farewell(self, stream: RunningStream, reason: Reason, note: str = "") -> Answer:
        """What to tell the client of a stream that we end; here every end is counted."""
        found = self.limiter.answer(Reject(reason), note)
        is_wanted = self.limiter.journal.end(reason, self.limiter.tenant_of(stream.identity))
        if is_wanted and reason is not Reason.SHUTDOWN:  # one event, however many streams it ends
            stream_class = stream.lease.stream_class.name if stream.lease is not None else ""
            about = About(stream.scope, stream.request, stream.identity, stream_class, note)
            self._detail(Reject(reason), found, about)
        return found

    async def write(self) -> None:
        """Write to the board now what is written once a second anyway. Raises `StoreUnavailable`."""
        await self._writer.write()

    def _detail(self, reject: Reject, found: Answer, about: About) -> None:
        row = self._source.detail(reject, found, about, self._address(about))
        if row is not None:
            self.limiter.journal.detail(row)

    def _address(self, about: About) -> str | None:
        """Where a client came from; of those who were not recognised, nobody has asked before."""
        if about.identity is not None:
            return about.identity.address
        return self.identifier.address(about.scope, about.request) if about.request is not None else None

    async def aclose(self) -> None:
        """Give every slot back and end what runs beside the requests."""
        if self._forget_policy is not None:
            self._forget_policy()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.hub.aclose()
        await self.limiter.aclose()
        await self._writer.aclose()  # last: what it counts then is free

    def say_goodbye(self) -> None:
        """Begin to tell every client that this process goes."""
        self._source.is_draining = True
        for stream in self._all():
            stream.end(Reason.SHUTDOWN)

    async def drain(self, seconds: float) -> None:
        """Tell every client that this process goes, and wait for them to be told, for some seconds at most."""
        self.say_goodbye()
        deadline = asyncio.get_running_loop().time() + seconds
        while self._all() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - many ends, not one event
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def _watch(self) -> None:
        """Twice a second: idle outlets get a keepalive, writes that are blocked past the deadline end their stream."""
        conf = self.limiter.conf
        every = min(TICK_SECONDS, conf.keepalive_seconds / 2, conf.write_deadline_seconds / 2)
        while True:
            await asyncio.sleep(every)
            now = asyncio.get_running_loop().time()
            for stream in self._all():
                since = stream.writing_since
                if since is not None:
                    if now - since >= conf.write_deadline_seconds:
                        stream.abort(Reason.WRITE_DEADLINE)
                elif stream.outlet is not None:
                    stream.outlet.keep_alive(now - conf.keepalive_seconds)
            # Rejected clients lose their connections once 70 % of the descriptors are in use.
            self._is_short = lowest_free_descriptor() >= DESCRIPTOR_SHARE * getrlimit(RLIMIT_NOFILE)[0]

    # -- orders --------------------------------------------------------------------------------------------------

    def carry_out(self, order: Order) -> None:
        """End the stream that an order names, once, however often the order comes."""
        stream = self._streams.get(order.stream)
        if stream is None:  # it has ended by itself, or was ended when the order came the faster way
            self.limiter.store.confirm(order)
        elif order.reason in CAUSES:
            if order.reason == Reason.REVOKED:
                log.info("stream %s is revoked", order.stream)
            stream.end(Reason(order.reason), order)
        else:
            log.warning("an order of a later version is passed over: %r", order.reason)


def _tell(loop: asyncio.AbstractEventLoop, limiter: Limiter, facts: Facts) -> None:
    """Called in the thread that reads the policy."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(limiter.learn, facts)


_nodes: WeakKeyDictionary[asyncio.AbstractEventLoop, Node] = WeakKeyDictionary()
_latest: tuple[ReferenceType[asyncio.AbstractEventLoop], Node] | None = None  # nearly always the only one
_inherited: list[tuple[asyncio.AbstractEventLoop, Node]] = []


def get_node(send: Any = None) -> Node:
    """The node of the running event loop; made and started at the first call.

    `send` is the server's, by which the options that it lacks are told then.
    """
    global _latest
    loop = asyncio.get_running_loop()
    if _latest is not None and _latest[0]() is loop:
        return _latest[1]
    node = _nodes.get(loop)
    if node is None:
        node = _nodes[loop] = Node(build_limiter())
        node.start()
        on_termination(_drain_all)
        tell_missing(send)
        log.debug("node %s", node.limiter.node_id)
    _latest = ref(loop), node
    return node


def nodes_here() -> list[tuple[asyncio.AbstractEventLoop, Node]]:
    """Every node of this process with its event loop; from any thread."""
    loops = [loop for ref in _nodes.keyrefs() if (loop := ref()) is not None and not loop.is_closed()]
    return [(loop, node) for loop in loops if (node := _nodes.get(loop)) is not None]


def _drain_all() -> None:
    """Called in a signal handler.

    The goodbyes begin with the very next callback of the loop: those of the server's own shutdown come after it.
    """
    for loop, node in list(_nodes.items()):
        if not loop.is_closed():
            loop.call_soon_threadsafe(node.say_goodbye)


async def drain_node(seconds: float) -> None:
    """Say goodbye to the clients of the running event loop's node, if there is one."""
    node = _nodes.get(asyncio.get_running_loop())
    if node is not None:
        await node.drain(seconds)


async def close_node() -> None:
    """End the node of the running event loop, if there is one."""
    global _latest
    _latest = None
    node = _nodes.pop(asyncio.get_running_loop(), None)
    if node is not None:
        await node.aclose()


def _forget(*, setting: str, **_: object) -> None:
    global _latest
    if setting == SETTING:
        _latest = None
        _nodes.clear()


setting_changed.connect(_forget, dispatch_uid="sse_limits.node")


def _begin_anew() -> None:
    """Called in a forked child, which makes nodes of its own: two with one node's ids would mix their slots up.

    The parent's are kept: their end would close connections, and so unregister them in the selector that both share.
    """
    global _nodes, _latest
    _inherited.extend(_nodes.items())
    _nodes, _latest = WeakKeyDictionary(), None


os.register_at_fork(after_in_child=_begin_anew)
