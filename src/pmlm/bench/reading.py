"""A sheet for a blind reader: texts that the model filled in and real ones with the same kinds of blanks, shuffled.

Each kind of blank (15, 50, 85 % of the words, everything between the first and the last sentence, everything after the
first) is used equally often on both sides, on different stories, so that no text can be compared with its own original.
Nothing is picked: stories come from the seed, texts from seeds that count up. Line breaks are evened out, since they
would tell. The key is a file of its own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pmlm.bench.material import Passage, draw_passages, hide_middle, hide_rest, hide_words, sentences, write_texts
from pmlm.bench.study import Notes
from pmlm.corpus.documents import read_text
from pmlm.errors import DataError
from pmlm.evaluation import ratio_stderr
from pmlm.generation.template import Template, template_source
from pmlm.keeping import markdown_table
from pmlm.lm import LM
from pmlm.options import FillOptions
from pmlm.runtime import generator

KINDS = ("15 %", "50 %", "85 %", "between two sentences", "after the first sentence")

HIDING = {KINDS[3]: hide_middle, KINDS[4]: hide_rest}


@dataclass(frozen=True)
class Sheet:
    page: str
    """Markdown, for the reader."""
    key: list[dict[str, Any]]
    """Where each text comes from."""


def make_sheet(
    lm: LM, documents: Sequence[str], count: int, options: FillOptions, notes: Notes, seed: int, best_of: int = 1
) -> Sheet:
    """`count` texts of the model, each the likeliest of `best_of`, and as many real ones."""
    passages = _passages(documents, lm, 2 * count, seed)
    blanks = [hide_as(p, KINDS[(i // 2) % len(KINDS)], seed, i) for i, p in enumerate(passages)]
    ours = list(range(0, 2 * count, 2))
    written = write_texts(lm, [blanks[i] for i in ours], options, notes, "reading", first_seed=seed, best_of=best_of)
    text_of = dict(zip(ours, written, strict=True))
    entries = [
        {
            "source": "model" if i in text_of else "real",
            "kind": KINDS[(i // 2) % len(KINDS)],
            "document": passage.document,
            "template": template_source(blank),
            "text": _one_paragraph(text_of.get(i, passage.text) or "(no text was found)"),
            **({"seed": seed + ours.index(i), "best_of": best_of} if i in text_of else {}),
        }
        for i, (passage, blank) in enumerate(zip(passages, blanks, strict=True))
    ]
    return shuffled_sheet(entries, seed)


def shuffled_sheet(entries: Sequence[Mapping[str, Any]], seed: int) -> Sheet:
    """A sheet of texts, each with its `text`, its `source` (model or real) and its `kind`."""
    shuffle = torch.randperm(len(entries), generator=generator(seed, "sheet")).tolist()
    key = [{"number": n, **entries[i]} for n, i in enumerate(shuffle, 1)]
    return Sheet(_page(key), key)


def _passages(documents: Sequence[str], lm: LM, count: int, seed: int) -> list[Passage]:
    """Short documents with something between their first and last sentence."""
    fit = [text for text in documents if len(sentences(text)) >= 3]
    if not fit:
        raise DataError("the text has no document of three sentences or more")
    room = lm.model.config.max_length - 2
    found = draw_passages(fit, lm.tokenizer, room=room, count=min(2 * count, len(fit)), rng=generator(seed, "reading"))
    usable = [passage for passage in found if len(sentences(passage.text)) >= 3][:count]
    if len(usable) < count:
        raise DataError(
            f"the text has {len(usable)} passages of three sentences that fit the model, {count} are needed"
        )
    return usable


def hide_as(passage: Passage, kind: str, seed: int, number: int) -> Template:
    """The passage with the blanks of a kind, drawn by the seed and the passage's number."""
    if kind in HIDING:
        return HIDING[kind](passage)
    return hide_words(passage, int(kind.split()[0]) / 100, generator(seed, "blanks", number))


