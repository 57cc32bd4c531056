"""Pictures of the page for the docs: light, dark and narrow, under docs/img/.

python scripts/screenshots.py [--url http://127.0.0.1:8000]    # with `pmlm serve` running; needs playwright and Chromium
"""

import argparse
import re
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "img"
DONE = re.compile(r"^(\d+) of \1$")


def finished(page: Page, stages: int = 1) -> None:
    for number in range(stages):
        expect(page.locator(".at").nth(number)).to_have_text(DONE, timeout=60_000)


def light(page: Page) -> None:
    page.click("#write")
    finished(page)
    page.locator(".token:has(sub:text-is('3'))").click()
    page.locator(".inspector li").first.wait_for()


def dark(page: Page) -> None:
    page.check("#compare")
    page.click("text=Figure 1")
    finished(page, 2)


def narrow(page: Page) -> None:
    page.click("text=Acrostic")
    finished(page)


PICTURES = {
    "page-light": (light, "light", 1180),
    "page-dark": (dark, "dark", 1180),
    "page-narrow": (narrow, "light", 390),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for name, (act, scheme, width) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page.goto(options.url)
            expect(page.locator("#model option").first).to_be_attached()
            act(page)
            page.mouse.move(0, 0)
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / f"{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
