"""Who has just been refused and need not be looked up again: a client that retries without a pause costs no store call.

From the third rejection of one identity within a second the answer is remembered for a tenth of a second. It is
forgotten at once when this node gives a slot of the full set back, when the policy changes, or when an order comes; a
slot that another node gives back is seen a tenth of a second later at most.

It is one decision, so it may be answered alike: the first answers that were made of it are kept, and then repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from .rejections import Answer, Reject

REJECTIONS = 3
WITHIN_MS = 1000
REMEMBERED_MS = 100
IDENTITIES_AT_MOST = 10_000
ANSWERS = 10
"""So many answers are made of what is known before they are repeated: their waiting times are spread over as many."""


@dataclass(slots=True)
class Refusal:
    """The latest rejection of an identity: for which slot set, when, and until when it is known."""

    key: str
    times: tuple[int, ...]
    reject: Reject
    until: int = 0
    _answers: deque[Answer] = field(default_factory=lambda: deque(maxlen=ANSWERS))

    def again(self) -> Answer | None:
        """An answer that was given before, in turn; None: make another one, and keep it."""
        if len(self._answers) < ANSWERS:
            return None
        self._answers.rotate(1)
        return self._answers[0]

    def keep(self, answer: Answer) -> None:
        """Keep an answer that suits every client which is equal in what was decided."""
        self._answers.append(answer)


@dataclass(slots=True)
class KnownFull:
    """The latest rejections by identity. Bounded: the one refused longest ago gives way. Time is an argument, in ms."""

    _entries: dict[Hashable, Refusal] = field(default_factory=dict)
    _by_key: dict[str, set[Hashable]] = field(default_factory=dict)

    def find(self, identity: Hashable, now: int) -> Refusal | None:
        """What the store would say, as far as it is known."""
        entry = self._entries.get(identity)
        return entry if entry is not None and now < entry.until else None

    def note(self, identity: Hashable, key: str, reject: Reject, now: int) -> None:
        """Note that the store has refused `identity`, since the slot set `key` is full."""
        entry = self._entries.pop(identity, None)
        times = [at for at in entry.times if at > now - WITHIN_MS] if entry is not None and entry.key == key else []
        if entry is not None:
            self._unlink(identity, entry)
        times = [*times, now][-REJECTIONS:]
        until = now + REMEMBERED_MS if len(times) == REJECTIONS else 0
        self._entries[identity] = Refusal(key, tuple(times), reject, until)
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

    def _unlink(self, identity: Hashable, entry: Refusal) -> None:
        found = self._by_key[entry.key]
        found.discard(identity)
        if not found:
            del self._by_key[entry.key]

    def __len__(self) -> int:
        return len(self._entries)
