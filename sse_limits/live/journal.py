"""What one node remembers in memory until its next write: as cheap as can be, since every connect passes here.

Counters never go down. Counts by tenant and details wait to be taken by the writer; both are bounded, whatever happens.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping

from sse_limits.core.histogram import Histogram
from sse_limits.core.rejections import CAUSES, Layer, Reason
from sse_limits.slots.memory import epoch_ms

from .rows import Cause, DecisionRow

ENFORCE = "enforce"
DETAILS_PER_SECOND = 2.0
DETAILS_BURST = 200
CAUSES_AT_MOST = 5000
PER_USER_BOUNDS = (1, 2, 3, 5, 10, 20, 50, 100)
WRITE_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Journal:
    """The memory of one node. Owned by one event loop; nothing here waits."""

    def __init__(self) -> None:
        self.clock_offset_ms = 0
        self.admitted: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.events_dropped = 0
        self.renewals = 0
        self.leases_lost = 0
        self.leases_adopted = 0
        self.leases_adopted_over = 0
        self.outage: Counter[str] = Counter()
        self.reaped = 0
        self.per_user = Histogram(PER_USER_BOUNDS)
        self.publish_to_write = Histogram(WRITE_BOUNDS)
        self.touched: set[str] = set()
        self._rejections: Counter[tuple[Reason, str | None]] = Counter()
        self._ends: Counter[tuple[Reason, str | None]] = Counter()
        self._rejected: Counter[Reason] = Counter()
        self._ended: Counter[Reason] = Counter()
        self._details: deque[DecisionRow] = deque(maxlen=DETAILS_BURST)
        self._tokens = float(DETAILS_BURST)
        self._refilled_at = time.monotonic()

    def now_ms(self) -> int:
        """The store's time in epoch ms, as far as this process knows it."""
        return epoch_ms() + self.clock_offset_ms

    # -- noting --------------------------------------------------------------------------------------------------

    def reject(self, reason: Reason, tenant: str | None) -> bool:
        """Count a rejection; the result says whether its details are wanted too."""
        self.count(reason, tenant)
        # Whoever floods us with bad tokens leaves half of the bucket to the decisions that people ask about.
        return self._takes_details(DETAILS_BURST // 2 if CAUSES[reason].layer is Layer.IDENTITY else 0)

    def count(self, reason: Reason, tenant: str | None) -> None:
        """Count a rejection whose details are known."""
        self._rejections[reason, tenant] += 1

    def end(self, reason: Reason, tenant: str | None) -> bool:
        """Count a stream that was ended by us; the result says whether its details are wanted too."""
        self._ends[reason, tenant] += 1
        return self._takes_details(0)

    def detail(self, row: DecisionRow) -> None:
        """Keep the details of a decision until they are written; the oldest give way."""
        self._details.append(row)

    def written(self, published_ms: int) -> None:
        """Observe how long the oldest event of a write had been on its way."""
        self.publish_to_write.observe(max(0, self.now_ms() - published_ms) / 1000)

    def _takes_details(self, left_over: int) -> bool:
        if self._tokens < 1 + left_over:
            return False
        self._tokens -= 1
        return True

    # -- taking --------------------------------------------------------------------------------------------------

    def take_counts(self) -> Mapping[tuple[Cause, str | None], int]:
        """The rejections and ends since the last call, by cause and tenant."""
        taken: Counter[tuple[Cause, str | None]] = Counter()
        for fresh, total in ((self._rejections, self._rejected), (self._ends, self._ended)):
            for (reason, tenant), count in fresh.items():
                total[reason] += count
                is_room = len(taken) < CAUSES_AT_MOST
                taken[Cause(CAUSES[reason].layer, reason, ENFORCE), tenant if is_room else None] += count
            fresh.clear()
        return taken

    def take_details(self) -> list[DecisionRow]:
        """The details that wait. Taken once a second, and that, not each rejection, makes room for more."""
        now = time.monotonic()
        self._tokens = min(DETAILS_BURST, self._tokens + (now - self._refilled_at) * DETAILS_PER_SECOND)
        self._refilled_at = now
        taken = list(self._details)
        self._details.clear()
        return taken

    def give_back(self, details: list[DecisionRow]) -> None:
        """Keep details that could not be written, as far as there is room."""
        room = DETAILS_BURST - len(self._details)
        self._details.extendleft(reversed(details[max(0, len(details) - room) :]))

    def counters(self) -> Iterator[tuple[str, float]]:
        """The samples of what has happened here since the node's start."""
        for tier, count in self.admitted.items():
            yield f'sse_admitted_total{{tier="{tier}"}}', count
        for reason, count in self._rejected.items():
            labels = f'layer="{CAUSES[reason].layer}",reason="{reason}",mode="{ENFORCE}"'
            yield f"sse_rejected_total{{{labels}}}", count
        for reason, count in self._ended.items():
            yield f'sse_ended_total{{reason="{reason}"}}', count
        for outcome, count in self.messages.items():
            yield f'ws_messages_total{{outcome="{outcome}"}}', count
        yield 'sse_events_dropped_total{policy="drop_oldest"}', self.events_dropped
        yield "sse_leases_renewed_total", self.renewals
        yield "sse_leases_lost_total", self.leases_lost
        yield "sse_leases_adopted_total", self.leases_adopted
        yield "sse_leases_adopted_over_limit_total", self.leases_adopted_over
        for outcome in ("admitted", "rejected"):
            yield f'sse_outage_decisions_total{{outcome="{outcome}"}}', self.outage[outcome]
        yield "sse_reaped_total", self.reaped
        yield from self.per_user.samples("sse_conns_per_user")
        yield from self.publish_to_write.samples("sse_publish_to_write_seconds")
