"""Held-out texts as templates: what is given keeps its ids, what is hidden is what was asked for."""

import pytest
from bench_helpers import DOCUMENTS

from conftest import STORIES
from pmlm.bench.material import (
    Passage,
    draw_documents,
    draw_hidden_units,
    draw_passages,
    hide_middle,
    hide_rest,
    hide_words,
    read_units,
    sentences,
    shuffle_words,
    template_of,
)
from pmlm.errors import DataError
from pmlm.generation.canvas import make_canvas
from pmlm.generation.template import Blank, Given
from pmlm.lm import LM
from pmlm.runtime import generator
from pmlm.tokenizer import Tokenizer, train_tokenizer

ODD = "Mia's hat fell.\n\n\"Oh no!\" she said.  It was (very) wet... \n\nThe end, at 5 o'clock."


@pytest.fixture(scope="module", params=["reversible", "wordpiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(STORIES, vocab_size=300, kind=request.param)


def passage_of(text: str, tokenizer: Tokenizer) -> Passage:
    return Passage(text, 0, True, read_units(text, tokenizer))


@pytest.mark.parametrize("text", [*STORIES, ODD])
@pytest.mark.parametrize("share", [0.15, 0.5, 0.85])
def test_what_stays_given_keeps_its_ids_and_what_is_hidden_its_size(
    text: str, share: float, tokenizer: Tokenizer
) -> None:
    passage, ids = passage_of(text, tokenizer), tokenizer.encode(text)
    assert passage.num_tokens == len(ids)
    for seed in range(5):
        canvas = make_canvas(hide_words(passage, share, generator(seed)), tokenizer, 500)
        assert len(canvas.row.ids) == len(ids) + 2
        kept = [k for k, hidden in enumerate(canvas.row.maskable) if not hidden]
        framed = [tokenizer.start_id, *ids, tokenizer.end_id]
        assert [canvas.row.ids[k] for k in kept] == [framed[k] for k in kept]


def test_the_share_is_of_words_and_marks_and_never_nothing(tokenizer: Tokenizer) -> None:
    passage = passage_of(STORIES[0], tokenizer)
    assert len(passage.units) == 20  # 18 words and two full stops
    assert len(draw_hidden_units(passage, 0.5, generator(0))) == 10
    assert len(draw_hidden_units(passage, 0.001, generator(0))) == 1
    whole = hide_words(passage, 1, generator(0))
    assert whole.segments == (Blank(passage.num_tokens, starts_word=True),)


def test_neighbours_make_one_blank(tokenizer: Tokenizer) -> None:
    passage = passage_of("Tom is a cat.", tokenizer)
    template = template_of(passage, [1, 2])
    sizes = [unit.num_tokens for unit in passage.units]
    assert template.segments == (Given("Tom"), Blank(sizes[1] + sizes[2], None), Given(" cat."))


def test_line_breaks_stay_given() -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    passage = passage_of(ODD, tokenizer)
    hidden = template_of(passage, draw_hidden_units(passage, 0.99, generator(1)))
    given = "".join(segment.text for segment in hidden.segments if isinstance(segment, Given))
    assert given.count("\n") == ODD.count("\n")


def test_sentences_and_the_middle_of_a_passage(tokenizer: Tokenizer) -> None:
    text = 'A fox ran. "Stop!" said Mia. He did not. The end.'
    assert sentences(text) == ["A fox ran.", '"Stop!"', "said Mia.", "He did not.", "The end."]
    passage = passage_of(text, tokenizer)
    first, blank, last = hide_middle(passage).segments
    assert (first, last) == (Given("A fox ran."), Given(" The end."))
    assert isinstance(blank, Blank)
    given = sum(len(tokenizer.encode(t)) for t in ("A fox ran.", "The end."))
    assert blank.num_tokens == passage.num_tokens - given
    first, blank = hide_rest(passage).segments
    assert first == Given("A fox ran.")
    assert isinstance(blank, Blank)
    assert blank.num_tokens == passage.num_tokens - len(tokenizer.encode("A fox ran."))
    for hide in (hide_middle, hide_rest):
        with pytest.raises(DataError, match="three sentences"):
            hide(passage_of("One. Two.", tokenizer))


def test_passages_are_whole_documents_where_these_fit() -> None:
    tokenizer = train_tokenizer(STORIES, vocab_size=300)
    long = " ".join(STORIES)
    room = len(tokenizer.encode(STORIES[0]))
    found = draw_passages([STORIES[0], long], tokenizer, room=room, count=2, rng=generator(0))
    assert {p.is_whole for p in found} == {True, False}
    short = next(p for p in found if not p.is_whole)
    assert long.startswith(short.text)
    assert short.text.endswith(".")
    assert all(p.num_tokens <= room for p in found)
    with pytest.raises(DataError, match="1 passages of 16 to"):
        draw_passages([STORIES[0]], tokenizer, room=room, count=2, rng=generator(0))


def test_fewer_documents_are_among_more() -> None:
    documents = [f"Document {i}." for i in range(20)]
    few, more = draw_documents(documents, 4, 1), draw_documents(documents, 9, 1)
    assert few.items() < more.items()
    assert list(more) == sorted(more)
    assert draw_documents(documents, 100, 1) == dict(enumerate(documents))


def test_shuffled_words_are_the_same_words() -> None:
    shuffled = shuffle_words(STORIES[0], generator(1))
    assert shuffled != STORIES[0]
    assert sorted(shuffled.split()) == sorted(STORIES[0].split())


def test_passages_may_be_beginnings_alone(model: LM) -> None:
    texts = [*DOCUMENTS, *(" ".join([text] * 9) for text in DOCUMENTS)]
    for beginnings in (False, True):
        found = draw_passages(
            texts, model.tokenizer, room=60, count=3, rng=generator(0, "p"), beginnings=beginnings
        )  # fmt: skip
        assert [passage.is_whole for passage in found] == [not beginnings] * 3
