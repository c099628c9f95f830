"""Clients of several nodes, which write down what they see: streams that stay, connects that come and go.

Every attempt becomes an `Attempt` of the history checker, with the instants of this machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

from sse_limits.slots import keys
from tests.servers.client import Headers, Stream, bearer, request_bytes
from tests.servers.harness import ServerProcess
from tests.servers.slots import Store, token

from .history import Attempt, History, Outcome, Quiet
from .settings import TENANT, TENANT_LIMIT, USER_LIMIT

PATH = "/events/"
ANSWER_SECONDS = 10  # waited for an answer; how long it may take is for the tests to say
RELEASE_SECONDS = 1.0
LEASE_SECONDS = 3.0
EVENT = re.compile(rb"event: (\w+)\n")

now = time.monotonic


class Opened:
    """An open stream: read all the time, so that its end is seen when it comes."""

    def __init__(self, stream: Stream, attempt: Attempt, node: ServerProcess) -> None:
        self.stream = stream
        self.attempt = attempt
        self.node = node
        self.heard_at = now()
        self.longest_silence = 0.0
        self.said = b""
        self.ended: str | None = None  # why, when it was not the client who ended it
        self._reading = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it."""
        return not self._reading.done()

    async def _read(self) -> None:
        heard_before = self.heard_at
        with suppress(ConnectionError):
            while chunk := await self.stream.chunk():
                self.said = (self.said + chunk)[-2000:]
                heard_before = self.heard_at
                self.longest_silence = max(self.longest_silence, now() - self.heard_at)
                self.heard_at = now()
        self.ended = b" ".join(EVENT.findall(self.said)).decode() or "broken"
        # Its server began to end it before the last word was heard, so that is no proof that it held anything.
        self._left(heard_before)

    def _left(self, at: float) -> None:
        self.attempt.leaving_at = at
        self.attempt.free_by = now() + RELEASE_SECONDS

    async def close(self) -> None:
        """Hang up."""
        if self.is_open:
            self._left(now())
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self.stream.closed()


