"""Words of unknown length, scattered words, streams, guesses at a mask, and the paper's Algorithm 1 as written."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import TableModel, bare_batch
from pmlm import Filled, Step, load
from pmlm.errors import ConfigError, ConstraintError, DataError, OrderError, RunError, TemplateError
from pmlm.generation.canvas import Role, allowed_pieces
from pmlm.generation.layouts import scatter
from pmlm.generation.template import Blank, Given, parse_template, template_source
from pmlm.likelihood import order_logp
from pmlm.model import Slots
from pmlm.runtime import generator
from pmlm.visibility import NEVER, bidirectional_inputs
from test_lm import TOKENIZER, make_lm


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "a",
                " b",
                "[MASK]",
                " [MASK:3]",
                "[MASK:2|open]",
                "___",
                " ___",
                "\\[",
                "\\_",
                "\\\\",
                "\\",
                "_",
                "MASK]",
                "[",
                "\n",
            ]
        ),
        max_size=6,
    )
)
def test_a_template_s_source_reads_back_as_itself(parts: list[str]) -> None:
    template = parse_template("".join(parts))
    assert parse_template(template_source(template)) == template


def test_open_blanks() -> None:
    assert parse_template("fox[MASK:3|open] x").segments == (Given("fox"), Blank(3, None), Given(" x"))
    assert parse_template("[MASK|open]").segments == (Blank(1, True),)
    with pytest.raises(TemplateError, match=r"unknown option 'shut' in '\[MASK:3\|shut\]'. Known: open"):
        parse_template("[MASK:3|shut]")


@pytest.mark.parametrize("visibility", ["bidirectional", "known-only", "order-causal"])
def test_what_stays_hidden_is_summed_out(visibility: str) -> None:
    """log p(context | n hidden slots): on a table, the logarithm of the marginal."""
    model = TableModel(vocab=4, length=3)
    row = [2, 1, 3]
    rank = torch.tensor([[1, NEVER, 2]])
    logp = order_logp(model, bare_batch(row), rank, visibility)  # type: ignore[arg-type]
    assert logp.sum().item() == pytest.approx(model.joint[2, :, 3].sum().log().item(), abs=1e-5)
    assert logp[0, 1] == 0


@pytest.mark.parametrize("visibility", ["bidirectional", "order-causal"])
@pytest.mark.parametrize("template", ["A ___ ran.", "___ and ___", "Tom saw ___s; un___ [MASK:2] ___."])
def test_a_word_blank_becomes_one_word(template: str, visibility: str) -> None:
    lm = make_lm()
    pattern = re.compile(
        re.sub(r"___", r"[^\\W_]+(?:'[^\\W_]+)*", template.replace("[MASK:2]", ".+").replace(".", r"\.")).replace(
            r"\.+", ".+"
        )
    )
    sizes = set()
    for seed in range(6):
        filled = lm.fill(template, seed=seed, visibility=visibility)
        assert pattern.fullmatch(filled.text), filled.text
        sizes.add(len(filled.order))
        assert "\\" not in filled.template
    assert len(sizes) > 1 or template.startswith("Tom")  # random weights leave the length open


def test_a_word_blank_is_scored_as_it_was_written() -> None:
    lm = load()
    for seed in range(5):
        filled = lm.fill("Tom is a ___ and Jerry is a ___.", seed=seed)
        score = lm.score(filled.text, given=filled.template, order=filled.order)
        assert score.nll == pytest.approx(filled.nll, abs=1e-4)


def test_a_left_to_right_model_fills_a_last_word() -> None:
    gpt = make_lm(visibilities=("causal",))
    assert len(gpt.fill("Tom is ___", order="l2r", seed=1).text.split()) == 3
    with pytest.raises(OrderError, match="after a blank"):
        gpt.fill("Tom ___ is", order="l2r")


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 1000), extra=st.integers(1, 12))
def test_scattered_words_keep_their_order_and_the_length_is_kept(seed: int, extra: int) -> None:
    words = "The little fox ran"
    least = sum(len(TOKENIZER.encode_inner(" " + word)) for word in words.split())
    template = scatter(words, least + extra, TOKENIZER, generator(seed))
    assert sum(blank.num_tokens or 0 for blank in template.blanks) == extra
    assert "".join(s.text for s in template.segments if isinstance(s, Given)).split() == words.split()
    assert parse_template(template_source(template)) == template


def test_every_way_to_scatter_is_as_likely() -> None:
    counts: dict[str, int] = {}
    for seed in range(1200):
        source = template_source(scatter("a b", 4, TOKENIZER, generator(seed, "scatter")))
        counts[source] = counts.get(source, 0) + 1
    assert len(counts) == 6  # two blanks over three gaps
    assert all(abs(n - 200) < 5 * math.sqrt(200) for n in counts.values()), counts


def test_scattering_what_does_not_fit_is_refused() -> None:
    lm = make_lm()
    with pytest.raises(TemplateError, match="take 2 tokens: give a length of at least 3"):
        lm.scatter("a a", 2, seed=0)
    with pytest.raises(TemplateError, match="no words"):
        lm.scatter("  ", 9, seed=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_writer_is_algorithm_1_token_for_token(seed: int) -> None:
    """The paper's loop as written: a random permutation, a full pass per token, a draw from the softmax."""
    lm = make_lm()
    size = 7
    filled = lm.fill(f"[MASK:{size}]", order="random", visibility="bidirectional", seed=seed)

    rng = generator(seed, "decode", 0)
    order = torch.randperm(size, generator=rng).tolist()
    ids = torch.tensor([[TOKENIZER.start_id, *[TOKENIZER.mask_id] * size, TOKENIZER.end_id]])
    from pmlm.batch import make_batch

    batch = make_batch(ids.tolist(), [[True] * (size + 2)], pad_id=TOKENIZER.pad_id)
    allowed = torch.from_numpy(allowed_pieces(TOKENIZER))
    draws = torch.rand(32, generator=rng, dtype=torch.float64)
    for turn, i in enumerate(order):
        with torch.no_grad():
            logits = lm.model(bidirectional_inputs(batch, ids), Slots(torch.tensor([0]), torch.tensor([i + 1])))[0]
        logits[~allowed[Role.SPACE if i == 0 else Role.FREE]] = -torch.inf
        ids[0, i + 1] = torch.searchsorted(logits.double().softmax(0).cumsum(0), draws[turn], right=True)
    assert filled.order == order
    assert filled.tokens == [TOKENIZER.show(i) for i in ids[0, 1:-1].tolist()]


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    def put_draft(self, canvas: object) -> None:
        self.calls.append(("draft", canvas))

    def put(self, step: Step) -> None:
        self.calls.append(("put", step))

    def end(self) -> None:
        self.calls.append(("end", None))


