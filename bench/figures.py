"""What a benchmark reports: figures with a target, their rounds, and one table of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

HEADER = ("figure", "target", "measured (min-max)", "baseline in the same run", "verdict")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure: the median of its rounds is compared with `at_most` (None: shown, not judged)."""

    name: str
    unit: str
    samples: Sequence[float]
    at_most: float | None = None
    baseline: str = ""
    digits: int = 1

    @property
    def median(self) -> float:
        """The figure itself."""
        return median(self.samples)

    @property
    def is_met(self) -> bool:
        """Whether the target is met."""
        return self.at_most is None or self.median <= self.at_most

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        target = "" if self.at_most is None else f"<= {self.at_most:g} {self.unit}".rstrip()
        verdict = "" if self.at_most is None else ("OK" if self.is_met else "MISS")
        low, high = min(self.samples), max(self.samples)
        measured = f"{self._text(self.median)} {self.unit}".rstrip()
        if len(self.samples) > 1:
            measured += f" ({self._text(low)}-{self._text(high)})"
        return (self.name, target, measured, self.baseline, verdict)

    def _text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


def table(figures: Iterable[Figure]) -> str:
    """Every figure in one table."""
    rows = [HEADER, *(figure.row() for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
