"""The page by keyboard and mouse: nothing that is focused or about to be clicked disappears."""

import json
import re
import urllib.parse
from collections.abc import Iterator

import pytest
from page_helpers import copied, finished, open_browser, open_page, playwright, shown
from serve_helpers import Served, serving

from pmlm.lm import LM

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    yield from open_browser()


@pytest.fixture
def page(browser: playwright.Browser, served: Served) -> Iterator[playwright.Page]:
    yield from open_page(browser, served)


def test_by_keyboard_alone(page: playwright.Page) -> None:
    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.locator(f"{selector}:focus").count():
                return
        raise AssertionError(f"{selector} cannot be reached")

    def copied_by_key() -> str:
        tab_to("[data-copy=json]")
        page.keyboard.press("Enter")
        return str(page.locator(".stage").first.get_attribute("data-copied"))

    tab_to(".word")
    page.keyboard.press("Enter")
    assert page.input_value("#template").startswith("___ is a ___")
    tab_to("#write")
    page.keyboard.press("Enter")
    finished(page)
    tab_to(".slider")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator(".token").count() == 1
    page.keyboard.press("End")
    tab_to(".token")
    page.keyboard.press("Enter")
    before = json.loads(copied_by_key())
    tab_to(".inspector li button:not(.chosen)")
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".inspector")).to_be_hidden()
    finished(page)
    assert json.loads(copied_by_key())["tokens"] != before["tokens"]
    tab_to(".edit")
    page.keyboard.press("Enter")
    assert page.locator("#blank-size:focus").count() == 1
    page.keyboard.type("3")
    tab_to("#editor-done")
    page.keyboard.press("Enter")
    assert page.locator(".edit:focus").count() == 1
    assert page.input_value("#template").startswith("[MASK:3] is a ___")
    tab_to("#tab-text")
    page.keyboard.press("ArrowRight")
    tab_to("#slots button")
    page.keyboard.press("Enter")
    page.keyboard.type("fox")
    page.keyboard.press("Enter")
    page.keyboard.press("Control+Enter")
    finished(page)
    assert "fox" in shown(page)
    page.keyboard.press("Escape")
    page.locator(".text").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".gap").count() == 1


def test_a_canvas_of_slots_takes_words(page: playwright.Page) -> None:
    page.click("#tab-canvas")
    page.fill("#length", "12")
    page.press("#length", "Tab")
    page.click("#clear")
    page.click("[aria-label='Slot 4: place a word']")
    page.keyboard.type("fox")
    page.keyboard.press("Enter")
    page.click("#write")
    finished(page)
    document = json.loads(copied(page, "json"))
    assert document["template"] == "[MASK:4] fox[MASK:7|open]"
    assert " fox" in document["text"]


def focused(page: playwright.Page) -> str:
    return str(
        page.evaluate(
            "document.activeElement.ariaLabel || document.activeElement.className || document.activeElement.tagName"
        )
    )


def test_after_write_the_keys_play_and_step_and_leave_the_browser_its_own(page: playwright.Page) -> None:
    page.click("#write")
    finished(page)
    assert focused(page) == "text"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    gaps = page.locator(".gap").count()
    assert gaps == 2
    page.keyboard.press("Control+ArrowLeft")
    page.keyboard.press("Alt+Shift+ArrowLeft")
    assert page.locator(".gap").count() == gaps
    page.keyboard.press("Space")
    finished(page)
    page.fill("#seed", "3")
    page.press("#seed", "Control+Enter")
    finished(page)
    assert page.evaluate("document.activeElement.id") == "seed"  # who is typing goes on typing


def test_what_is_pressed_keeps_the_focus(page: playwright.Page) -> None:
    page.click(".blank .longer >> nth=0")
    for _ in range(3):
        page.keyboard.press("Enter")
    assert page.input_value("#template").startswith("Tom is a [MASK:5] and")
    assert focused(page) == "Longer"
    page.click("#write")
    finished(page)
    page.click(".token >> nth=1")
    position = page.locator(".token >> nth=1").get_attribute("data-position")
    assert page.evaluate("document.activeElement.dataset.position") == position
    page.click(".lock")
    assert focused(page) == "lock"
    page.click("text=Close")
    assert page.evaluate("document.activeElement.dataset.position") == position
    page.click(".token >> nth=2")
    page.click(".inspector li button >> nth=1")
    finished(page)
    assert focused(page) == "text"


def test_one_click_a_slot(page: playwright.Page) -> None:
    page.click("#tab-canvas")
    page.click("#clear")
    for slot, word in ((4, "fox"), (9, "dog")):
        page.click(f"[aria-label='Slot {slot}: place a word']")
        page.keyboard.type(word)
    page.keyboard.press("Tab")
    assert focused(page) == "Slot 10: place a word"
    assert page.locator("#slots .placed").all_text_contents() == ["fox", "dog"]


def test_a_link_opens_once_the_token_is_given(browser: playwright.Browser, model: LM) -> None:
    asked = {
        "template": "Tom is a [MASK:3].",
        "seed": 7,
        "temperature": 0.5,
        "visibility": "bidirectional",
        "model": "m",
    }
    with serving({"other": model, "m": model}, token="t") as guarded:
        page = browser.new_page()
        page.goto(f"{guarded.url}/#{urllib.parse.quote(json.dumps(asked))}")
        playwright.expect(page.locator("#problem")).to_contain_text("wants a token")
        page.fill("#token", "t")
        page.press("#token", "Enter")
        finished(page)
        assert re.fullmatch(r"Tom is a .+\.", shown(page))
        document = json.loads(copied(page, "json"))
        assert (document["seed"], document["visibility"]) == (7, "bidirectional")
        assert page.input_value("#model") == "m"
        page.close()