def test_a_stream_shows_every_step_and_ends_in_the_same_text() -> None:
    lm = load()
    whole = lm.fill("Tom is [MASK:5] home.", seed=4, order="confidence")
    stream = lm.stream("Tom is [MASK:5] home.", seed=4, order="confidence")
    with pytest.raises(RunError, match="not finished"):
        _ = stream.result
    steps = list(stream)
    assert stream.result == whole
    assert [s.position for s in steps] == whole.order
    assert [s.number for s in steps] == [1, 2, 3, 4, 5]
    assert [list(s.canvas) for s in steps] == whole.states()[1:]
    assert stream.draft == whole.states()[0]

    recorder = Recorder()
    assert lm.fill("Tom is [MASK:5] home.", seed=4, order="confidence", streamer=recorder) == whole
    assert [name for name, _ in recorder.calls] == ["draft", *["put"] * 5, "end"]
    assert [step for _, step in recorder.calls[1:-1]] == steps


def test_guesses_at_a_mask_have_hugging_face_s_keys() -> None:
    lm = load()
    guesses = lm.fill_mask("Tom is a [MASK] and Jerry is a mouse.", top_k=3)
    assert [set(guess) for guess in guesses] == [{"score", "token", "token_str", "sequence"}] * 3
    assert guesses[0]["score"] >= guesses[1]["score"] >= guesses[2]["score"] > 0
    for guess in guesses:
        alone = lm.score(guess["sequence"], given="Tom is a [MASK] and Jerry is a mouse.")
        assert math.exp(-alone.nll) == pytest.approx(guess["score"], rel=1e-4)
    several = lm.fill_mask("[MASK] is a [MASK].", top_k=2)
    assert [len(one) for one in several] == [2, 2]
    assert several[0][0]["sequence"].endswith(" is a[MASK].")
    asked = lm.fill_mask("Tom is a [MASK].", targets=[" cat", " mouse"])
    assert sorted(guess["token_str"] for guess in asked) == [" cat", " mouse"]
    with pytest.raises(DataError, match="is not one token"):
        lm.fill_mask("Tom is a [MASK].", targets=["xylophone"])
    with pytest.raises(ConfigError, match="top_k"):
        lm.fill_mask("Tom is a [MASK].", top_k=0)
    assert [guess["token_str"] for guess in lm.fill_mask("Tom is a [MASK].", targets=" cat")] == [" cat"]


