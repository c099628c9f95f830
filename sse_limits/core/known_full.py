"""Who has just been refused and need not be looked up again: a client that retries without a pause costs no store call.

From the third rejection of one identity within a second the answer is remembered for a tenth of a second. It is
forgotten at once when this node gives a slot of the full set back, when the policy changes, or when an order comes; a
slot that another node gives back is seen a tenth of a second later at most.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from .rejections import Reject

REJECTIONS = 3
WITHIN_MS = 1000
REMEMBERED_MS = 100
IDENTITIES_AT_MOST = 10_000


@dataclass(slots=True)
class _Entry:
    key: str
    times: tuple[int, ...]
    reject: Reject
    until: int = 0


@dataclass(slots=True)
class KnownFull:
    """The latest rejections by identity. Bounded: the one refused longest ago gives way. Time is an argument, in ms."""

    _entries: dict[Hashable, _Entry] = field(default_factory=dict)
    _by_key: dict[str, set[Hashable]] = field(default_factory=dict)

    def find(self, identity: Hashable, now: int) -> Reject | None:
        """What the store would say, as far as it is known."""
        entry = self._entries.get(identity)
        return entry.reject if entry is not None and now < entry.until else None

    def note(self, identity: Hashable, key: str, reject: Reject, now: int) -> None:
        """Note that the store has refused `identity`, since the slot set `key` is full."""
        entry = self._entries.pop(identity, None)
        times = [at for at in entry.times if at > now - WITHIN_MS] if entry is not None and entry.key == key else []
        if entry is not None:
            self._unlink(identity, entry)
        times = [*times, now][-REJECTIONS:]
        until = now + REMEMBERED_MS if len(times) == REJECTIONS else 0
        self._entries[identity] = _Entry(key, tuple(times), reject, until)
        self._by_key.setdefault(key, set()).add(identity)
        if len(self._entries) > IDENTITIES_AT_MOST:
            self._drop(next(iter(self._entries)))

    def freed(self, keys: Iterable[str]) -> None:
        """Forget who was refused for one of these slot sets."""
        if self._by_key:
            for key in keys:
                for identity in tuple(self._by_key.get(key, ())):
                    self._drop(identity)

    def clear(self) -> None:
        """Forget everybody."""
        self._entries.clear()
        self._by_key.clear()

    def _drop(self, identity: Hashable) -> None:
        self._unlink(identity, self._entries.pop(identity))

    def _unlink(self, identity: Hashable, entry: _Entry) -> None:
        found = self._by_key[entry.key]
        found.discard(identity)
        if not found:
            del self._by_key[entry.key]

    def __len__(self) -> int:
        return len(self._entries)
