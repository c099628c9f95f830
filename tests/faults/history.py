"""Whether what clients saw can be the work of exact limits: a checker over the admissions and ends of all processes.

Pure: no clock, no I/O. All instants are of one monotonic clock, that of the clients' machine. A client knows intervals
only: an admission has happened between its request and its answer, an end not before it was begun. So two counts are
kept for each scope. Who *definitely* holds has been answered, and has not begun to leave; who *possibly* holds may have
been given a slot (the request is out) that need not be back yet. Too many definite holders are a violation of the
limit, a rejection while too few possible ones were there is a false one. What faults allow is told by windows.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

NEVER = math.inf
NAMES_SHOWN = 8


class Outcome(StrEnum):
    """What a client was told."""

    ADMITTED = "admitted"
    REJECTED = "rejected"
    UNANSWERED = "unanswered"  # or 503: whether a slot was taken nobody knows


@dataclass(slots=True)
class Attempt:
    """One attempt to open a stream, and its whole life.

    `scopes` are all in which an admission takes a slot; `full` is the one that a rejection named. `leaving_at` is when
    its end was begun by whichever side, `free_by` when its slot must be free at the latest.
    """

    name: str
    scopes: tuple[str, ...]
    sent: float
    answered: float = NEVER
    outcome: Outcome = Outcome.UNANSWERED
    full: str | None = None
    leaving_at: float = NEVER
    free_by: float = NEVER


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which a fault is felt. Without `scopes` it is every scope's.

    From its begin on `overshoot` more may hold than the limit says: they are kept when the fault is over. Within the
    window more may come in, and rejections may be false.
    """

    name: str
    begin: float
    end: float
    overshoot: int = 0
    scopes: frozenset[str] | None = None

    def concerns(self, scope: str) -> bool:
        """Whether the scope is one of those that the fault reaches."""
        return self.scopes is None or scope in self.scopes

    def touches(self, begin: float, end: float) -> bool:
        """Whether it and an interval have an instant in common."""
        return begin <= self.end and self.begin <= end


@dataclass(frozen=True, slots=True)
class Quiet:
    """A moment at which nothing is under way: what the store counts, and the streams that are open."""

    at: float
    stored: Mapping[str, int]
    open: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Violation:
    """What no exact limiter can have done."""

    rule: str
    scope: str
    at: float
    text: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = ", ".join(self.names[:NAMES_SHOWN]) + (", …" if len(self.names) > NAMES_SHOWN else "")
        return f"{self.at:9.3f} s  {self.rule}  {self.scope}: {self.text}" + (f" ({shown})" if shown else "")


