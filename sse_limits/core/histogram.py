"""A histogram as Prometheus reads it: how many observations were at most so large, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class Histogram:
    """Counts observations by upper bounds. Not thread-safe; nothing is ever taken back."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, name: str) -> Iterator[tuple[str, float]]:
        """The samples of the text format, in its order: buckets that include the smaller ones, sum, count."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if bound == float("inf") else format(bound, "g")}"}}', total
        yield f"{name}_sum", self._sum
        yield f"{name}_count", total
