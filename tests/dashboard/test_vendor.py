"""What is vendored is what its README says it is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.servers.harness import ROOT

UPLOT = ROOT / "static/sse_limits/vendor/uplot"
HASHES = dict(
    reversed(pair) for pair in re.findall(r"^ {4}([0-9a-f]{64})  (\S+)$", (UPLOT / "README.md").read_text(), re.M)
)


@pytest.mark.parametrize("path", sorted(UPLOT.glob("*.min.*")), ids=lambda path: path.name)
def test_the_hash_of_a_vendored_file(path: Path) -> None:
    assert hashlib.sha256(path.read_bytes()).hexdigest() == HASHES[path.name]


def test_the_licence_comes_along() -> None:
    assert "MIT" in (UPLOT / "LICENSE").read_text()
    assert "uPlot 1.6.32" in (UPLOT / "README.md").read_text()
