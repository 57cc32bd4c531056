"""The page in a real browser: Debian's Chromium, driven by playwright."""

import json
import re
import shlex
import urllib.parse
from collections.abc import Iterator

import pytest
from page_helpers import MINUTE, copied, finished, go, open_browser, open_page, playwright, shown
from serve_helpers import Served, finetuned_models, serving

from pmlm.cli import run
from pmlm.generation.sampling import Sampling
from pmlm.lm import LM, load, packaged_model_folder
from pmlm.serve.limits import Limits

pytestmark = pytest.mark.slow
WATCH = """() => {
    window.seen = [];
    const look = () => window.seen.push(document.querySelector('.at')?.textContent);
    new MutationObserver(look).observe(document.getElementById('stages'), {subtree: true, childList: true});
}"""
"""Keeps every state of the counter of steps, however slow this process is to look."""


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    yield from open_browser()


@pytest.fixture
def page(browser: playwright.Browser, served: Served) -> Iterator[playwright.Page]:
    yield from open_page(browser, served)


def test_every_step_arrives_and_can_be_rewound(page: playwright.Page) -> None:
    page.evaluate(WATCH)
    page.click("#write")
    finished(page)
    total = page.locator(".token").count()
    seen = list(dict.fromkeys(at for at in page.evaluate("window.seen") if at))
    assert seen == [f"{i} of {total}" for i in range(total + 1)]
    assert sorted(int(n) for n in page.locator(".token sub").all_text_contents()) == list(range(1, total + 1))
    final = shown(page)
    page.locator(".slider").fill("3")
    assert page.locator(".token").count() == 3
    assert page.locator(".gap").count() == total - 3
    assert page.locator(".path circle").count() == 3
    page.locator(".slider").fill(str(total))
    assert shown(page) == final
    page.click(".play")
    finished(page)
    assert shown(page) == final


def test_words_become_blanks_and_come_back(page: playwright.Page) -> None:
    page.click(".word >> text=mouse")
    assert page.input_value("#template").startswith("Tom is a ___ and Jerry is a ___.")
    page.click(".blank .back >> nth=1")
    assert page.input_value("#template").startswith("Tom is a ___ and Jerry is a mouse.")
    page.click(".blank .back >> nth=0")
    page.click("[aria-label=Longer]")
    assert page.input_value("#template").startswith("Tom is a cat and Jerry is a mouse. [MASK:13]")


def test_an_alternative_is_picked_and_the_rest_rewritten(page: playwright.Page, served: Served) -> None:
    page.click("text=Figure 5")
    finished(page)
    page.locator(".token:has(sub:text-is('4'))").click()
    playwright.expect(page.locator(".inspector li")).to_have_count(12)
    before = json.loads(copied(page, "json"))
    other = page.locator(".inspector li button:not(.chosen) span:first-child").first.text_content()
    page.locator(".inspector li button:not(.chosen)").first.click()
    playwright.expect(page.locator(".token:has(sub:text-is('4'))")).to_contain_text(other or "", timeout=MINUTE)
    finished(page)
    after = json.loads(copied(page, "json"))
    assert after["order"][:4] == before["order"][:4]
    for position in before["order"][:3]:
        assert after["tokens"][position] == before["tokens"][position]
    assert after["tokens"][after["order"][3]].strip() == other
    page.locator(".token:has(sub:text-is('9'))").click()
    page.click("text=Hide it and rewrite from here")
    finished(page)
    third = json.loads(copied(page, "json"))
    assert [third["tokens"][p] for p in third["order"][:8]] == [after["tokens"][p] for p in after["order"][:8]]


def test_locked_words_stay(page: playwright.Page) -> None:
    page.click("text=Acrostic")
    finished(page)
    page.locator(".token:has(sub:text-is('5'))").click()
    page.click(".inspector >> text=Lock")
    page.locator(".inspector >> text=Unlock").wait_for()
    first = json.loads(copied(page, "json"))
    page.click("text=Write again around 1 locked")
    finished(page)
    playwright.expect(page.locator(".figures")).to_contain_text("seed 2", timeout=MINUTE)
    finished(page)
    second = json.loads(copied(page, "json"))
    place = first["order"][4]
    assert second["tokens"][place] == first["tokens"][place]
    assert second["text"] != first["text"]


