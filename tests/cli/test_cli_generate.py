"""pmlm generate: text, JSON, seeds, traces."""

import json

import pytest
from test_cli import Capture, ok, refused

from pmlm.cli import run

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


def test_several_come_from_following_seeds(capsys: Capture) -> None:
    results = json.loads(ok(capsys, "generate", TEMPLATE, "-n", "3", "--seed", "5", "--json"))["results"]
    assert [r["seed"] for r in results] == [5, 6, 7]
    alone = json.loads(ok(capsys, "generate", TEMPLATE, "--seed", "6", "--json"))
    assert results[1]["text"] == alone["text"]


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
        (["generate", "[MASK]", "--temperature", "-1"], "temperature"),
        (["generate", "[MASK]", "--visibility", "causal"], "not trained for"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys: Capture, arguments: list[str], says: str) -> None:
    assert says in refused(capsys, *arguments)
