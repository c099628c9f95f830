"""Histograms in the form that Prometheus reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sse_limits.core.histogram import Histogram


def test_buckets_include_the_smaller_ones() -> None:
    found = Histogram((1, 2.5))
    for value in (0.5, 1, 2, 99):
        found.observe(value)
    assert list(found.samples("x")) == [
        ('x_bucket{le="1"}', 2),
        ('x_bucket{le="2.5"}', 3),
        ('x_bucket{le="+Inf"}', 4),
        ("x_sum", 102.5),
        ("x_count", 4),
    ]


@given(st.lists(st.floats(-1e6, 1e6)), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9, unique=True).map(sorted))
def test_every_observation_is_in_the_buckets_that_it_fits(values: list[float], bounds: list[float]) -> None:
    found = Histogram(bounds)
    for value in values:
        found.observe(value)
    counts = [count for name, count in found.samples("x") if "le=" in name]
    assert counts == [*(sum(value <= bound for value in values) for bound in bounds), len(values)]
