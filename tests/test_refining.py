"""Refinement: given text stays, constraints hold, likelihoods are exact, and greedy passes make noise likelier."""

import pytest

from pmlm import load
from pmlm.errors import ConfigError, OrderError
from test_lm import make_lm

LM = load()
TEMPLATE = "Tom is a [MASK:3] and [WORD|in=Jerry,Anna]. [MASK:6] ___ end."


@pytest.mark.parametrize("method", ["mask-predict", "gibbs"])
@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
def test_rewriting_keeps_what_is_given_and_its_likelihoods_are_exact(method: str, visibility: str) -> None:
    filled = LM.fill(TEMPLATE, seed=3, visibility=visibility, ban=["the"], temperature=2.0)
    refined = LM.refine(filled, method=method, passes=2, seed=1, ban=["the"])  # type: ignore[arg-type]
    assert refined.text.startswith("Tom is a ")
    assert refined.text.endswith(" end.")
    assert " Jerry. " in refined.text or " Anna. " in refined.text
    assert " the " not in refined.text.lower()
    assert refined.changed
    assert all(refined.tokens[i] != filled.tokens[i] for i in refined.changed)
    unchanged = set(range(len(filled.tokens))) - set(refined.changed)
    assert all(refined.tokens[i] == filled.tokens[i] for i in unchanged)
    for text, nll in ((filled.text, refined.nll_before), (refined.text, refined.nll_after)):
        score = LM.score(text, given=filled.template, order="l2r", visibility=visibility)
        assert score.nll == pytest.approx(nll, abs=1e-3)
    again = LM.refine(filled, method=method, passes=2, seed=1, ban=["the"])  # type: ignore[arg-type]
    assert again == refined


def test_greedy_rewriting_makes_a_noisy_text_likelier() -> None:
    gain = 0.0
    for seed in range(4):
        filled = LM.fill("Tom is a cat. [MASK:16] the end.", seed=seed, temperature=2.5, visibility="bidirectional")
        refined = LM.refine(filled, passes=3, seed=seed, temperature=0.0)
        gain += refined.nll_before - refined.nll_after
    assert gain > 20


def test_what_cannot_be_refined_is_refused() -> None:
    filled = LM.fill("Tom [MASK:3]", seed=1)
    with pytest.raises(ConfigError, match="unknown refinement 'polish'"):
        LM.refine(filled, method="polish")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="passes"):
        LM.refine(filled, passes=0)
    gpt = make_lm(visibilities=("causal",))
    with pytest.raises(OrderError, match="rewrite"):
        gpt.refine(gpt.fill("Tom [MASK:3]", order="l2r", seed=1))


def test_what_was_written_first_may_be_refined_too() -> None:
    filled = LM.fill("Tom [MASK:4]", seed=1, written=[(1, " is")])
    assert LM.refine(filled, passes=1, seed=1, written=[(1, " is")]).text.startswith("Tom ")
