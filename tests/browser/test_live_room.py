"""The live room in Chromium, under `default-src 'self'`: what an operator sees and does.

Whatever a test does, the browser must have nothing to say about it in its console.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.dashboard.fleet import ADMIN, PASSWORD, Fleet, wait_until

ROOM = "/admin/sse_limits/liveroom/"
SECONDS = 10_000
ROWS = ".sl-table tbody tr"
HARMLESS = re.compile(r"favicon\.ico")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, fleet: Fleet) -> str:
    """The session cookie of an operator, for every window of the module."""
    context = browser.new_context(base_url=fleet.url)
    page = context.new_page()
    page.goto("/admin/login/")
    page.fill("#id_username", ADMIN)
    page.fill("#id_password", PASSWORD)
    page.click("[type=submit]")
    cookie = next(cookie for cookie in context.cookies() if cookie.get("name") == "sessionid")
    context.close()
    return cookie.get("value", "")


def window(browser: Browser, fleet: Fleet, session: str, **options: object) -> BrowserContext:
    context = browser.new_context(base_url=fleet.url, **options)  # type: ignore[arg-type]
    context.add_cookies([{"name": "sessionid", "value": session, "url": fleet.url}])
    context.set_default_timeout(SECONDS)
    return context


@pytest.fixture
def said() -> list[str]:
    """What the browser has complained of; nothing may be left at the end."""
    return []


@pytest.fixture
def page(browser: Browser, fleet: Fleet, signed_in: str, said: list[str]) -> Iterator[Page]:
    context = window(browser, fleet, signed_in, viewport={"width": 1440, "height": 900})
    found = context.new_page()
    listen(found, said)
    yield found
    context.close()
    fleet.leave()
    assert said == []


def listen(page: Page, said: list[str]) -> None:
    def on_console(message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        if message.type in ("error", "warning") and not HARMLESS.search(f"{message.text} {where}"):
            said.append(f"{message.text} {where}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: said.append(str(error)))


def state(page: Page, text: str) -> None:
    expect(page.locator("#sl-state-text")).to_have_text(text, timeout=SECONDS)


def live(page: Page) -> None:
    state(page, "Live, every second")


# -- what is shown --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", ["overview", "tenants", "holders", "streams", "rejections", "decision", "nodes"])
def test_each_page_is_painted_by_the_server_and_goes_live(slug: str, page: Page, fleet: Fleet) -> None:
    fleet.open(6, "globex", "u1")
    page.goto(f"{ROOM}{slug}/")
    expect(page.locator(".sl-tabs [aria-current]")).to_have_count(1)
    live(page)


def test_values_change_in_place(page: Page, fleet: Fleet) -> None:
    fleet.open(2, "globex", "u1")
    page.goto(f"{ROOM}tenants/")
    row = page.locator("tr[data-key=globex]")
    expect(row).to_contain_text("2 / 50", timeout=SECONDS)
    row.evaluate("row => { row.marked = true }")
    fleet.open(3, "globex", "u1")
    expect(row).to_contain_text("5 / 50", timeout=SECONDS)
    assert row.evaluate("row => row.marked")


def test_charts_are_drawn_and_their_legend_follows(page: Page, fleet: Fleet) -> None:
    fleet.open(4, "globex", "u1")
    page.goto(ROOM)
    expect(page.locator("[data-chart] canvas")).to_have_count(2)
    expect(page.locator("[data-legend=in_use] li").first).to_contain_text("4", timeout=20_000)


def test_nothing_open_yet(page: Page, fleet: Fleet) -> None:
    page.goto(f"{ROOM}holders/")
    expect(page.locator(".sl-none").first).to_have_text("Nobody holds a stream.", timeout=SECONDS)
    fleet.open(1, "acme", "u1")
    expect(page.locator("tr[data-key='acme/u1']")).to_be_visible(timeout=SECONDS)


# -- what stays still -----------------------------------------------------------------------------------------------


def test_rows_stay_under_the_pointer_until_it_leaves(page: Page, fleet: Fleet) -> None:
    fleet.open(1, "acme", "u1")
    page.goto(f"{ROOM}holders/")
    expect(page.locator("tr[data-key='acme/u1']")).to_be_visible(timeout=SECONDS)
    page.hover("tr[data-key='acme/u1']")
    state(page, "Held while you point at it")
    fleet.open(2, "globex", "u2")
    expect(page.get_by_text("1 new, show")).to_be_visible(timeout=SECONDS)
    assert page.locator(ROWS).count() == 1
    page.mouse.move(5, 5)
    expect(page.locator(ROWS).first).to_have_attribute("data-key", "globex/u2", timeout=SECONDS)
    live(page)


def test_new_rows_can_be_asked_for_while_the_table_is_held(page: Page, fleet: Fleet) -> None:
    fleet.open(1, "acme", "u1")
    page.goto(f"{ROOM}holders/")
    expect(page.locator(ROWS)).to_have_count(1, timeout=SECONDS)  # what an earlier test has closed is gone
    page.hover("tr[data-key='acme/u1']")
    state(page, "Held while you point at it")
    fleet.open(2, "globex", "u2")
    page.get_by_text("1 new, show").click()
    expect(page.locator("tr[data-key='globex/u2']")).to_be_visible()


def test_pause_by_button_and_key(page: Page, fleet: Fleet) -> None:
    page.goto(f"{ROOM}tenants/")
    live(page)
    expect(page.locator("tr[data-key=globex]")).to_contain_text("0 / 50", timeout=SECONDS)  # an earlier test's are gone
    page.click("#sl-pause")
    state(page, "Paused")
    fleet.open(2, "globex", "u1")
    page.wait_for_timeout(1500)
    expect(page.locator("tr[data-key=globex]")).to_contain_text("0 / 50")
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("p")
    live(page)
    expect(page.locator("tr[data-key=globex]")).to_contain_text("2 / 50", timeout=SECONDS)


# -- what one does --------------------------------------------------------------------------------------------------


def test_search_by_key_and_filters_stand_in_the_address(page: Page) -> None:
    page.goto(f"{ROOM}tenants/")
    live(page)
    page.keyboard.press("/")
    page.keyboard.type("acm")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tenants/?q=acm")
    assert page.locator(ROWS).count() == 1
    page.select_option("[name=state]", "suspended")
    page.wait_for_url("**/tenants/?q=acm&state=suspended")
    expect(page.locator(".sl-none")).to_contain_text("No tenant matches acm.")
    page.get_by_text("Clear the filter").click()
    page.wait_for_url("**/tenants/")


def test_sort_by_the_header(page: Page) -> None:
    page.goto(f"{ROOM}tenants/")
    page.get_by_role("button", name="Tenant", exact=True).click()
    page.wait_for_url("**sort=tenant")
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Tenant")
    keys = page.locator(ROWS).evaluate_all("rows => rows.map(row => row.dataset.key)")
    assert keys == ["acme", "globex", "initech"]


def test_a_row_opens_in_place_and_stays_open_after_a_reload(page: Page) -> None:
    page.goto(f"{ROOM}tenants/")
    live(page)
    page.locator("tr[data-key=acme] .sl-x").click()
    expect(page.locator("tr.x")).to_contain_text("tier pro", timeout=SECONDS)
    page.reload()
    expect(page.locator("tr.x")).to_contain_text("tier pro")
    page.locator("tr[data-key=acme] .sl-x").click()
    expect(page.locator("tr.x")).to_have_count(0, timeout=SECONDS)


def test_selected_streams_are_ended_and_the_rows_say_so(page: Page, fleet: Fleet) -> None:
    fleet.open(3, "acme", "u2")
    page.goto(f"{ROOM}streams/?user=acme/u2")
    described = page.locator(ROWS).filter(has_text="/events/")  # by its node, a second after it was opened
    expect(described).to_have_count(3, timeout=SECONDS)
    expect(page.locator("[data-selected-bar]")).to_be_hidden()
    page.locator("[data-select-all]").check()
    expect(page.locator("[data-selected-count]")).to_have_text("3 selected")
    page.get_by_role("button", name="Clear").click()
    for box in page.locator("[data-select]").all()[:2]:
        box.check()
    state(page, "Held while rows are selected")
    expect(page.locator("[data-selected-count]")).to_have_text("2 selected")
    page.get_by_text("Disconnect selected…").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("Disconnect 2 streams of u2?")
    expect(dialog.get_by_text("Cancel")).to_be_focused()
    dialog.locator("[name=reason]").fill("Idle build tabs")
    dialog.get_by_role("button", name="Disconnect 2 streams").click()
    expect(page.get_by_text(re.compile(r"ended, \S+ in \d\.\d s"))).to_have_count(2, timeout=SECONDS)
    expect(page.locator(ROWS)).to_have_count(1, timeout=SECONDS)
    assert sum(fleet.store.in_use().values()) == 3  # one stream: of the user, of the tenant, of the fleet


def test_escape_leaves_the_question_and_focus_returns(page: Page, fleet: Fleet) -> None:
    fleet.open(1, "acme", "u2")
    page.goto(f"{ROOM}streams/?user=acme/u2")
    live(page)
    expect(page.locator(ROWS)).to_contain_text("/events/")  # its node has described it
    button = page.locator("tbody .sl-ask").first
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_contain_text("Disconnect 1 stream of u2?")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    expect(button).to_be_focused()


def test_the_question_is_also_a_page(page: Page, fleet: Fleet) -> None:
    fleet.open(1, "acme", "u2")
    page.goto(f"{ROOM}disconnect/?user=acme/u2")
    expect(page.get_by_role("heading", name="Disconnect 1 stream of u2?")).to_be_visible()


def test_a_decision_is_reached_from_the_list(page: Page, fleet: Fleet) -> None:
    fleet.open(6, "globex", "ursula")
    wait_until(lambda: "ursula" in page.request.get(f"{ROOM}rejections/now/").text())
    page.goto(f"{ROOM}rejections/")
    page.locator("tr", has_text="ursula").locator("a.mono").first.click(timeout=SECONDS)
    expect(page.locator(".sl-story")).to_contain_text("ursula was refused a stream at")
    expect(page.locator("tr.hit")).to_contain_text("User slots")
    live(page)


# -- other ways of looking ------------------------------------------------------------------------------------------


def test_without_a_stream_the_page_polls(page: Page, fleet: Fleet) -> None:
    page.route("**/events/*", lambda route: route.fulfill(status=204))
    page.route("**/events/", lambda route: route.fulfill(status=204))
    page.goto(f"{ROOM}tenants/")
    state(page, "Live by polling, every few seconds")
    fleet.open(2, "globex", "u1")
    expect(page.locator("tr[data-key=globex]")).to_contain_text("2 / 50", timeout=SECONDS)


def test_without_scripts_everything_is_there(browser: Browser, fleet: Fleet, signed_in: str) -> None:
    fleet.open(2, "acme", "u3")
    context = window(browser, fleet, signed_in, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{ROOM}streams/?user=acme/u3")
    page.check("[data-select] >> nth=0")
    page.get_by_text("Disconnect selected…").click()
    page.fill("[name=reason]", "no script")
    page.get_by_role("button", name="Disconnect 1 stream").click()
    expect(page.locator(".messagelist")).to_contain_text("1 stream ended")
    assert page.url.endswith("/streams/?user=acme/u3")
    context.close()
    fleet.leave()


def test_narrow_windows_scroll_down_only(browser: Browser, fleet: Fleet, signed_in: str, said: list[str]) -> None:
    fleet.open(6, "globex", "u1")
    context = window(browser, fleet, signed_in, viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = context.new_page()
    listen(page, said)
    for slug in ("overview", "tenants", "holders", "streams", "rejections", "nodes"):
        page.goto(f"{ROOM}{slug}/")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, slug
    context.close()
    fleet.leave()
    assert said == []


def test_dark_follows_the_admins_own_switch(page: Page) -> None:
    page.goto(ROOM)
    fill = "getComputedStyle(document.documentElement).getPropertyValue('--sl-fill').trim()"
    assert page.evaluate(fill) == "#417893"
    page.click(".theme-toggle >> visible=true")
    page.click(".theme-toggle >> visible=true")
    assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert page.evaluate(fill) == "#5f9db9"
    expect(page.locator("[data-chart] canvas")).to_have_count(2)


def test_the_store_going_away_is_said_and_forgotten(page: Page, fleet: Fleet) -> None:
    fleet.server.expect("the slot store (does not answer|answers again)", "the display's data")
    fleet.open(3, "globex", "u1")
    page.goto(ROOM)
    live(page)
    with fleet.store.stalled():
        banner = page.locator(".sl-banner")
        expect(banner).to_contain_text("Redis has not answered for", timeout=2 * SECONDS)
        state(page, "Live, from this node only")
        expect(banner).to_contain_text("free, pro, realtime: each node enforces its share of the limit (local).")
        expect(banner).to_contain_text("anonymous: refused with 503 (closed).")
        expect(banner).to_contain_text("Disconnecting works only on this node until the store is back.")
        expect(page.locator(".sl-figs > div").last).to_contain_text("local decisions")
        expect(page.locator("tr[data-key*=':']").first).to_contain_text("3")
        banner.get_by_text("Nodes", exact=True).click()
        expect(page.locator("[data-part=count]")).to_have_text("1 node known, 1 seen now")
    expect(page.locator(".sl-banner")).to_have_count(0, timeout=2 * SECONDS)
    live(page)


def test_while_the_store_is_away_this_node_s_streams_are_shown_and_ended(page: Page, fleet: Fleet) -> None:
    fleet.server.expect("the slot store (does not answer|answers again)", "the display's data")
    fleet.open(3, "globex", "u1")
    page.goto(f"{ROOM}streams/?user=globex/u1")
    expect(page.locator(ROWS)).to_have_count(3, timeout=SECONDS)
    with fleet.store.stalled():
        state(page, "Live, from this node only")
        expect(page.locator("[data-part=count]")).to_have_text("3 streams of this node")
        page.locator(ROWS).first.get_by_role("checkbox").check()
        page.get_by_role("button", name="Disconnect selected…").click()
        dialog = page.locator("#sl-dialog")
        expect(dialog).to_contain_text("only streams on this node are ended")
        dialog.locator("[name=reason]").fill("Idle build tabs")
        dialog.get_by_role("button", name="Disconnect 1 stream").click()
        expect(page.locator(f"{ROWS}.gone")).to_contain_text("ended,", timeout=2 * SECONDS)
        expect(page.locator(ROWS)).to_have_count(2, timeout=2 * SECONDS)
    wait_until(lambda: fleet.store.in_use() and max(fleet.store.in_use().values()) == 2)
    live(page)
