"""The facade: texts, templates and candidates scored exactly."""

import itertools
import math
import os
from pathlib import Path

import pytest

from conftest import STORIES
from fakes import tiny_config
from pmlm import load
from pmlm.errors import ConfigError, DataError, OrderError, TemplateError
from pmlm.lm import LM
from pmlm.model import build_model
from pmlm.runtime import generator
from pmlm.tokenizer import train_tokenizer
from pmlm.words import WordTable

TOKENIZER = train_tokenizer(STORIES, vocab_size=300)


def make_lm(words: WordTable | None = None, **changes: object) -> LM:
    config = tiny_config(
        vocab_size=300, max_length=40, mask_id=TOKENIZER.mask_id, forbidden_ids=TOKENIZER.forbidden_ids, **changes
    )
    return LM(build_model(config, generator(3, "lm")).eval(), TOKENIZER, {}, None, words)


RANDOM = make_lm()


@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
@pytest.mark.parametrize("order", ["l2r", "r2l", "random", "confidence", "margin", "entropy"])
def test_a_score_says_what_it_means(visibility: str, order: str) -> None:
    text = "The little fox ran."
    score = RANDOM.score(text, order=order, seed=4, visibility=visibility)
    document = score.to_dict()
    assert "".join(document["tokens"]) == " " + text
    assert sorted(document["order"]) == list(range(len(document["tokens"])))
    assert document["nll"] == pytest.approx(-sum(document["logp"]))
    assert document["perplexity"] == pytest.approx(math.exp(document["nll"] / len(document["tokens"])))
    assert document["bits_per_byte"] == pytest.approx(document["nll"] / math.log(2) / len(text.encode()))
    assert (document["seed"], document["visibility"]) == (4, visibility)
    again = RANDOM.score(text, order=",".join(map(str, score.order)), visibility=visibility)
    assert again.logp == pytest.approx(score.logp, abs=1e-4)


def test_seeds_draw_orders() -> None:
    orders = {tuple(RANDOM.score("Tom is a cat.", order="random", seed=s).order) for s in range(5)}
    assert len(orders) > 1
    assert (
        RANDOM.score("Tom is a cat.", order="random", seed=1).order
        == RANDOM.score("Tom is a cat.", order="random", seed=1).order
    )


@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
def test_blanks_are_scored_jointly_by_the_chain_rule(visibility: str) -> None:
    text, template = "Tom is a cat and Jerry is a mouse.", "Tom is a ___ and Jerry is a ___."
    score = RANDOM.score(text, given=template, visibility=visibility)
    scored = [i for i, x in enumerate(score.logp) if x is not None]
    assert "".join(score.tokens[i] for i in scored) == " cat mouse"
    assert score.num_bytes == len(" cat" + " mouse")
    first = RANDOM.score(text, given="Tom is a ___ and Jerry is a mouse.", visibility=visibility)
    second = RANDOM.score(text, given="Tom is a cat and Jerry is a ___.", visibility=visibility)
    alone = [x for x in first.logp if x is not None]
    if visibility == "bidirectional":  # the last token of the order is scored with everything else known
        last = [x for x in second.logp if x is not None][-1]
        assert score.logp[scored[-1]] == pytest.approx(last, abs=1e-4)
    assert sum(alone) != pytest.approx(sum(score.logp[i] for i in scored if i < 6))  # type: ignore[misc]


def test_scoring_everything_as_blanks_is_scoring_the_text() -> None:
    text = "Tom is a cat."
    tokens = len(TOKENIZER.encode(text))
    whole, blank = RANDOM.score(text), RANDOM.score(text, given=f"[MASK:{tokens}]")
    assert blank.logp == pytest.approx(whole.logp, abs=1e-5)


def test_candidates_are_ranked_by_their_joint_probability() -> None:
    words = ["cat", "mouse", "dog"]
    pairs = [list(p) for p in itertools.product(words, repeat=2)]
    ranked = RANDOM.rank("Tom is a ___ and Jerry is a ___.", pairs)
    assert [r.score.nll for r in ranked] == sorted(r.score.nll for r in ranked)
    assert sum(r.share for r in ranked) == pytest.approx(1)
    assert ranked[0].share / ranked[1].share == pytest.approx(math.exp(ranked[1].score.nll - ranked[0].score.nll))


