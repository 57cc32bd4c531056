"""pmlm generate: text, JSON, seeds, traces."""

import io
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cli import Capture, ok, refused

from pmlm.cli import run
from pmlm.orders import DEFAULT_ORDER

TEMPLATE = "Tom is a cat and Jerry is a [MASK]. [MASK:6]"


def test_generate_prints_the_text_and_says_the_seed(capsys: Capture) -> None:
    assert run(["generate", TEMPLATE, "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Tom is a cat and Jerry is a ")
    assert captured.err == "seed 3, order-causal\n"
    assert ok(capsys, "generate", TEMPLATE, "--seed", "3") == captured.out


@pytest.mark.parametrize("order", ["l2r", "nearest", "confidence"])
@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
def test_score_given_reproduces_what_generate_reported(capsys: Capture, order: str, visibility: str) -> None:
    arguments = ["--seed", "1", "--order", order, "--visibility", visibility, "--top-p", "0.9", "--json"]
    document = json.loads(ok(capsys, "generate", TEMPLATE, *arguments))
    assert set(document) >= {"text", "tokens", "order", "logp", "nll", "seed", "visibility"}
    along = ",".join(map(str, document["order"]))
    score = json.loads(
        ok(
            capsys,
            "score",
            document["text"],
            "--given",
            TEMPLATE,
            "--order",
            along,
            "--visibility",
            visibility,
            "--json",
        )
    )
    assert score["nll"] == pytest.approx(document["nll"], abs=1e-4)


def test_the_default_order_is_the_librarys(capsys: Capture) -> None:
    document = json.loads(ok(capsys, "generate", TEMPLATE, "--seed", "3", "--json"))
    assert document == json.loads(ok(capsys, "generate", TEMPLATE, "--seed", "3", "--json", "--order", DEFAULT_ORDER))


def test_several_come_from_following_seeds(capsys: Capture) -> None:
    results = json.loads(ok(capsys, "generate", TEMPLATE, "-n", "3", "--seed", "5", "--json"))["results"]
    assert [r["seed"] for r in results] == [5, 6, 7]
    alone = json.loads(ok(capsys, "generate", TEMPLATE, "--seed", "6", "--json"))
    assert results[1]["text"] == alone["text"]


def test_the_best_of_several_is_the_likeliest_and_its_own_seed_writes_it(capsys: Capture) -> None:
    every = json.loads(ok(capsys, "generate", TEMPLATE, "-n", "6", "--seed", "15", "--json"))["results"]
    best = [min(group, key=lambda r: r["nll"]) for group in (every[:3], every[3:])]
    chosen = ["generate", TEMPLATE, "-n", "2", "--best-of", "3", "--seed", "5"]
    results = json.loads(ok(capsys, *chosen, "--json"))["results"]
    assert results == [{**r, "best_of": 3} for r in best]
    assert run(chosen) == 0
    said = capsys.readouterr()
    assert said.out == "".join(r["text"] + "\n" for r in best)
    seeds = f"seed {best[0]['seed']}, {best[1]['seed']}"
    assert said.err == f"{seeds}, the likeliest of 3 each of seeds 15 to 20, order-causal\n"
    second = json.loads(ok(capsys, "generate", TEMPLATE, "--best-of", "3", "--seed", "6", "--json"))
    assert second == results[1]  # the next seed: nothing in common with the first
    assert ok(capsys, "generate", TEMPLATE, "--seed", str(best[1]["seed"])) == best[1]["text"] + "\n"
    assert "--best-of must be at least 1" in refused(capsys, "generate", TEMPLATE, "--best-of", "0")


def test_where_words_fill_every_blank_nothing_is_written(capsys: Capture) -> None:
    full = ["generate", "The [MASK:1] ran.", "--must", "cat", "--seed", "3"]
    assert ok(capsys, *full) == "The cat ran.\n"
    document = json.loads(ok(capsys, *full, "-n", "2", "--best-of", "2", "--json"))
    assert [(r["text"], r["order"], r["nll"], r["seed"]) for r in document["results"]] == [
        ("The cat ran.", [], 0, 6),
        ("The cat ran.", [], 0, 8),
    ]


def test_the_trace_shows_every_state(capsys: Capture) -> None:
    lines = ok(capsys, "generate", "Tom is [MASK:4]", "--trace", "--seed", "1").splitlines()
    assert len(lines) == 6
    assert [line.count("_") for line in lines[:5]] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "no blank"], "no blank"),
        (["generate", "[MASK:0]"], "from 1 on"),
        (["generate", "[MASK:500]"], "reads 128"),
        (["generate", "[MASK"], "not closed"),
        (["generate", "Tom [MASK] is", "--order", "0"], "names position 0"),
        (["generate", "[MASK]", "-n", "0"], "--num"),
        (["generate", "[MASK]", "--written", "5"], "--written takes a JSON list"),
        (["generate", "[MASK]", "--written", "[" * 100_000], "--written takes a JSON list"),
        (["generate", "[MASK]", "--words", "a b", "--length", "9"], "not several"),
        (["generate", "--acrostic", "Tom", "--words", "a b", "--length", "9"], "not several"),
        (["generate", "--words", "a b"], "--words needs --length"),
        (["generate", "[MASK]", "--length", "9"], "goes with --words or --acrostic"),
        (["generate", "--acrostic", "T om"], "one word of letters"),
        (["generate", "--acrostic", "Tom", "--length", "0"], "from 1 on"),
        (["generate", "[MASK:3]", "--num-tokens", "9"], "has 3 tokens, not 9"),
        (["generate", "[MASK]", "--refine", "polish"], "unknown refinement"),
        (["generate", "--words", "a b", "--length", "900"], "reads 128"),
        (["generate", "[MASK]", "--json", "--jsonl"], "--json"),
        (["generate", "[MASK]", "--interactive"], "give none"),
        (["generate", "A [MASK:4].", "--must", "caf\udce9"], "not Unicode"),
        (["generate", "A [MASK:2|regex=" + "(" * 2000 + "a" + ")" * 2000 + "]"], "groups within each other"),
        (["bench", "export", "--file", "README.md", "--context", "0"], "--context must be at least 3"),
        (["generate", "[MASK]", "--trace", "--json"], "--trace"),
        (["generate", "[MASK]", "--passes", "2"], "--refine"),
        (["generate", "[MASK]", "--ban", "two words"], "one word"),
        (["generate", "[MASK]", "--temperature", "-1"], "temperature"),
        (["generate", "[MASK]", "--visibility", "causal"], "not trained for"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refused(capsys, *arguments)


def test_words_are_scattered_by_the_seed(capsys: Capture) -> None:
    arguments = ["generate", "--words", "Tom and Jerry", "--length", "20", "--json", "-n", "2", "--seed", "1"]
    one, two = json.loads(ok(capsys, *arguments))["results"]
    assert one["template"] != two["template"]
    for result in (one, two):
        at = -1
        for word in ("Tom", "and", "Jerry"):
            at = result["text"].index(word, at + 1)
        assert len(result["tokens"]) == 20


def test_lines_of_json_and_banned_words(capsys: Capture) -> None:
    lines = ok(
        capsys, "generate", TEMPLATE, "-n", "2", "--seed", "5", "--jsonl", "--ban", "the", "--ban", "was"
    ).splitlines()
    documents = [json.loads(line) for line in lines]
    assert [document["seed"] for document in documents] == [5, 6]
    assert (
        refused(capsys, "generate", TEMPLATE, "--ban", "Tom")
        == "ConstraintError: nothing that the template leaves open can satisfy the banned words: "
        "no way is left at position 1\n"
    )


def test_second_thoughts_are_part_of_the_document(capsys: Capture) -> None:
    arguments = ["generate", TEMPLATE, "--seed", "1", "--refine", "gibbs", "--passes", "1"]
    document = json.loads(ok(capsys, *arguments, "--json"))
    assert document["refined"]["text"] == ok(capsys, *arguments).rstrip("\n")
    assert document["refined"]["nll_before"] > 0
    assert "Known: mask-predict, gibbs" in refused(capsys, "generate", TEMPLATE, "--refine", "polish")
    assert "passes" in refused(capsys, "generate", TEMPLATE, "--refine", "gibbs", "--passes", "0")


def test_second_thoughts_say_what_they_changed(capsys: Capture) -> None:
    assert run(["generate", TEMPLATE, "--seed", "1", "--refine", "gibbs", "--passes", "1"]) == 0
    assert re.search(r"rewritten: nll [0-9.]+ -> [0-9.]+\n", capsys.readouterr().err)


def test_an_acrostic_and_a_number_of_tokens_are_flags(capsys: Capture) -> None:
    lines = ok(capsys, "generate", "--acrostic", "tom", "--length", "5", "--seed", "1").rstrip("\n").split("\n")
    assert [line[0] for line in lines] == ["T", "O", "M"]
    document = json.loads(ok(capsys, "generate", "Tom [MASK:*].", "--num-tokens", "12", "--seed", "1", "--json"))
    assert len(document["tokens"]) == 12
    assert document["attempts"] == 1


def test_a_text_begun_anew_is_said(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pmlm.generation.demands.MOST_STATES", 1)
    asked = ["generate", "Tom saw a [MASK:2|in=little cat,big dog] there.", "--ban", "cat", "-n", "8", "--seed", "0"]
    assert run(asked) == 0
    assert re.search(r"begun anew [0-9]+ times? for the constraints' sake", capsys.readouterr().err)


def test_templates_come_from_stdin_one_by_one_if_asked(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom is [MASK:3]\n"))
    assert ok(capsys, "generate", "--seed", "1").startswith("Tom is ")
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom is [MASK:3]\n[MASK\nAnna ___ .\n\nnever read\n"))
    assert run(["generate", "--interactive", "--seed", "1"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()] == ["Tom", "Anna"]
    assert "TemplateError: the blank that opens at character 0 is not closed" in captured.err


def test_the_canvas_fills_up_on_a_terminal() -> None:
    from rich.console import Console

    from pmlm import load
    from pmlm.cli.live_canvas import LiveCanvas

    screen = io.StringIO()
    view = LiveCanvas(Console(file=screen, force_terminal=True, width=100))
    filled = load().fill("Tom is [MASK:3] home.", seed=1, streamer=view)
    for token in filled.tokens:
        assert token.strip() in screen.getvalue()
    assert " _" in screen.getvalue()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    source=st.one_of(
        st.text(max_size=25),
        st.lists(
            st.sampled_from(["[MASK]", "[MASK:3]", "[MASK:0]", "[MASK:-1]", "[MASK:x]", "[MASK", "]", "[", "___", "__", " ", "\\", "Tom", "é", "\n", "[MASK:2|open]", "[MASK|x]", "[MASK:999]", "\ud800"]),
            max_size=6,
        ).map("".join),
    ),
    order=st.sampled_from(["random", "l2r", "nearest", "confidence", "0", "1,0", "5", "x", "", "-1", "0,0"]),
)  # fmt: skip
def test_no_template_ends_in_a_traceback(capsys: Capture, source: str, order: str) -> None:
    code = run(["generate", "--seed", "1", "--order", order, "--", source if source != "-" else "--"])
    captured = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert "Traceback" not in captured.err


def test_lines_that_are_no_unicode_are_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9 [MASK]\n"), encoding="utf-8"))
    assert "cannot read stdin" in refused(capsys, "generate", "--interactive")
