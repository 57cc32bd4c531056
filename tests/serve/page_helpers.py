"""The page in a real browser: Debian's Chromium, driven by playwright."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_helpers import Served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DONE = re.compile(r"^(\d+) of \1$")
MINUTE = 60_000


def open_browser() -> Iterator[playwright.Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield opened
        opened.close()


def open_page(browser: playwright.Browser, served: Served) -> Iterator[playwright.Page]:
    """The page of a server; at the end, it has complained of nothing and asked nobody else."""
    context = browser.new_context(viewport={"width": 1180, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=served.url)
    opened = context.new_page()
    complaints: list[str] = []
    elsewhere: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "request", lambda request: elsewhere.append(request.url) if not request.url.startswith(served.url) else None
    )
    go(opened, served)
    yield opened
    context.close()
    assert elsewhere == []
    assert [c for c in complaints if "422" not in c and "429" not in c] == []


def go(page: playwright.Page, served: Served, hash: str = "") -> None:
    page.goto(f"{served.url}/{hash}")
    playwright.expect(page.locator("#model option").first).to_be_attached()


def finished(page: playwright.Page, number: int = 0) -> None:
    playwright.expect(page.locator(".at").nth(number)).to_have_text(DONE, timeout=MINUTE)
    playwright.expect(page.locator(".stage").nth(number)).not_to_have_attribute("aria-busy", "true")


def shown(page: playwright.Page, number: int = 0) -> str:
    """The text on a stage, without the numbers of its steps."""
    return str(page.locator(".text").nth(number).evaluate(
        "e => { const c = e.cloneNode(true); c.querySelectorAll('sub').forEach(s => s.remove()); return c.textContent }"
    ))  # fmt: skip


def copied(page: playwright.Page, what: str) -> str:
    page.click(f"[data-copy={what}]")
    return str(page.locator(".stage").first.get_attribute("data-copied"))
