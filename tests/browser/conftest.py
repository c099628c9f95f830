"""Debian's Chromium, driven by Playwright, and the demo site behind it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from sse_limits.slots.embedded import find_server
from tests.servers.harness import ROOT, ServerProcess
from tests.servers.slots import Store

# The last ones keep Chromium from calling its maker, which a machine without a network refuses many times a second.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium a module, no longer: while Playwright's loop runs in this thread, no other can."""
    chromium = shutil.which("chromium")
    if chromium is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium, and CI is set")
        pytest.skip("not run: no chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def store() -> Iterator[Store]:
    binary = find_server()
    assert binary is not None, "the embedded extra brings one"
    found = Store("valkey", str(binary))
    yield found
    found.end()


@pytest.fixture(scope="session")
def demo_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the demo's tiers, tenants and users; each test takes a copy."""
    found = tmp_path_factory.mktemp("demo") / "db.sqlite3"
    env = {**os.environ, "DATABASE_PATH": str(found), "DEBUG": "1", "DJANGO_SETTINGS_MODULE": "project.settings"}
    for command in ("migrate", "demo_data"):
        subprocess.run([sys.executable, "manage.py", command], cwd=ROOT, env=env, check=True, capture_output=True)
    return found


@pytest.fixture
def demo_env() -> dict[str, str]:
    """What a module's demo site has set beside the usual."""
    return {}


@pytest.fixture
def demo(store: Store, tmp_path: Path, demo_database: Path, demo_env: dict[str, str]) -> Iterator[ServerProcess]:
    """The demo site, on a store that the test publishes to."""
    database = shutil.copy(demo_database, tmp_path / "db.sqlite3")
    env = {"SSE_LIMITS_REDIS_URL": store.url, "DATABASE_PATH": str(database), "DEBUG": "1"}
    env |= {"DJANGO_SETTINGS_MODULE": "project.settings", **demo_env}
    server = ServerProcess("uvicorn", env, app="project.asgi:application")
    server.wait_until_ready()
    yield server
    server.stop()


@pytest.fixture
def page(browser: Browser, demo: ServerProcess) -> Iterator[Page]:
    """A page of the site's own origin, without any script of ours."""
    context = browser.new_context(base_url=demo.url)
    found = context.new_page()
    found.goto("/healthz")
    yield found
    context.close()
