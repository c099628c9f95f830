"""The documentation says what the code does: tables are compared with the code, links and commands must exist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from sse_limits.api import urls as api_urls
from sse_limits.conf import Conf
from sse_limits.core.rejections import CAUSES
from sse_limits.live.exposition import METRICS

ROOT = Path(__file__).resolve().parents[1]
SOURCES_OF_CHECKS = (
    "checks.py",
    "conf.py",
    "policy/from_settings.py",
    "slots/availability.py",
    "streams/server_options.py",
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def rows(page: str, first_cell: str) -> list[list[str]]:
    """The rows of the table whose head begins with `first_cell`, cells without their ticks."""
    lines = (ROOT / page).read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return found


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {key: default for key, default, *_ in rows("docs/configuration.md", "key")}
    defaults = {
        item.name.upper(): repr(item.default if item.default is not dataclasses.MISSING else {})
        for item in dataclasses.fields(Conf)
    }
    assert documented == defaults


def test_the_table_of_reasons_is_the_code() -> None:
    documented = [tuple(row) for row in rows("docs/rejections.md", "reason")]

    def returns(wait: tuple[int, int] | None) -> str:
        return "no" if wait is None else f"after {wait[0]}–{wait[0] + wait[1] - 1} s"

    expected = [
        (reason.value, str(int(cause.status)), cause.error, str(cause.close_code), returns(cause.retry_seconds))
        for reason, cause in CAUSES.items()
    ]
    assert sorted(documented) == sorted(expected)


def test_every_check_is_documented() -> None:
    sources = "".join((ROOT / "sse_limits" / name).read_text() for name in SOURCES_OF_CHECKS)
    used = set(re.findall(r'["(](?:sse_limits\.)?([EW]\d{3})[")]', sources))
    assert {row[0].removeprefix("sse_limits.") for row in rows("docs/checks.md", "id")} == used


def test_every_metric_is_documented_with_its_type() -> None:
    documented = {name: kind for name, kind, _ in rows("docs/operating.md", "metric")}
    assert documented == {name: kind for name, (kind, _) in METRICS.items()}


def test_every_path_of_the_api_is_documented() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    paths = {re.sub(r"<\w+:\w+>", "<id>", str(found.pattern)) for found in api_urls.urlpatterns}
    assert [path for path in paths if f"/api/{path}" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_and_commands_that_a_page_names_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = {path.stem for path in ROOT.glob("*/management/commands/*.py")}
    commands |= {"check", "migrate", "makemigrations", "runserver", "startproject"}
    text = page.read_text()
    assert [name for name in re.findall(r"`(?:[A-Z]+=\S+ )?make ([a-z-]+)", text) if f"\n{name}:" not in makefile] == []
    assert [name for name in re.findall(r"manage\.py ([a-z_]+)", text) if name not in commands] == []


def test_every_module_stands_in_the_map_of_the_house() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "sse_limits"
    modules = {
        path.name
        for folder in (package, *(package / room for room in ("core", "slots", "live", "policy", "streams")))
        for path in folder.glob("*.py")
    }
    assert sorted(name for name in modules - {"__init__.py"} if name not in page) == []