def test_the_link_and_the_command_reproduce_the_text(
    page: playwright.Page, served: Served, browser: playwright.Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    page.click("text=Figure 1")
    finished(page)
    page.locator(".token:has(sub:text-is('2'))").click()
    before = page.locator(".text").first.text_content()
    page.locator(".inspector li button:not(.chosen)").first.click()
    playwright.expect(page.locator(".text").first).not_to_have_text(before or "", timeout=MINUTE)  # it has begun
    finished(page)
    text = copied(page, "text")
    assert shown(page).strip() == text
    other = browser.new_page()
    other.goto(copied(page, "link"))
    finished(other)
    assert shown(other).strip() == text
    other.close()
    assert run(shlex.split(copied(page, "command"))[1:]) == 0
    assert capsys.readouterr().out == f"{text}\n"


def again_in(browser: playwright.Browser, link: str) -> tuple[str, str]:
    """What a link shows to somebody else: the text and its figures."""
    other = browser.new_page()
    other.goto(link)
    finished(other)
    seen = shown(other).strip(), str(other.locator(".figures").text_content())
    other.close()
    return seen


def test_write_again_is_another_text_whose_link_shows_the_same(
    page: playwright.Page, browser: playwright.Browser
) -> None:
    page.click("#write")
    finished(page)
    first = json.loads(copied(page, "json"))
    page.click(".again")
    playwright.expect(page.locator(".figures")).to_contain_text("seed 2", timeout=MINUTE)
    finished(page)
    second = json.loads(copied(page, "json"))
    assert second["text"] != first["text"]
    assert second["template"] == first["template"]
    seen = shown(page).strip(), str(page.locator(".figures").text_content())
    assert seen[0] == second["text"]
    assert again_in(browser, copied(page, "link")) == seen
    page.locator(".token:has(sub:text-is('5'))").click()
    page.click(".inspector >> text=Lock")
    page.click("text=Write again around 1 locked")
    playwright.expect(page.locator(".figures")).to_contain_text("seed 3", timeout=MINUTE)
    finished(page)
    third = json.loads(copied(page, "json"))
    assert len(third["tokens"]) == len(second["tokens"])
    assert third["tokens"][second["order"][4]] == second["tokens"][second["order"][4]]
    assert again_in(browser, copied(page, "link"))[0] == third["text"]
    assert again_in(browser, page.url)[0] == third["text"]


def test_an_order_of_ones_own(page: playwright.Page, browser: playwright.Browser) -> None:
    page.click("#source summary")
    page.fill("#template", "A [MASK:3] b [MASK:2].")
    page.click("#write")
    finished(page)
    page.select_option("#order", "list")
    before = json.loads(copied(page, "json"))["order"]
    assert page.input_value("#positions") == ", ".join(map(str, before))
    mine = sorted(before, reverse=True)[::2] + sorted(before, reverse=True)[1::2]
    page.fill("#positions", ", ".join(map(str, mine)))
    page.click("#write")
    playwright.expect(page.locator("h2")).to_have_text("an order of your own")
    finished(page)
    assert json.loads(copied(page, "json"))["order"] == mine
    assert f"--order {','.join(map(str, mine))}" in copied(page, "command")
    assert again_in(browser, copied(page, "link"))[0] == shown(page).strip()
    for wrong, says in (("1, x", "a list of positions"), ("0, 1", "position 0"), ("", "a list of positions")):
        page.fill("#positions", wrong)
        page.click("#write")
        playwright.expect(page.locator("#problem")).to_contain_text(says)


def test_a_blank_says_what_it_may_become(page: playwright.Page) -> None:
    page.click(".edit >> nth=0")
    playwright.expect(page.locator("#editor")).to_be_visible()
    page.fill("#blank-in", "dog,cow")
    page.click("#editor-done")
    playwright.expect(page.locator("#editor")).to_be_hidden()
    page.click(".edit >> nth=1")
    assert page.input_value("#blank-size") == "12"
    page.fill("#blank-size", "8")
    page.fill("#blank-starts", "T")
    page.fill("#blank-ends", "[x|y]")
    assert page.input_value("#template").startswith(
        r"Tom is a [WORD|in=dog,cow] and Jerry is a mouse. [MASK:8|starts=T|ends=\[x\|y\]] They"
    )
    page.fill("#blank-ends", ".")
    assert "8 tokens · starts T · ends ." in (page.locator(".blank .back").nth(1).text_content() or "")
    page.click("#write")
    finished(page)
    text = json.loads(copied(page, "json"))["text"]
    assert re.match(r"Tom is a (dog|cow) and Jerry is a mouse\. T.*\. They became", text), text
    page.click("#editor-done")
    page.click(".edit >> nth=1")
    assert [page.input_value(f"#blank-{name}") for name in ("size", "starts", "ends")] == ["8", "T", "."]


def test_editing_a_line_of_an_acrostic_leaves_it_a_line(page: playwright.Page) -> None:
    page.click("#source summary")
    page.fill("#template", "[MASK:9|starts=T|line]\n[MASK:9|starts=O|line]")
    page.click(".edit >> nth=0")
    page.fill("#blank-ends", ".")
    assert page.input_value("#template") == "[MASK:9|line|starts=T|ends=.]\n[MASK:9|starts=O|line]"


def test_words_that_must_and_must_not_appear_and_their_number(
    page: playwright.Page, browser: playwright.Browser
) -> None:
    page.click("#more summary")
    page.fill("#must", "kite")
    page.fill("#ban", "the")
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("the banned words")  # "in the end" is given
    playwright.expect(page.locator(".stage")).to_be_hidden()
    page.fill("#ban", "very, was")
    page.click("#write")
    finished(page)
    words = json.loads(copied(page, "json"))["text"].replace(".", " ").split()
    assert "kite" in words
    assert not {"very", "was"} & {word.lower() for word in words}
    assert "--must kite --" in copied(page, "command") + " --"
    assert again_in(browser, copied(page, "link"))[0] == shown(page).strip()
    page.locator(".token:has(sub:text-is('3'))").click()
    playwright.expect(page.locator(".inspector li").first).to_be_visible()


def test_a_text_that_was_begun_anew_says_so(
    page: playwright.Page, served: Served, model: LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pmlm.generation.demands.MOST_STATES", 1)  # constraints are asked one by one, and corner a text
    asked = {
        "template": "The [MASK:6|ends=s] ___.",
        "num_words": 5,
        "order": "random",
        "temperature": 1,
        "model": "first",
    }
    seed, text = next(
        (seed, stream.result.text)
        for seed in range(30)
        if (stream := model.stream(asked["template"], seed=seed, num_words=5, order="random")).finish()
        and stream._attempts
    )
    link = "#" + urllib.parse.quote(json.dumps(asked | {"seed": seed}))
    page.goto(f"{served.url}/{link}")
    playwright.expect(page.locator(".anew")).to_contain_text("begun anew, attempt")
    finished(page)
    assert shown(page).strip() == text
    page.locator(".token >> nth=1").click()
    playwright.expect(page.locator(".inspector li").first).to_be_visible()


def test_a_link_brings_back_both_sides_and_every_choice(page: playwright.Page, browser: playwright.Browser) -> None:
    page.check("#compare")
    page.select_option("#order", "confidence")
    page.select_option("#order-2", "r2l")
    page.fill("#seed-2", "9")
    page.click("#more summary")
    page.fill("#top_k", "20")
    page.click("#write")
    finished(page, 0)
    finished(page, 1)
    playwright.expect(page.locator(".stage[aria-busy]")).to_have_count(0)
    other = browser.new_page()
    other.goto(page.url)
    finished(other, 0)
    finished(other, 1)
    assert [shown(other, i) for i in (0, 1)] == [shown(page, i) for i in (0, 1)]
    values = ("#order", "#order-2", "#seed", "#seed-2", "#top_k", "#template", "#temperature")
    assert [other.input_value(v) for v in values] == [page.input_value(v) for v in values]
    assert other.is_checked("#compare")
    other.close()


def test_a_server_without_a_model_that_writes_says_so(browser: playwright.Browser) -> None:
    with serving({**finetuned_models()}) as reads:
        other = browser.new_page()
        other.goto(reads.url)
        playwright.expect(other.locator("#problem")).to_contain_text("No model that writes is served here")
        other.close()


def test_the_temperature_is_the_models_own_until_somebody_moves_it(browser: playwright.Browser, model: LM) -> None:
    warm = LM(model.model, model.tokenizer, model.about, model.folder, model.words, Sampling(temperature=0.6))
    with serving({"plain": model, "warm": warm}) as both:
        other = browser.new_page()
        other.goto(both.url)
        playwright.expect(other.locator("#temperature-shown")).to_have_text("1.00")
        other.select_option("#model", "warm")
        playwright.expect(other.locator("#temperature-shown")).to_have_text("0.60")
        asked = {"template": "The [MASK:3].", "seed": 1, "model": "warm"}
        for more, shows in (({}, "0.60"), ({"temperature": 0.9}, "0.90")):
            link = urllib.parse.quote(json.dumps(asked | more))
            other.goto("about:blank")
            other.goto(f"{both.url}/#{link}")
            finished(other)
            playwright.expect(other.locator("#temperature-shown")).to_have_text(shows)
            assert shown(other).strip() == model.fill(asked["template"], seed=1, temperature=float(shows)).text
        other.close()


def test_a_text_by_particles_is_picked_from_and_its_link_and_command_write_it_again(
    browser: playwright.Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    stories = load(packaged_model_folder())
    with serving({"stories": stories}) as served:
        for page in open_page(browser, served):
            page.click("#source summary")
            page.fill("#template", "Tom [MASK:5] cat. [MASK:4] Jerry [MASK:6].")
            page.select_option("#order", "l2r")
            page.click("#more summary")
            page.fill("#particles", "6")
            page.click("#write")
            finished(page)
            document = json.loads(copied(page, "json"))
            assert document["approximate"] == ["particles 6"]
            assert document["text"] == shown(page).strip()
            assert again_in(browser, copied(page, "link"))[0] == document["text"]
            arguments = [*shlex.split(copied(page, "command"))[1:], "-m", str(packaged_model_folder())]
            assert run(arguments) == 0
            assert capsys.readouterr().out == f"{document['text']}\n"
            page.locator(".token:has(sub:text-is('3'))").click()
            page.locator(".inspector li button:not(.chosen)").first.click()
            finished(page)
            after = json.loads(copied(page, "json"))
            assert after["order"][:2] == document["order"][:2]
            assert after["approximate"] == []  # it goes on token by token


def test_two_orders_side_by_side(page: playwright.Page) -> None:
    page.check("#compare")
    page.select_option("#order-2", "r2l")
    page.click("text=Figure 5")
    finished(page, 0)
    finished(page, 1)
    assert page.locator("h2").all_text_contents() == ["random", "right to left"]
    assert shown(page, 0) != shown(page, 1)


def test_what_is_wrong_is_shown(page: playwright.Page, model: LM, browser: playwright.Browser) -> None:
    page.click("#source summary")
    page.fill("#template", "no blank here")
    page.click("#write")
    assert "There is no blank yet" in (page.text_content("#problem") or "")
    page.fill("#template", "[MASK:500]")
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("the template needs 502 tokens")
    with serving({"m": model}, token="t", limits=Limits(seconds=0.01)) as guarded:
        other = browser.new_page()
        other.goto(guarded.url)
        playwright.expect(other.locator("#problem")).to_contain_text("wants a token")
        other.fill("#token", "t")
        other.press("#token", "Enter")
        playwright.expect(other.locator("#model option").first).to_be_attached()
        other.click("#write")
        playwright.expect(other.locator("#problem")).to_contain_text("The server is busy")
        playwright.expect(other.locator("#problem button")).to_have_text("Try again")
        other.close()


def test_narrow_screens_need_no_sideways_scrolling(browser: playwright.Browser, served: Served) -> None:
    for width, scheme in ((320, "light"), (390, "dark")):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=True)  # type: ignore[arg-type]
        phone = context.new_page()
        go(phone, served)
        phone.tap("text=Figure 1")
        finished(phone)
        phone.tap(".token >> nth=0")
        playwright.expect(phone.locator(".inspector li").first).to_be_visible()
        assert phone.evaluate("document.documentElement.scrollWidth") <= width
        assert phone.locator("html.dark").count() == (scheme == "dark")
        context.close()


def test_the_page_of_the_api_shows_every_route(page: playwright.Page, served: Served) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    page.goto(f"{served.url}/docs")
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    playwright.expect(page.locator("section h2")).to_have_count(len(routes))
    assert set(page.locator("section h2").all_text_contents()) == routes
    classify = page.locator("section", has_text="POST /v1/classify")
    assert '"texts":["a warm and funny film"]' in (classify.locator("pre").text_content() or "")
    assert "“sentiment”" in (classify.text_content() or "")