def _one_paragraph(text: str) -> str:
    return " ".join(text.split())


# -- what a reader said ---------------------------------------------------------------------------------------------

_RATING = re.compile(r"^whole:\s*(\S+)\s+sense:\s*(\S+)\s+who:\s*(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Rating:
    whole: int
    sense: int
    is_program: bool


def read_ratings(path: Path) -> dict[int, Rating]:
    """Of each text by its number; a sheet with gaps is refused."""
    found: dict[int, Rating] = {}
    for part in read_text(path).split("\n## ")[1:]:
        number, match = part.split("\n", 1)[0].strip(), _RATING.search(part)
        marks = () if match is None else match.groups()
        is_valid = bool(marks) and {*marks[:2]} <= set("12345") and marks[2].lower() in ("yes", "no")
        if not number.isdigit() or not is_valid:
            raise DataError(f"{path}: text {number} has no rating such as `whole: 4 sense: 3 who: no`")
        found[int(number)] = Rating(int(marks[0]), int(marks[1]), marks[2].lower() == "yes")
    if not found:
        raise DataError(f"{path} is no reading sheet")
    return found


def read_key(path: Path) -> list[dict[str, Any]]:
    return list(_key(path)["texts"])


def sheet_model(path: Path) -> dict[str, Any]:
    """The model whose texts are on the sheet of this key."""
    return dict(_key(path)["provenance"]["model"])


def _key(path: Path) -> dict[str, Any]:
    try:
        key = json.loads(read_text(path))
        return {"texts": list(key["texts"]), "provenance": {"model": dict(key["provenance"]["model"])}}
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path} is no key of a reading sheet") from None


def summarise(ratings: Mapping[int, Rating], key: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means by side, over all blanks and by kind, with standard errors over texts."""
    if {entry["number"] for entry in key} != set(ratings):
        raise DataError("the sheet and the key are not of the same texts")
    rows = []
    others = dict.fromkeys(entry["kind"] for entry in key if entry["kind"] not in KINDS)
    for kind in ("all", *KINDS, *sorted(others)):
        for source in ("model", "real"):
            side = [entry for entry in key if entry["source"] == source]
            own = [ratings[entry["number"]] for entry in side if kind in ("all", entry["kind"])]
            if not own:
                continue
            figures = {
                "whole": [float(r.whole) for r in own],
                "sense": [float(r.sense) for r in own],
                "taken_for_program": [float(r.is_program) for r in own],
            }
            row: dict[str, Any] = {"kind": kind, "source": source, "texts": len(own)}
            for name, values in figures.items():
                error = ratio_stderr([(value, 1) for value in values])
                row |= {name: sum(values) / len(values), f"{name}_stderr": error}
            rows.append(row)
    return rows


def rating_table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["blanks", "side", "texts", "whole sentences, 1 to 5", "sense, 1 to 5", "taken for a program's"]
    lines = [
        [row["kind"], row["source"], str(row["texts"]), f"{row['whole']:.2f} ± {row['whole_stderr'] or 0:.2f}",
         f"{row['sense']:.2f} ± {row['sense_stderr'] or 0:.2f}", f"{row['taken_for_program']:.0%}"]
        for row in rows
    ]  # fmt: skip
    return markdown_table(head, lines)


HEAD = """# Reading sheet

{count} short texts, shuffled. Some were written by people or by another model and are left as they were; in the others
a program filled in words. Please rate each by itself, without looking at the key (`reading-key.json`):

- **whole**: are the sentences complete and grammatical? 1 (no) to 5 (all of them)
- **sense**: does the text hang together: names kept, one thing following from another? 1 to 5
- **who**: was a program at work? yes or no
"""


def _page(key: Sequence[dict[str, Any]]) -> str:
    parts = [HEAD.format(count=len(key))]
    for entry in key:
        parts.append(f"## {entry['number']}\n\n{_escaped(entry['text'])}\n\nwhole: __ sense: __ who: __\n")
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#" else c for c in text)
