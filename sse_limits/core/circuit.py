"""A circuit breaker: while the slot store is away it is not asked, except by a probe now and then.

Closed, every decision asks the store. The first call that fails opens the circuit: from then on decisions are taken
without the store, and only a probe (half open) asks it, at growing intervals. What brings it back closes the circuit.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PROBE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 0.5


@dataclass(slots=True)
class Circuit:
    """One node's circuit. `since_ms` is when it opened (epoch ms), None while it is closed."""

    since_ms: int | None = None
    pause_seconds: float = FIRST_PROBE_SECONDS
    """How long to wait before the next probe."""

    @property
    def is_open(self) -> bool:
        """Whether the store is to be left alone."""
        return self.since_ms is not None

    def fail(self, now_ms: int) -> bool:
        """Note that the store failed; whether that opened the circuit."""
        if self.since_ms is not None:
            return False
        self.since_ms = now_ms
        self.pause_seconds = FIRST_PROBE_SECONDS
        return True

    def probe_failed(self) -> None:
        """Note that the store did not answer to a probe: the next one waits longer."""
        self.pause_seconds = min(2 * self.pause_seconds, LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """The store is asked again."""
        self.since_ms = None