class Steps:
    """How many intervals cover an instant, as a step function of time."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        changes: dict[float, int] = defaultdict(int)
        for begin, end in intervals:
            if begin < end:  # half-open: who leaves in the same instant is not counted
                changes[begin] += 1
                changes[end] -= 1
        self._times = sorted(changes)
        self._counts: list[int] = []
        count = 0
        for at in self._times:
            count += changes[at]
            self._counts.append(count)

    def __iter__(self) -> Iterator[tuple[float, int]]:
        return iter(zip(self._times, self._counts, strict=True))

    def at(self, instant: float) -> int:
        """The count at an instant."""
        place = bisect.bisect_right(self._times, instant)
        return self._counts[place - 1] if place else 0

    def within(self, begin: float, end: float) -> list[int]:
        """Every count that the interval meets, its two ends included."""
        first, last = bisect.bisect_right(self._times, begin), bisect.bisect_right(self._times, end)
        return [self.at(begin), *self._counts[first:last]]


@dataclass(slots=True)
class History:
    """What all clients saw, and what was done to the store meanwhile.

    `grace` is for how long after the end of a window false rejections are still its fault (a lease: slots of unanswered
    attempts), `remembered` for how long a node may go on rejecting from memory.
    """

    limits: Mapping[str, int]
    attempts: list[Attempt] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    quiets: list[Quiet] = field(default_factory=list)
    grace: float = 0.0
    remembered: float = 0.0

    def violations(self) -> list[Violation]:
        """Everything that is wrong, in the order of time."""
        by_scope: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            for scope in attempt.scopes:
                by_scope[scope].append(attempt)
        found = [each for scope in by_scope for each in self._of_scope(scope, by_scope[scope])]
        found += [each for quiet in self.quiets for each in miscounted(quiet)]
        return sorted(found, key=lambda each: each.at)

    def highest(self, scope: str) -> int:
        """The most that definitely held a scope at one time."""
        held = Steps((each.answered, each.leaving_at) for each in self.attempts if is_holder(each, scope))
        return max((count for _, count in held), default=0)

    def report(self) -> str:
        """The violations, one a line; empty if there are none."""
        return "\n".join(map(str, self.violations()))

    def _of_scope(self, scope: str, attempts: Sequence[Attempt]) -> Iterator[Violation]:
        limit = self.limits.get(scope)
        if limit is not None:
            windows = [window for window in self.windows if window.concerns(scope)]
            yield from self._too_many(scope, limit, attempts, windows)
            yield from self._admitted_above(scope, limit, attempts, windows)
            yield from self._falsely_rejected(scope, limit, attempts, windows)

    def _too_many(
        self, scope: str, limit: int, attempts: Sequence[Attempt], windows: Sequence[Window]
    ) -> Iterator[Violation]:
        """(a) More definite holders than the limit and the overshoot of the faults so far."""
        holders = [each for each in attempts if each.outcome is Outcome.ADMITTED]
        worst = 0
        for at, count in Steps((each.answered, each.leaving_at) for each in holders):
            allowed = limit + max((window.overshoot for window in windows if window.begin <= at), default=0)
            if count > max(allowed, worst):  # each new height is told once
                worst = count
                names = tuple(each.name for each in holders if each.answered <= at < each.leaving_at)
                text = f"{count} hold it, {allowed} may" + (f" (limit {limit})" if allowed != limit else "")
                yield Violation("too many", scope, at, text, names)

    def _admitted_above(
        self, scope: str, limit: int, attempts: Sequence[Attempt], windows: Sequence[Window]
    ) -> Iterator[Violation]:
        """(a) An admission outside the windows while the scope was definitely full all the time."""
        held = Steps((each.answered, each.leaving_at) for each in attempts if each.outcome is Outcome.ADMITTED)
        for each in attempts:
            if each.outcome is not Outcome.ADMITTED or any(w.touches(each.sent, each.answered) for w in windows):
                continue
            # Its own answer counts from the end of the interval on, so that end is left out.
            least = min(held.within(each.sent, math.nextafter(each.answered, -math.inf)))
            if least >= limit:
                text = f"admitted while {least} held it all the time, limit {limit}"
                yield Violation("admitted above the limit", scope, each.answered, text, (each.name,))

    def _falsely_rejected(
        self, scope: str, limit: int, attempts: Sequence[Attempt], windows: Sequence[Window]
    ) -> Iterator[Violation]:
        """(b) A rejection while fewer than the limit can have held the scope."""
        rejected = [each for each in attempts if each.outcome is Outcome.REJECTED and each.full == scope]
        others = [each for each in attempts if each.outcome is not Outcome.REJECTED]
        possible = Steps((each.sent, each.free_by + self.remembered) for each in others)
        for each in rejected:
            if any(window.touches(each.sent - self.grace, each.answered) for window in windows):
                continue
            most = max(possible.within(each.sent, each.answered))
            if most < limit:
                text = f"rejected while at most {most} can have held it, limit {limit}"
                yield Violation("false rejection", scope, each.answered, text, (each.name,))


def is_holder(attempt: Attempt, scope: str) -> bool:
    """Whether the attempt has ever definitely held the scope."""
    return attempt.outcome is Outcome.ADMITTED and scope in attempt.scopes


def miscounted(quiet: Quiet) -> Iterator[Violation]:
    """(c) Where the store's counts are not the open streams."""
    for scope in sorted({*quiet.stored, *quiet.open}):
        stored, open_ = quiet.stored.get(scope, 0), quiet.open.get(scope, 0)
        if stored != open_:
            yield Violation("miscounted", scope, quiet.at, f"the store counts {stored}, {open_} are open")
