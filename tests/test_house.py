"""Import rules that import-linter cannot express: those about the standard library and about parts of Django.

The one-way layers are in `pyproject.toml`; `make lint` holds them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "sse_limits"

# What would give the pure core a clock, an event loop, a thread, a socket or a file.
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "sched", "signal", "subprocess", "threading", "time"),
    *("http.client", "http.server", "select", "selectors", "socket", "socketserver", "ssl", "urllib.request"),
    *("io", "logging", "os", "pathlib", "tempfile"),
}


def modules(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """Yield each name that a module imports, as absolute dotted names (`from a import b` yields `a` and `a.b`)."""
    here = path.relative_to(PACKAGE.parent).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else [])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name: str, *parents: str) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def is_pure(name: str) -> bool:
    if within(name, "sse_limits"):
        return within(name, "sse_limits.core")
    return name.partition(".")[0] in sys.stdlib_module_names and not within(name, *IMPURE)


@pytest.mark.parametrize("path", modules("core"), ids=lambda path: path.stem)
def test_core_has_no_clock_no_io_and_no_third_party(path: Path) -> None:
    assert [name for name in imported(path) if not is_pure(name)] == []


@pytest.mark.parametrize("path", modules("streams"), ids=lambda path: path.stem)
def test_streams_never_touch_the_orm(path: Path) -> None:
    orm = ("django.db", "django.contrib.auth.models", "channels.db", "sse_limits.models")
    assert [name for name in imported(path) if within(name, *orm)] == []
