"""Leases in batches: whatever comes and goes, each is in one, and few batches change."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.slots import Held
from sse_limits.slots.batches import MEMBERS_PER_BATCH, Batch, Batches


def lease(number: int, keys: int = 3) -> Held:
    return Held(f"s{number}", tuple(f"k{each}" for each in range(keys)), None)


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=900))
def test_every_lease_is_in_one_batch_and_no_batch_is_too_large(steps: list[tuple[int, int]]) -> None:
    """A number that comes again goes."""
    batches, held = Batches(), {}
    for number, keys in steps:
        if number in held:
            batch, found = held.pop(number)
            batches.discard(batch, found)
            batches.discard(batch, found)
        else:
            found = lease(number, keys)
            held[number] = (batches.add(found), found)
    assert sorted(name for batch in batches for name in batch.leases) == sorted(f.stream for _, f in held.values())
    for batch in batches:
        assert 0 < batch.members == sum(len(found.keys) for found in batch.leases.values()) <= MEMBERS_PER_BATCH


def test_a_change_is_seen_by_what_was_prepared() -> None:
    batch = Batch.of([lease(1)])
    for change in (lambda: batch.add(lease(2)), lambda: batch.discard(lease(2))):
        batch.prepared = "packed"
        change()
        assert batch.prepared is None
    batch.prepared = "packed"
    batch.discard(lease(3))
    assert batch.prepared == "packed"


def test_newcomers_take_the_places_of_those_that_went_last() -> None:
    batches = Batches()
    held = [(batches.add(found), found) for found in map(lease, range(10_000))]
    for batch in batches:
        batch.prepared = "packed"
    batch, _ = random.choice(held[:5000])
    for found in list(batch.leases.values())[:20]:
        batches.discard(batch, found)
    assert {batches.add(lease(number)) for number in range(10_000, 10_020)} == {batch}
    assert [each for each in batches if each.prepared is None] == [batch]
