"""Generation: given text stays, everything is written once, and what is reported is the model's own probability."""

import math

import numpy as np
import pytest
import torch

from fakes import TableModel, bare_batch
from pmlm import load
from pmlm.errors import OrderError, TemplateError
from pmlm.generation.decode import Allowed, decode
from pmlm.generation.sampling import Sampling
from pmlm.generation.steppers import Recompute
from pmlm.orders import parse_order
from pmlm.runtime import generator
from test_lm import make_lm

ORDERS = ["l2r", "r2l", "random", "confidence", "margin", "entropy"]
TEMPLATE = "Tom is a [MASK] and [MASK:3] mouse. [MASK:6]"


@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_writes_each_blank_once_and_keeps_what_is_given(order: str, visibility: str) -> None:
    lm = load()
    filled = lm.fill(TEMPLATE, order=order, seed=3, visibility=visibility)
    assert len(filled.order) == len(set(filled.order)) == 10
    assert filled.text.startswith("Tom is a ")
    assert " and " in filled.text
    assert " mouse. " in filled.text
    assert "".join(filled.tokens) == " " + filled.text
    assert all(x <= 0 for x in filled.logp)
    score = lm.score(filled.text, given=TEMPLATE, order=",".join(map(str, filled.order)), visibility=visibility)
    assert score.nll == pytest.approx(filled.nll, abs=1e-4)
    assert [score.logp[i] for i in filled.order] == pytest.approx(filled.logp, abs=1e-4)


def test_seeds_repeat_and_differ_and_one_is_drawn_where_none_is_given() -> None:
    lm = load()
    assert lm.fill(TEMPLATE, seed=5).text == lm.fill(TEMPLATE, seed=5).text
    assert len({lm.fill(TEMPLATE, seed=s).text for s in range(4)}) > 1
    drawn = lm.fill(TEMPLATE)
    assert lm.fill(TEMPLATE, seed=drawn.seed).text == drawn.text


def test_spaces_before_blanks_decide_word_starts_and_specials_never_come_out() -> None:
    lm = make_lm()  # random weights: everything that is allowed does come out
    for seed in range(20):
        filled = lm.fill("A [MASK] b[MASK:2]", seed=seed)
        assert filled.text.startswith("A ")
        assert filled.tokens[-2][:1] != " "
        assert not set(filled.ids[1:-1]) & {*lm.tokenizer.special_ids, *lm.tokenizer.byte_ids}
        assert "\ufffd" not in filled.text


def test_samples_of_a_table_follow_its_joint_in_any_order() -> None:
    model, rows = TableModel(vocab=3, length=2), 3000
    batch = bare_batch(*([[0, 0]] * rows))
    allowed = Allowed(torch.zeros_like(batch.ids_BL), np.array([[False, True, True]]))
    for order in ("random", "confidence"):
        ids = batch.ids_BL.clone()
        for turn in decode(
            Recompute(model, "bidirectional"),
            batch,
            allowed,
            [parse_order(order)] * rows,
            Sampling(),
            [generator(order, b) for b in range(rows)],
        ):
            for r in turn:
                ids[r.row, r.slot] = r.token
        for a in (1, 2):
            for b in (1, 2):
                share = ((ids[:, 0] == a) & (ids[:, 1] == b)).double().mean().item()
                assert share == pytest.approx(model.joint[a, b].item(), abs=4 * math.sqrt(0.25 / rows))


def test_what_cannot_be_filled_is_refused() -> None:
    lm = load()
    with pytest.raises(TemplateError, match="reads 128"):
        lm.fill("[MASK:200]")
    with pytest.raises(OrderError, match=r"names position 0, which is not among the 1 to predict \(1 to 1\)"):
        lm.fill("Tom [MASK] is", order="0")
    with pytest.raises(TemplateError, match="no blank"):
        lm.fill("Tom is")
    with pytest.raises(OrderError, match="after a blank"):
        make_lm(visibilities=("causal",)).fill("a [MASK] b", order="l2r")


def test_a_left_to_right_model_continues_a_text_and_scores_what_it_wrote() -> None:
    gpt = make_lm(visibilities=("causal",))
    filled = gpt.fill("Tom is [MASK:6]", order="l2r", seed=2)
    assert filled.text.startswith("Tom is ")
    assert gpt.score(filled.text, given="Tom is [MASK:6]").nll == pytest.approx(filled.nll, abs=1e-4)


def test_a_row_is_written_as_if_it_were_alone() -> None:
    lm = load()
    templates = [TEMPLATE, "[MASK:12]", "Anna [MASK] to the park. [MASK:20]"]
    for visibility in ("bidirectional", "order-causal"):
        together = lm.fill_batch(templates, seeds=[1, 2, 3], visibility=visibility, order="random")
        for template, seed, filled in zip(templates, (1, 2, 3), together, strict=True):
            alone = lm.fill(template, seed=seed, visibility=visibility, order="random")
            assert (alone.text, alone.order) == (filled.text, filled.order)
            assert alone.logp == pytest.approx(filled.logp, abs=1e-4)


def test_states_show_the_canvas_filling_up() -> None:
    filled = load().fill("Tom is [MASK:3]", seed=1)
    states = filled.states()
    assert [sum(token is None for token in state) for state in states] == [3, 2, 1, 0]
    assert states[-1] == filled.tokens


def test_a_repetition_penalty_writes_fewer_words_twice() -> None:
    lm = load()

    def repeats(penalty: float) -> int:
        filled = lm.fill_batch(["[MASK:60]"] * 6, seeds=range(6), repetition_penalty=penalty)
        return sum(len(f.tokens) - len(set(f.tokens)) for f in filled)

    assert repeats(1e9) < 0.3 * repeats(1.0)
