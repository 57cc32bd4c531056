"""SQuAD: files, windows, spans to the letter, the official metric on hand-made cases, splits by article."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nlu_helpers import TOKENIZER

from pmlm.errors import DataError
from pmlm.model import HeadSpec
from pmlm.nlu.exams import SquadExam, answered
from pmlm.nlu.squad import Answer, Question, read_squad, split_by_article, without_shared
from pmlm.nlu.squad_metric import answer_scores, best_threshold, exact, f1, normalise, squad_scores
from pmlm.nlu.squad_study import load_squad
from pmlm.nlu.windows import (
    Asked,
    Candidate,
    Found,
    WindowSettings,
    answer_pieces,
    char_span,
    cut_questions,
    find_answers,
    target_slots,
    window_places,
)
from pmlm.tokenizer import wordpiece_from_vocab

UNHURRIED = settings(deadline=None)


# the metric


def test_normalised_answers_lose_case_punctuation_articles_and_spacing() -> None:
    assert normalise(" The  U.S. Army's; an  Apple ") == "us armys apple"
    assert normalise("theatre") == "theatre"
    assert normalise("The a an") == ""


@pytest.mark.parametrize(
    ("said", "gold", "em", "overlap"),
    [
        ("the Norse leader", "Norse leader!", 1, 1),
        ("Denmark and Norway", "Denmark, Iceland and Norway", 0, 2 * 3 / (3 + 4)),
        ("cat cat dog", "cat dog dog", 0, 2 * 2 / 6),
        ("France", "Spain", 0, 0),
        ("", "France", 0, 0),
        ("France", "", 0, 0),
        ("", "", 1, 1),
        ("the", "", 1, 1),
    ],
)
def test_exact_and_f1_of_one_answer(said: str, gold: str, em: float, overlap: float) -> None:
    assert exact(said, gold) == em
    assert f1(said, gold) == pytest.approx(overlap)


def test_the_best_of_several_golds_counts_and_golds_of_nothing_do_not() -> None:
    assert answer_scores("in the 10th century", ["10th", "in the 10th century"]) == (1, 1)
    assert answer_scores("x", ["the", "x y"]) == (0, pytest.approx(2 / 3))
    assert answer_scores("", ["the"]) == (1, 1)
    assert answer_scores("", []) == (1, 1)
    assert answer_scores("x", []) == (0, 0)


def test_figures_of_all_questions_and_of_both_kinds() -> None:
    golds = {"a": ["red fox"], "b": ["blue"], "c": [], "d": []}
    scores = squad_scores({"a": "the red fox", "b": "blue sky", "c": "", "d": "x"}, golds)
    assert scores == pytest.approx(
        {
            "exact": 2 / 4,
            "f1": (1 + 2 / 3 + 1 + 0) / 4,
            "HasAns_exact": 1 / 2,
            "HasAns_f1": (1 + 2 / 3) / 2,
            "NoAns_exact": 1 / 2,
            "NoAns_f1": 1 / 2,
        }
    )
    assert set(squad_scores({"a": ""}, {"a": ["x"]})) == {"exact", "f1", "HasAns_exact", "HasAns_f1"}


def test_the_best_threshold_by_hand() -> None:
    odds = {"sure": -3.0, "wrong": -1.0, "right": 0.5, "none": 2.0}
    has = {"sure": True, "wrong": True, "right": True, "none": False}
    says = dict.fromkeys(odds, "x")
    scores = {"sure": 1.0, "wrong": 0.0, "right": 0.5, "none": 0.0}
    # nothing: 1; up to sure: 2; up to wrong: 2; up to right: 2.5; all: 1.5
    assert best_threshold(scores, odds, has, says) == (2.5 / 4, 0.5)
    bad = dict.fromkeys(odds, 0.0)
    best, threshold = best_threshold(bad, odds, has, says)
    assert best == 1 / 4
    assert threshold < -3.0  # answering nothing is best


@UNHURRIED
@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans(), st.integers(0, 4)), min_size=1, max_size=12))
def test_the_best_threshold_is_the_best_of_all_thresholds(rows: list[tuple[int, bool, int]]) -> None:
    odds = {str(i): r[0] + i / 100 for i, r in enumerate(rows)}
    has = {str(i): r[1] for i, r in enumerate(rows)}
    scores = {str(i): r[2] / 4 if r[1] else 0.0 for i, r in enumerate(rows)}

    def at(threshold: float) -> float:
        return sum(scores[k] if odds[k] <= threshold else float(not has[k]) for k in odds) / len(odds)

    best, threshold = best_threshold(scores, odds, has, dict.fromkeys(odds, "x"))
    assert best == pytest.approx(max(at(t) for t in [-99.0, *odds.values()]))
    assert at(threshold) == pytest.approx(best)


# windows and spans


@UNHURRIED
@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 80))
def test_windows_show_every_piece_and_none_twice_at_the_same_place(num: int, room: int, stride: int) -> None:
    places = window_places(num, room, stride)
    assert sorted({i for first, count in places for i in range(first, first + count)}) == list(range(num))
    assert all(0 < count <= room for _, count in places)
    assert len({first for first, _ in places}) == len(places)
    assert all(b[0] - a[0] == min(stride, room) for a, b in itertools.pairwise(places))


def ask(context: str, answer: str | None, length: int = 24, **changes: Any) -> Asked:
    answers = () if answer is None else (Answer(answer, context.index(answer)),)
    question = Question("q", "Where is it?", context, answers)
    return cut_questions([question], TOKENIZER, length, WindowSettings(**{"question": 6, "stride": 5, **changes}))[0]


LONG = " ".join(f"The {word} cat was in house number {i}, they say." for i, word in enumerate(["warm", "cold", "dull"]))


def test_a_window_is_start_question_end_part_end_and_fits() -> None:
    asked = ask(LONG, None)
    assert len(asked.windows) > 3
    question = TOKENIZER.encode("Where is it?")[:6]
    for window in asked.windows:
        ids, at = window.row.ids, window.row.second_at
        assert len(ids) <= 24
        assert ids[:at] == (TOKENIZER.start_id, *question, TOKENIZER.end_id)
        shown = asked.pieces[window.first : window.first + window.count]
        assert ids[at:] == (*(p.id for p in shown), TOKENIZER.end_id)


def test_targets_stand_on_the_answer_or_on_the_first_slot() -> None:
    asked = ask(LONG, "cold cat")
    slots = target_slots(asked)
    hit = [i for i, pair in enumerate(slots) if pair != (0, 0)]
    assert 0 < len(hit) < len(slots)
    for i in hit:
        window, (first, last) = asked.windows[i], slots[i]
        shift = window.first - window.row.second_at
        span = char_span(asked, first + shift, last + shift)
        assert span is not None
        assert LONG[span[0] : span[1]] == "cold cat"
    assert target_slots(ask(LONG, None)) == [(0, 0)] * len(asked.windows)


words = st.text(alphabet="abé \u2019日,.(\U0001f600", min_size=1, max_size=30).filter(lambda t: t.strip())


@UNHURRIED
@given(words, st.data())
def test_the_pieces_of_an_answer_cover_it_and_its_characters_come_back(context: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    if not context[start:end].strip():
        return
    pieces = TOKENIZER.pieces(context)
    found = answer_pieces(Answer(context[start:end], start), pieces)
    assert found is not None
    assert pieces[found[0]].start <= start
    assert end <= pieces[found[1]].end
    inner = pieces[found[0] + 1 : found[1]]
    assert all(p.end > start and p.start < end for p in inner)
    asked = Asked(Question("q", "x", context, ()), pieces, [])
    span = char_span(asked, *found)
    assert span is not None
    assert context[start:end].strip() in context[span[0] : span[1]]
    assert context[span[0] : span[1]] == context[span[0] : span[1]].strip()


def oracle(asked: Asked, first: int, last: int, margin: float = 5.0) -> list[torch.Tensor]:
    """Scores of a model that is sure of one stretch of pieces."""
    scores = []
    for window in asked.windows:
        score = torch.zeros(len(window.row), 2)
        for column, piece in enumerate((first, last)):
            slot = piece - window.first + window.row.second_at
            if window.first <= piece < window.first + window.count:
                score[slot, column] = margin
        scores.append(score)
    return scores


def test_scores_come_back_as_the_letters_of_the_paragraph() -> None:
    asked = ask(LONG, "number 1, they", length=48)
    pieces = answer_pieces(asked.question.answers[0], asked.pieces)
    assert pieces is not None
    found = find_answers(asked, oracle(asked, *pieces), WindowSettings(best=5))
    best = found.best[0]
    assert best.text == "number 1, they" == LONG[best.start : best.end]
    assert best.score == 10
    assert found.no_answer == -10
    assert [c.score for c in found.best] == sorted((c.score for c in found.best), reverse=True)
    assert len({c.text for c in found.best}) == len(found.best) <= 5
    short = find_answers(asked, oracle(asked, *pieces), WindowSettings(answer=2))
    assert all(c.score < 10 for c in short.best)


def test_a_piece_is_believed_where_most_around_it_is_shown() -> None:
    asked = ask(LONG, None)
    scores = oracle(asked, 6, 6)
    seeing = [i for i, w in enumerate(asked.windows) if w.first <= 6 < w.first + w.count]
    assert len(seeing) > 1
    around = {i: min(6 - w.first, w.first + w.count - 1 - 6) for i in seeing for w in [asked.windows[i]]}
    trusted = max(seeing, key=lambda i: around[i])
    for i in seeing:
        if i != trusted:
            scores[i] = scores[i] * 10  # louder, but at the window's edge
    assert find_answers(asked, scores, WindowSettings()).best[0].score == 10


def test_no_answer_is_the_least_over_windows() -> None:
    asked = ask(LONG, None)
    scores = oracle(asked, 3, 3)
    for i, score in enumerate(scores):
        score[0] = torch.tensor([7.0 + i, 7.0])
    found = find_answers(asked, scores, WindowSettings())
    assert found.none_score == 14
    assert found.no_answer == 4


def test_wordpiece_spans_keep_the_letters_of_the_text() -> None:
    tokenizer = wordpiece_from_vocab(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "zu", "##rich", "in", ",", "who"], lowercase=True
    )
    context = "In Zürich,  in ZURICH"
    (asked,) = cut_questions([Question("q", "who", context, (Answer("Zürich", 3),))], tokenizer, 16, WindowSettings())
    assert target_slots(asked) == [(4, 5)]
    assert char_span(asked, 1, 2) == (3, 9)


def test_a_question_that_leaves_no_room_and_an_empty_paragraph_are_refused() -> None:
    with pytest.raises(DataError, match="no room"):
        ask(LONG, None, length=9)
    with pytest.raises(DataError, match="empty paragraph"):
        ask("  ", None)


def test_the_exam_finds_the_threshold_and_keeps_it_in_the_head() -> None:
    questions = [
        Question(str(i), "Who?", LONG, (Answer("cold cat", LONG.index("cold cat")),) * (i < 2)) for i in range(4)
    ]
    asked = cut_questions(questions, TOKENIZER, 24, WindowSettings())
    exam = SquadExam(HeadSpec(name="SQuAD", kind="span"), asked, WindowSettings())
    said = [("cold cat", -2.0), ("dull cat", 1.0), ("house", 1.5), ("house", 0.5)]
    found = {str(i): Found([Candidate(text, 0, 1, -odds)], 0.0) for i, (text, odds) in enumerate(said)}
    mark = exam.mark(found)
    assert mark.spec.threshold == -2.0
    assert mark.score == mark.figures["SQuAD"]["best_f1"] == 3 / 4
    assert mark.figures["SQuAD"]["f1"] == 3 / 4
    assert mark.figures["SQuAD"]["NoAns_f1"] == 1
    assert mark.figures["SQuAD"]["HasAns_exact_always"] == 1 / 2  # "cold cat" is right, "dull cat" half of it
    assert mark.figures["SQuAD"]["HasAns_f1_always"] == 3 / 4
    assert exam.constant_score == mark.figures["SQuAD"]["never_answering"] == 1 / 2
    assert answered(found, -2.0) == {"0": "cold cat", "1": "", "2": "", "3": ""}


# files


def official(**articles: list[tuple[str, list[tuple[str, list[tuple[str, int]]]]]]) -> dict[str, Any]:
    return {
        "version": "v2.0",
        "data": [
            {
                "title": title,
                "paragraphs": [
                    {
                        "context": context,
                        "qas": [
                            {"id": f"{title}-{i}", "question": question, "is_impossible": not answers,
                             "answers": [{"text": t, "answer_start": s} for t, s in answers]}
                            for i, (question, answers) in enumerate(qas)
                        ],
                    }
                    for context, qas in paragraphs
                ],
            }
            for title, paragraphs in articles.items()
        ],
    }  # fmt: skip


FILE = official(
    Cats=[("Tom is a cat.", [("Who is a cat?", [("Tom", 0)]), ("Who is a dog?", [])])],
    Mice=[("Jerry is a mouse.", [("Who?", [("Jerry", 0), ("a mouse", 9)]), ("Odd?", [("Jerry", 3)])])],
    Dogs=[("Rex is a dog.", [("Who?", [("Rex", 0)])])],
)


def test_official_files_and_answers_that_are_not_where_they_should_be(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(FILE))
    found = read_squad(tmp_path / "s.json")
    assert [q.id for q in found.questions] == ["Cats-0", "Cats-1", "Mice-0", "Dogs-0"]
    assert found.broken == 1
    assert found.questions[1].answers == ()
    assert found.questions[2].golds == ["Jerry", "a mouse"]
    assert found.questions[0].title == "Cats"


def test_plain_lists_get_their_places_by_search(tmp_path: Path) -> None:
    (tmp_path / "l.json").write_text(
        json.dumps(
            [{"context": "A b c b.", "question": "q", "answer": "b"}, {"context": "A", "question": "q", "answer": "z"}]
        )
    )
    found = read_squad(tmp_path / "l.json")
    assert [q.answers for q in found.questions] == [(Answer("b", 2),)]
    assert found.broken == 1
    line = {"context": "A b.", "qas": [{"question": "q", "answer": "A"}, {"question": "r", "answer": "b"}]}
    (tmp_path / "l.jsonl").write_text(f"{json.dumps(line)}\n" * 2 + json.dumps({**line, "context": "A b!"}) + "\n")
    assert len(read_squad(tmp_path / "l.jsonl").questions) == 4


@pytest.mark.parametrize(
    "text", ["{}", '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "[1]", "no json", "[]", '{"data": 3}']
)
def test_what_is_no_squad_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(DataError, match=r"x\.json"):
        read_squad(tmp_path / "x.json")


def test_articles_are_split_whole_and_nothing_shared_is_trained_on(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(FILE))
    every = read_squad(tmp_path / "s.json").questions
    train, dev = split_by_article(every, 0.6)
    assert {q.title for q in train}.isdisjoint({q.title for q in dev})
    assert sorted(q.id for q in [*train, *dev]) == sorted(q.id for q in every)
    assert split_by_article(list(reversed(every)), 0.6)[1] == list(reversed(dev))
    same_paragraph = Question("n", "New?", dev[0].context.upper(), ())
    same_article = Question("m", "New?", "Other text.", (), dev[0].title)
    kept, dropped = without_shared([*train, same_paragraph, same_article], dev)
    assert (kept, dropped) == (train, 2)
    with pytest.raises(DataError, match="two articles"):
        split_by_article(train[:1], 0.5)


def test_the_protocol_is_said(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(FILE))
    data = load_squad([], None, path, 0.5)
    assert data.protocol.startswith("reduced: ")
    assert any("1 questions left out" in note for note in data.notes)
    with pytest.raises(DataError, match="share an article or a paragraph with dev: left out"):
        load_squad([path], path, None)
    with pytest.raises(DataError, match="give one of the two"):
        load_squad([path], None, None)
    with pytest.raises(DataError, match="goes with a file that is split"):
        load_squad([], path, None, 0.5)


def test_the_real_files_answers_come_back_to_the_letter_and_no_article_is_on_both_sides(shared_data: Path) -> None:
    split = shared_data / "squad2-cs224n" / "dev-v2.0.rebuilt.json.xz"
    train = sorted((shared_data / "squad1.1-train-sample").glob("*.xz"))
    data = load_squad(train, None, split)
    assert not {q.title for q in data.train} & {q.title for q in data.dev}
    assert not {" ".join(q.context.split()) for q in data.train} & {" ".join(q.context.split()) for q in data.dev}
    assert any(not q.answers for q in data.train)
    sample = [q for q in data.dev if q.answers][::40]
    assert len(sample) > 30
    for asked in cut_questions(sample, TOKENIZER, 128, WindowSettings()):
        answer = asked.question.answers[0]
        found = answer_pieces(answer, asked.pieces)
        assert found is not None
        span = char_span(asked, *found)
        assert span is not None
        assert asked.question.context[span[0] : span[1]].count(answer.text.strip()) >= 1
        assert all(len(window.row) <= 128 for window in asked.windows)
    leaked = load_squad([shared_data / "squad1.1-dev" / "dev-part1.json.xz"], None, split)
    assert any("share an article" in note for note in leaked.notes)
    assert not {q.title for q in leaked.train} & {q.title for q in leaked.dev}
