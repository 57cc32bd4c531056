"""Pictures of the page for the docs: light, dark and narrow, under docs/img/.

make screenshots                                        # of the model inside the package
python scripts/screenshots.py [-m MODEL | --url URL]    # of another one; needs playwright and Chromium
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "img"
DONE = re.compile(r"^(\d+) of \1$")
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def finished(page: Page, stages: int = 1) -> None:
    for number in range(stages):
        expect(page.locator(".at").nth(number)).to_have_text(DONE, timeout=120_000)


def light(page: Page) -> None:
    """A text with a blank of a word and one of twelve tokens; what else its third token could have been."""
    page.click("#write")
    finished(page)
    page.locator(".token:has(sub:text-is('3'))").click()
    page.locator(".inspector li").first.wait_for()


def dark(page: Page) -> None:
    """Words on a canvas, two orders side by side."""
    page.check("#compare")
    page.click("text=Figure 1")
    finished(page, 2)


def narrow(page: Page) -> None:
    """An acrostic on a phone."""
    page.click("text=Acrostic")
    finished(page)


PICTURES = {
    "page-light": (light, "light", 1180),
    "page-dark": (dark, "dark", 1180),
    "page-narrow": (narrow, "light", 390),
}


@contextmanager
def server(model: str | None) -> Iterator[str]:
    """The address of a server that is there for the pictures alone."""
    command = [sys.executable, "-m", "pmlm", "serve", "--port", "0", *(["-m", model] if model else [])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://\S+", line)
            if found is None:
                sys.exit(f"the server did not start: {line.strip()}")
            yield found[0]
        finally:
            process.terminate()


def take(url: str, chromium: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, (act, scheme, width) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
            page.add_init_script("let seed = 7; Math.random = () => (seed = (seed * 16807) % 2147483647) / 2147483647")
            page.goto(url)
            expect(page.locator("#model option").first).to_be_attached()
            act(page)
            page.mouse.move(0, 0)
            page.wait_for_timeout(500)
            page.screenshot(path=folder / f"{name}.png", full_page=True)
            print(folder / f"{name}.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="checkpoint folder; without it, the model inside the package")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    if options.url:
        take(options.url, options.chromium, options.out)
        return
    with server(options.model) as url:
        take(url, options.chromium, options.out)


if __name__ == "__main__":
    main()