def test_guesses_at_a_mask_are_within_its_limits() -> None:
    lm = load()
    assert {guess["token_str"] for guess in lm.fill_mask("Tom is a [MASK|in=cat,dog].")} == {" cat", " dog"}
    assert all(guess["token_str"].startswith(" b") for guess in lm.fill_mask("Tom is a [MASK|starts=b].", top_k=9))
    with pytest.raises(ConstraintError, match="regular expression"):
        lm.fill_mask("Tom is a [MASK|regex=(].")


def test_a_text_whose_blank_begins_a_line_fits_its_template() -> None:
    template = "Tom was happy.[MASK:3] He ran."
    filled = load().fill(template, seed=0, written=[(4, "\n")], visibility="order-causal")
    assert filled.text.startswith("Tom was happy.\n")
    assert load().score(filled.text, given=template).nll == pytest.approx(filled.nll, abs=1e-3)


def test_an_open_word_is_a_word_of_its_own() -> None:
    for seed in range(4):
        text = load().fill("The fox[WORD|open] was red.", seed=seed).text
        assert re.fullmatch(r"The fox \w+ was red\.", text), text


def test_a_left_to_right_model_goes_on_only_from_what_stands_at_the_left() -> None:
    lm, template = make_lm(visibilities=("causal",)), "Once upon a time[MASK:6|open]"
    first = lm.fill(template, seed=1)
    position = first.order[0]
    again = lm.fill(template, seed=2, written=[(position, first.tokens[position])])
    assert again.tokens[position] == first.tokens[position]
    with pytest.raises(OrderError, match="cannot have written position"):
        lm.fill(template, written=[(position + 2, first.tokens[position])])


def test_spaces_are_never_doubled() -> None:
    lm = make_lm()  # random weights
    for seed in range(10):
        text = lm.fill("A [MASK:6] b [MASK] c[MASK:3|open] d", seed=seed, whole_words=False).text
        assert "  " not in text
        assert not text.endswith(" ")


def test_a_result_shows_itself_in_a_notebook() -> None:
    shown = Filled(
        text="a <b> c", tokens=[" a", " <b>", " c"], order=[1], logp=[math.log(0.5)], sampled_logp=[0.0], seed=1,
        visibility="bidirectional", template="a [MASK] c", passes=1,
    )._repr_html_()  # fmt: skip
    assert " &lt;b&gt;<sub" in shown
    assert "step 1, p = 0.5" in shown
    assert shown.count("<sub") == 1


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match="unknown option 'temprature'"):
        load().fill("a [MASK]", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(DataError, match="2 templates need as many seeds, got 1"):
        load().fill_batch(["a [MASK]"] * 2, seeds=[1])
