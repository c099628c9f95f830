"""The limits' forms in Chromium, under `default-src 'self'`: "In force" follows what one types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.servers.harness import ROOT, ServerProcess

SETUP = """
from sse_limits.models import Tenant, UserLimit
acme = Tenant.objects.get(slug="acme")
Tenant.objects.filter(pk=acme.pk).update(tenant_limit=240, user_limit=6)
UserLimit.objects.create(tenant=acme, user="ci-runner", user_limit=100)
"""
LIST = "/admin/sse_limits/tenant/"
PAGES = {
    "tenant-form": f"{LIST}?q=acme",
    "tenant-list": LIST,
    "tier-form": "/admin/sse_limits/tier/?q=anonymous",
    "tier-list": "/admin/sse_limits/tier/",
    "user-limit-form": "/admin/sse_limits/userlimit/?q=ci-runner",
    "revocation-form": "/admin/sse_limits/revocation/add/",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The demo's admin on a database of its own, with the demo's data."""
    path = tmp_path_factory.mktemp("site") / "db.sqlite3"
    env = {"DATABASE_PATH": str(path), "DEBUG": "1", "DJANGO_SETTINGS_MODULE": "project.settings"}
    for command in (["migrate", "-v0"], ["demo_data"], ["shell", "-v0", "-c", SETUP]):
        subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env={**os.environ, **env}, check=True)
    env |= {"SSE_LIMITS_STORE": "memory", "XDG_RUNTIME_DIR": str(path.parent)}  # nobody else's slots in memory are near
    server = ServerProcess("uvicorn", env, app="tests.browser.site:application")
    server.wait_until_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, site: ServerProcess) -> Any:
    """The cookies of the demo's administrator."""
    page = browser.new_context(base_url=site.url).new_page()
    page.goto("/admin/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", "demo")
    page.click("[type=submit]")
    page.wait_for_url("**/admin/")
    state = page.context.storage_state()
    page.context.close()
    return state


def strictly(route: Route) -> None:
    """Serve a document as a careful site does."""
    if route.request.resource_type != "document" or route.request.method != "GET":
        route.continue_()
        return
    answer = route.fetch()
    route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": "default-src 'self'"})


@pytest.fixture
def open_page(browser: Browser, site: ServerProcess, signed_in: Any) -> Iterator[Any]:
    """Open pages as the administrator; at the end nothing may stand in their consoles."""
    contexts, complaints = [], []

    def opened(**look: Any) -> Page:
        context = browser.new_context(base_url=site.url, storage_state=signed_in, **look)
        contexts.append(context)
        context.set_default_timeout(15_000)
        context.route("**/*", strictly)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield opened
    for context in contexts:
        context.unroute_all()
        context.close()
    assert complaints == []


def go(page: Page, name: str) -> None:
    """Open a page; a form by way of its list, as people do."""
    page.goto(PAGES[name])
    if "?q=" in PAGES[name]:
        page.click("#result_list tbody th a")
        page.wait_for_url("**/change/**")


def in_force(page: Page, limit: str) -> Any:
    return page.locator(f"[data-limit={limit}] output")


def test_in_force_follows_what_one_types(open_page: Any) -> None:
    page = open_page(**LOOKS["light"])
    go(page, "tenant-form")
    tenant_streams = page.get_by_label("Tenant streams")
    expect(in_force(page, "tenant_limit")).to_have_text("240 ← acme (tier pro: 200)")
    tenant_streams.fill("1250")
    expect(in_force(page, "tenant_limit")).to_have_text("1,250 ← acme (tier pro: 200)")
    tenant_streams.fill("")
    expect(in_force(page, "tenant_limit")).to_have_text("200 ← tier pro")
    expect(page.locator("[data-limit=tenant_limit]")).not_to_have_class("sl-set")
    tenant_streams.fill("-1")
    expect(in_force(page, "tenant_limit")).to_have_text("–")
    page.get_by_label("At a user's limit").first.select_option("reject")
    replaced = "reject the newcomer ← acme (tier pro: evict the user's oldest stream)"
    expect(in_force(page, "at_user_limit")).to_have_text(replaced)
    page.get_by_label("Message size").fill("1024")
    expect(in_force(page, "max_message_bytes")).to_have_text("1,024 bytes ← acme (tier pro: 65,536 bytes)")


def test_another_tier_brings_its_limits(open_page: Any) -> None:
    page = open_page(**LOOKS["light"])
    go(page, "tenant-form")
    page.get_by_label("Streams of each user").fill("")
    page.click(".field-tier .select2-selection")
    page.keyboard.type("real")
    page.click(".select2-results__option:has-text('realtime')")
    expect(in_force(page, "user_limit")).to_have_text("20 ← tier realtime")
    expect(in_force(page, "tenant_limit")).to_have_text("240 ← acme (tier realtime: 500)")
    expect(page.get_by_label("Streams of each user")).to_have_attribute("placeholder", "20")


def test_without_an_answer_nothing_is_claimed(open_page: Any) -> None:
    page = open_page(**LOOKS["light"])
    go(page, "tenant-form")
    page.wait_for_load_state("networkidle")  # the script is there, and what it has asked is answered
    page.route("**/inherited/**", lambda route: route.fulfill(status=204))
    page.evaluate("window.django.jQuery('#id_tier').trigger('change')")
    expect(in_force(page, "user_limit")).to_have_text("known after saving")


def test_ten_more_are_given_from_the_list(open_page: Any) -> None:
    page = open_page(**LOOKS["light"])
    page.goto(LIST)
    page.click("text=globex")
    page.get_by_label("Tenant streams").fill("60")
    page.click("[name=_save]")
    expect(page.locator(".messagelist")).to_contain_text("In force on every node within 2 s.")
    expect(page.locator("#result_list tr:has-text('globex')")).to_contain_text("60 ← globex (tier free: 50)")


def test_without_javascript_the_form_shows_what_is_saved(open_page: Any) -> None:
    page = open_page(java_script_enabled=False)
    go(page, "tenant-form")
    expect(in_force(page, "user_limit")).to_have_text("6 ← acme (tier pro: 10)")


def test_suspending_is_asked_first(open_page: Any) -> None:
    page = open_page(**LOOKS["light"])
    page.goto(LIST)
    page.check("#result_list tr:has-text('initech') .action-select")
    page.get_by_label("Action:").select_option(label="Suspend…")
    page.click("button[name=index]")
    expect(page.locator("#content")).to_contain_text("Suspend initech?")
    expect(page.locator("a.cancel-link")).to_be_focused()
    page.click("input[value='Suspend initech']")
    expect(page.locator("#result_list tr:has-text('initech') .sl-warn")).to_have_text("suspended")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_their_window(open_page: Any, tmp_path: Path, name: str, look: str) -> None:
    """SCREENSHOTS=<folder> keeps the pictures, to be looked at."""
    page = open_page(**LOOKS[look])
    go(page, name)
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= LOOKS[look]["viewport"]["width"]


def test_it_reads_from_right_to_left_too(open_page: Any) -> None:
    page = open_page(**LOOKS["light"])
    go(page, "tenant-form")
    page.evaluate("document.documentElement.dir = 'rtl'")
    edge = page.locator("[data-limit=tenant_limit] th").evaluate("cell => getComputedStyle(cell).borderRightWidth")
    assert edge == "3px"
    arrow = page.locator("[data-limit=tenant_limit] .sl-arrow").evaluate("arrow => getComputedStyle(arrow).transform")
    assert arrow == "matrix(-1, 0, 0, 1, 0, 0)"