def test_candidates_are_scored_as_they_were_given_even_where_the_text_could_be_cut_otherwise() -> None:
    one, two = RANDOM.rank("the ___-___ end", [["a-b", "c"], ["a", "b-c"]])
    assert one.score.text == two.score.text == "the a-b-c end"
    assert [x is None for x in one.score.logp] != [x is None for x in two.score.logp]
    assert [r.fillings for r in RANDOM.rank("the ___ end", ["cat", "dog"])] in ([["cat"], ["dog"]], [["dog"], ["cat"]])


def test_bits_per_byte_of_blanks_can_be_checked_from_the_document() -> None:
    document = RANDOM.score("Tom is a cat.", given="Tom is a ___.").to_dict()
    assert document["bytes"] == len(" cat")
    assert document["bits_per_byte"] == pytest.approx(document["nll"] / math.log(2) / document["bytes"])
    assert (
        RANDOM.score(
            "a  b", given="a [MASK]b" if len(TOKENIZER.encode_inner("  ")) == 1 else "a [MASK:2]b"
        ).bits_per_byte
        > 0
    )


def test_an_order_may_be_a_list_of_numbers() -> None:
    score = RANDOM.score("Tom is", order="random", seed=1)
    assert RANDOM.score("Tom is", order=score.order).logp == pytest.approx(score.logp, abs=1e-5)


def test_the_best_of_texts_of_several_lengths_is_the_likeliest_per_token() -> None:
    template = "The [MASK:1-9] fox"
    each = [RANDOM.fill(template, seed=seed) for seed in range(16, 24)]
    assert len({len(text.tokens) for text in each}) > 2
    best = RANDOM.fill(template, seed=2, best_of=8)
    assert best.mean_logp == pytest.approx(max(math.fsum(text.logp) / len(text.logp) for text in each), abs=1e-4)
    assert best.nll > min(text.nll for text in each)  # a short text is not kept for its length
    assert (best.best_of, best.text) == (8, RANDOM.fill(template, seed=best.seed).text)


def test_the_best_of_none_and_a_streamer_of_many_are_refused() -> None:
    with pytest.raises(ConfigError, match="best_of must be at least 1, got 0"):
        RANDOM.fill("The [MASK:2]", best_of=0)

    class Silent:
        def put_draft(self, canvas: object, /) -> None: ...
        def put(self, step: object, /) -> None: ...
        def end(self) -> None: ...

    with pytest.raises(ConfigError, match="streamer"):
        RANDOM.fill("The [MASK:2]", best_of=2, streamer=Silent())


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(DataError, match="not Unicode"):
        RANDOM.score("a \ud800 b")
    with pytest.raises(DataError, match="no text"):
        RANDOM.score("")
    with pytest.raises(DataError, match="reads 40"):
        RANDOM.score("word " * 50)
    with pytest.raises(TemplateError, match="no blank"):
        RANDOM.score("Tom", given="Tom")
    with pytest.raises(OrderError, match="position 9"):
        RANDOM.score("Tom is", order="0,9")
    with pytest.raises(OrderError, match="not trained for"):
        RANDOM.score("Tom is", visibility="causal")
    with pytest.raises(DataError, match="no candidates"):
        RANDOM.rank("a ___", [])
    gpt = make_lm(visibilities=("causal",))
    assert gpt.score("Tom is", given="Tom ___").nll > 0
    with pytest.raises(OrderError, match="after a blank"):
        gpt.score("Tom is a", given="Tom ___ a")
    assert gpt.score("Tom is").visibility == "causal"
    with pytest.raises(OrderError, match="left to right"):
        gpt.score("Tom is", order="random")


def test_the_model_inside_the_package_knows_its_stories() -> None:
    lm = load()
    good = lm.score("Tom is a cat and Jerry is a mouse.", order="random")
    bad = lm.score("Tom cat a is mouse and a Jerry is.", order="random")
    assert good.bits_per_byte < bad.bits_per_byte - 0.3
    for visibility in lm.model.config.visibilities:
        assert lm.score("Tom is a cat.", visibility=visibility).bits_per_byte < 4


def test_saved_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path, model: LM) -> None:
    assert model.words is not None
    before = os.umask(0o022)
    try:
        model.save(tmp_path / "m")
    finally:
        os.umask(before)
    assert {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "m").iterdir()} == dict.fromkeys(
        ("README.md", "config.json", "model.safetensors", "tokenizer.json", "words.safetensors"), 0o644
    )