class Load:
    """Opens streams on several nodes and keeps the history of what came of it."""

    def __init__(
        self, nodes: Sequence[ServerProcess], *, seed: int = 0, mint: Callable[[str, str], str] = token
    ) -> None:
        self.nodes = nodes
        self.history = History({}, grace=LEASE_SECONDS, remembered=0.1)
        self.opened: list[Opened] = []
        self.answers: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._turns = itertools.cycle(nodes)
        self._token = lru_cache(maxsize=100)(mint)
        self._all_leave = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._kept: dict[ServerProcess, Stream] = {}

    # -- single attempts -------------------------------------------------------------------------------------------

    async def connect(
        self, user: str, node: ServerProcess | None = None, tenant: str = TENANT, headers: Headers = ()
    ) -> Opened | None:
        """Try to open a stream on a connection of its own; None if it was not admitted."""
        node = node or next(self._turns)
        attempt = self._attempt(user, tenant)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                stream = await Stream.open(node, self._request(user, tenant, headers))
                await self._answered(attempt, stream)
        except (OSError, EOFError, TimeoutError) as exc:
            attempt.free_by = now() + LEASE_SECONDS
            self.faults.append(f"no answer for {user} after {now() - attempt.sent:.2f} s: {exc!r}")
            return None
        if attempt.outcome is not Outcome.ADMITTED:
            await stream.closed()
            return None
        found = Opened(stream, attempt, node)
        self.opened.append(found)
        return found

    async def fill(self, users: Sequence[str], each: int = USER_LIMIT) -> list[Opened]:
        """Open streams that stay, over all nodes in turn."""
        found = [await self.connect(user) for user in users for _ in range(each)]
        assert all(found), (self.statuses, self.faults)
        return [opened for opened in found if opened is not None]

    async def ask_again(self, user: str) -> None:
        """Try on a connection that is kept alive; for users that are at their limit."""
        node = next(self._turns)
        attempt = self._attempt(user, TENANT)
        kept = self._kept.pop(node, None)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                request = self._request(user, TENANT)
                kept = await (Stream.open(node, request) if kept is None else kept.again(request))
                await self._answered(attempt, kept)
        except (OSError, EOFError, TimeoutError) as exc:
            attempt.free_by = now() + LEASE_SECONDS
            self.faults.append(f"no answer on a kept connection after {now() - attempt.sent:.2f} s: {exc!r}")
            return
        if attempt.outcome is Outcome.ADMITTED:
            self.opened.append(Opened(kept, attempt, node))
        elif node in self._kept:
            await kept.closed()
        else:
            self._kept[node] = kept

    async def problem(self, user: str) -> dict[str, object]:
        """What a user who is at a limit is told."""
        stream = await Stream.open(next(self._turns), self._request(user, TENANT))
        await stream.head()
        found: dict[str, object] = json.loads(await stream.rest())
        await stream.closed()
        return found

    def _attempt(self, user: str, tenant: str) -> Attempt:
        scopes = (keys.user(tenant, user), keys.tenant(tenant), keys.fleet())
        self.history.limits = {**self.history.limits, scopes[0]: USER_LIMIT, scopes[1]: TENANT_LIMIT}
        attempt = Attempt(f"{user}#{next(self._numbers)}", scopes, now())
        self.history.attempts.append(attempt)
        return attempt

    async def _answered(self, attempt: Attempt, stream: Stream) -> None:
        await stream.head()
        attempt.answered = now()
        self.answers.append(attempt.answered - attempt.sent)
        self.statuses[stream.status] += 1
        if stream.status == 200:
            attempt.outcome = Outcome.ADMITTED
            return
        attempt.free_by = now() + LEASE_SECONDS
        problem = json.loads(await stream.rest())
        if problem["reason"].endswith("_limit"):
            attempt.outcome = Outcome.REJECTED
            attempt.full = next(key for key in attempt.scopes if f":{problem['scope']}" in key)
        else:
            self.faults.append(f"{attempt.name}: {stream.status} {problem}")

    def _request(self, user: str, tenant: str, headers: Headers = ()) -> bytes:
        return request_bytes("GET", PATH, [*bearer(self._token(user, tenant)), *headers])

    # -- the load --------------------------------------------------------------------------------------------------

    async def run(self, seconds: float, rate: float = 20.0) -> None:
        """Connect so many times a second: users who compete for their limit, newcomers, and one who is at it.

        Visits may still be under way when it returns.
        """
        begun = now()
        for number in range(round(seconds * rate)):
            await asyncio.sleep(max(0.0, begun + number / rate - now()))
            task = asyncio.create_task(self._visit(number))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.sleep(max(0.0, begun + seconds - now()))

    async def settled(self) -> None:
        """Have everybody who is only visiting leave, and wait until they have."""
        self._all_leave.set()
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._all_leave.clear()

    async def _visit(self, number: int) -> None:
        match number % 4:
            case 0:
                await self.ask_again("full")
            case 1:
                await self._stay(f"new{next(self._numbers)}", 0.3)
            case _:
                await self._stay(f"rival{self._chance.randrange(2)}", self._chance.uniform(0.1, 1.5))

    async def _stay(self, user: str, seconds: float) -> None:
        found = await self.connect(user)
        if found is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_leave.wait()
            await found.close()

    # -- what is so ------------------------------------------------------------------------------------------------

    def expected(self) -> dict[str, int]:
        """What the store should count: the streams that are open here."""
        found: Counter[str] = Counter()
        for each in self.opened:
            if each.is_open:
                found.update(each.attempt.scopes)
        return dict(found)

    def broken(self) -> list[str]:
        """Streams that ended without their client's doing."""
        return [f"{each.attempt.name} on {each.node.address}: {each.ended}" for each in self.opened if each.ended]

    async def until_right(self, store: Store, seconds: float) -> float:
        """Wait until the store counts the open streams, which do not change; return how long that took."""
        began = now()
        while (stored := store.in_use()) != self.expected():
            assert now() - began < seconds, f"after {seconds} s: {differences(stored, self.expected())}"
            await asyncio.sleep(0.01)
        self.history.quiets.append(Quiet(now(), stored, self.expected()))
        return now() - began

    async def aclose(self) -> None:
        """Hang up everywhere."""
        await self.settled()
        await asyncio.gather(*(each.close() for each in self.opened), *(each.closed() for each in self._kept.values()))


def differences(stored: dict[str, int], open_: dict[str, int]) -> str:
    """Where two counts differ, readable."""
    found = [
        f"{key}: stored {stored.get(key, 0)}, open {open_.get(key, 0)}"
        for key in sorted({*stored, *open_})
        if stored.get(key, 0) != open_.get(key, 0)
    ]
    return "; ".join(found)
