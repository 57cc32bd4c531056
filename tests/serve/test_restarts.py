"""Constraints that corner a text: the server begins anew as the library does, as often, and says the same at the end.

Only constraints too large for one exact rule do that; here a bound of one state makes all of them so.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serve_helpers import Served, events

from pmlm.cli import run
from pmlm.lm import LM
from pmlm.writer import CORNERED, MOST_ATTEMPTS

CORNERING: dict[str, Any] = {"template": "The [MASK:6|ends=s] ___.", "num_words": 5, "order": "random"}
IMPOSSIBLE: dict[str, Any] = {"template": "Tom saw [WORD|in=cat]", "ban": ["cat"], "whole_words": False, "seed": 1}


@pytest.fixture(scope="module", autouse=True)
def one_by_one() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pmlm.generation.demands.MOST_STATES", 1)
        yield


@pytest.fixture(scope="module")
def cornered(model: LM) -> dict[int, tuple[int, str]]:
    """Seeds with how often the library had to begin anew, and what it wrote then."""
    found = {}
    for seed in range(8):
        stream = model.stream(**CORNERING, seed=seed)
        text = stream.finish().text
        found[seed] = (stream._attempts, text)
    assert max(attempts for attempts, _ in found.values()) > 0, "no seed is cornered: take another template"
    return found


def test_a_cornered_text_is_begun_anew_and_is_then_the_librarys(
    served: Served, cornered: dict[int, tuple[int, str]]
) -> None:
    before = served.service.metrics.value("pmlm_restarts_total")
    for seed, (attempts, text) in cornered.items():
        told = list(events(served, **CORNERING, seed=seed))
        restarts = [data for name, data in told if name == "restart"]
        assert [data["attempt"] for data in restarts] == list(range(2, attempts + 2))
        assert told[-1][1]["text"] == text
        last = max((i for i, (name, _) in enumerate(told) if name in ("draft", "restart")))
        canvas = restarts[-1]["draft"] if restarts else told[0][1]["drafts"][0]
        steps = [data for name, data in told[last + 1 :] if name == "step"]
        assert [data["step"] for data in steps] == list(range(1, len(steps) + 1))
        for data in steps:
            assert canvas[data["position"]] is None
            canvas[data["position"]] = data["token"]
        assert canvas == told[-1][1]["tokens"]
    again = sum(attempts for attempts, _ in cornered.values())
    assert served.service.metrics.value("pmlm_restarts_total") == before + again


def test_several_texts_and_requests_are_each_begun_anew_by_themselves(
    served: Served, cornered: dict[int, tuple[int, str]]
) -> None:
    texts = [text for _, text in cornered.values()]
    with ThreadPoolExecutor(4) as pool:
        first, second, *alone = pool.map(
            lambda body: served.post("/v1/generate", **CORNERING, **body).json(),
            [{"seed": 0, "n": 8}, {"seed": 4, "n": 4}, {"seed": 3}, {"seed": 5}],
        )
    assert [result["text"] for result in first["results"]] == texts
    assert [result["text"] for result in second["results"]] == texts[4:]
    assert [result["text"] for result in alone] == [texts[3], texts[5]]
    assert served.settled()


def test_no_way_at_all_is_said_in_the_command_lines_words(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", IMPOSSIBLE["template"], "--ban", "cat", "--any-pieces", "--seed", "1"]
    assert run(command) == 2
    line = capsys.readouterr().err.strip()
    assert f"in {MOST_ATTEMPTS} attempts" in line
    answer = served.post("/v1/generate", **IMPOSSIBLE)
    assert (answer.status_code, answer.json()) == (422, {"error": line})
    told = list(events(served, **IMPOSSIBLE))
    assert [name for name, _ in told if name != "step"] == ["draft", *["restart"] * (MOST_ATTEMPTS - 1), "error"]
    assert told[-1][1] == {"error": line}
    assert served.settled()


SHORTCUTS: list[dict[str, Any]] = [
    {"parallel": "count:3"},
    {"speculative": 3},
    {"approximate_cache": 4, "visibility": "bidirectional"},
]


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_texts_that_take_a_shortcut_are_begun_anew_too(served: Served, model: LM, shortcut: dict[str, Any]) -> None:
    found = [model.fill(**CORNERING, **shortcut, seed=seed) for seed in range(8)]
    assert max(filled.attempts for filled in found) > 1, "no seed is cornered: take another template"
    answer = served.post("/v1/generate", **CORNERING, **shortcut, seed=0, n=8)
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [(r["text"], r["attempts"]) for r in results] == [(filled.text, filled.attempts) for filled in found]
    no_way = served.post("/v1/generate", **IMPOSSIBLE, **shortcut)
    assert (no_way.status_code, no_way.json()) == (422, {"error": f"ConstraintError: {CORNERED}"})
    assert served.settled()


def test_a_template_as_it_is_filled_can_be_asked_for_again(served: Served) -> None:
    """Words placed and lengths chosen: what was written there may stand there, whatever the seed."""
    asked = {"template": "The ___ saw [MASK:3-6] by the ___. [MASK:4]", "must": ["kite"], "seed": 4}
    told = list(events(served, **asked))
    template, document = told[0][1]["templates"][0], told[-1][1]
    written = [[position, document["tokens"][position]] for position in document["order"]]
    again = served.post("/v1/generate", template=template, seed=99, written=written)
    assert again.status_code == 200, again.text
    assert again.json()["tokens"] == document["tokens"]
    other = list(events(served, template=template, seed=100))
    assert [token is None for token in other[0][1]["drafts"][0]] == [token is None for token in told[0][1]["drafts"][0]]
