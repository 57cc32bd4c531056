"""Ways of filling the same blanks of the same held-out stories: before a judge, and on a sheet for a blind reader.

    python scripts/compare_ways.py --text tinystories_heldout.txt.xz [--out results/ways] [--texts 16] [--read 8]
    python scripts/compare_ways.py --table [--out results/ways]

The stories and blanks are the same for every way, so ways are compared story by story. The sheet has the first stories
written in the ways of READ beside as many real ones; `pmlm bench reading FILE` sums a filled-in one up, --table compares
its ways. Start it again after an interrupt: what is written and judged is not done again.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from pmlm.bench.card import flat
from pmlm.bench.judge import appraise, load_judge
from pmlm.bench.material import Passage, draw_passages, sentences, write_texts
from pmlm.bench.reading import KINDS, hide_as, read_key, read_ratings, shuffled_sheet
from pmlm.bench.study import Notes, provenance, run_study
from pmlm.bench.tables import origin
from pmlm.corpus.documents import read_documents
from pmlm.evaluation import difference
from pmlm.keeping import markdown_table, write_text
from pmlm.lm import LM, load
from pmlm.options import FillOptions
from pmlm.runtime import generator

WAYS: dict[str, tuple[FillOptions, int]] = {
    **{
        f"{order} {temperature:g}": (FillOptions(order=order, temperature=temperature, top_p=1.0), 1)
        for order, temperature in [("l2r", 0.7), ("l2r", 0.5), ("margin", 0.5)]
    },
    **{
        f"l2r {temperature:g}, likeliest of 8": (FillOptions(order="l2r", temperature=temperature, top_p=1.0), 8)
        for temperature in (0.7, 0.5)
    },
    **{
        f"l2r {temperature:g}, {num} particles": (FillOptions(temperature=temperature, top_p=1.0, particles=num), 1)
        for temperature, num in [(0.7, 16), (0.7, 64), (0.5, 64)]
    },
}  # fmt: skip
READ = ("l2r 0.7", "l2r 0.7, likeliest of 8", "margin 0.5", "l2r 0.7, 64 particles")
BASE, BEST = "l2r 0.7", "l2r 0.7, likeliest of 8"
"""What the other ways are compared with, story by story."""


def draw(documents: list[str], lm: LM, count: int, seed: int) -> list[Passage]:
    fit = [text for text in documents if len(sentences(text)) >= 3]
    return draw_passages(
        fit, lm.tokenizer, room=lm.model.config.max_length - 2, count=count, rng=generator(seed, "ways")
    )


def written(lm: LM, passages: list[Passage], kind: str, way: str, notes: Notes, seed: int) -> list[str | None]:
    options, best = WAYS[way]
    templates = [hide_as(passage, kind, seed, i) for i, passage in enumerate(passages)]
    print(f"{kind}: {way}", file=sys.stderr)
    return write_texts(lm, templates, options, notes, f"{kind}/{way}", first_seed=seed, best_of=best)


def judged(texts: list[str | None]) -> dict[str, Any]:
    """The judge's figures and the statistics; a text that was not found is refused."""
    found = [text for text in texts if text is not None]
    if len(found) < len(texts):
        sys.exit(f"{len(texts) - len(found)} texts were not found")
    return {**appraise(found, load_judge()), "texts": found}


def study(lm: LM, passages: list[Passage], options: argparse.Namespace, notes: Notes) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for kind in KINDS:
        texts = {way: written(lm, passages, kind, way, notes, options.seed) for way in WAYS}
        filled[kind] = {way: notes.get(f"judged/{kind}/{way}", judged, texts[way]) for way in WAYS}
    real = notes.get("judged/real", judged, [passage.text for passage in passages])
    return {"settings": settings(options), "real": real, "filled": filled}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {"texts": options.texts, "seed": options.seed, "ways": {way: [dict(o), n] for way, (o, n) in WAYS.items()}}


def write_sheet(lm: LM, passages: list[Passage], options: argparse.Namespace, notes: Notes, command: str) -> None:
    """Each story in every way, so that ways are compared on the same ones, and as many real texts of other stories."""
    entries: list[dict[str, Any]] = []
    others = passages[options.read : 2 * options.read]
    for kind in KINDS:
        for way in READ:
            texts = written(lm, passages, kind, way, notes, options.seed)
            entries += [
                {"source": "model", "kind": f"{kind}, {way}", "blanks": kind, "way": way, "document": passage.document,
                 "text": " ".join((text or "(no text was found)").split())}
                for passage, text in zip(passages[: options.read], texts, strict=False)
            ]  # fmt: skip
    entries += [
        {"source": "real", "kind": "real", "document": passage.document, "text": " ".join(passage.text.split())}
        for passage in others
    ]
    sheet = shuffled_sheet(entries, options.seed)
    key = {"provenance": provenance(lm, command), "texts": sheet.key}
    write_text(options.out / "reading-key.json", json.dumps(key, indent=2, ensure_ascii=False) + "\n")
    write_text(options.out / "reading.md", sheet.page)


def tables(folder: Path) -> str:
    document = json.loads((folder / "figures.json").read_text())
    result = document["result"]
    head = [
        "blanks",
        "way",
        "judge, bits per byte",
        f"to {BASE}",
        f"to {BEST}",
        "distinct 3-grams",
        "repeated 4-grams",
        "self-BLEU",
    ]
    rows = [
        [kind, way, f"{row['judge']['bits_per_byte']:.3f}", *("" if way == base else apart(bits_of_each(row), bits_of_each(ways[base])) for base in (BASE, BEST)),
         *statistics(row)]
        for kind, ways in result["filled"].items()
        for way, row in ways.items()
    ]  # fmt: skip
    real = result["real"]
    rows.append(["", "real", f"{real['judge']['bits_per_byte']:.3f}", "", "", *statistics(real)])
    page = f"# Ways of filling blanks\n\n{ABOUT}\n\n{markdown_table(head, rows)}\n"
    for number, sheet in enumerate((folder / "reading.md", folder / "reading-2.md"), 1):  # two readers of one sheet
        if sheet.exists() and "whole: __" not in sheet.read_text():
            page += (
                f"\n## Before blind reader {number}\n\n{READING.format(sheet=sheet.name)}\n\n{reader_table(sheet)}\n"
            )
    page += f"\n## The first story, unpicked\n\n{first_story(result)}\n"
    return f"{page}\n{origin(document, 'python scripts/compare_ways.py --table')}"


ABOUT = f"""The same blanks of the same held-out stories in every way (kinds of blanks as in `pmlm bench stories`); the
differences to `{BASE}` and to `{BEST}` are means over stories with their standard errors. The judge is SmolLM2-135M."""
READING = f"""`{{sheet}}`: texts unpicked and shuffled, real ones of other stories; differences to `{BASE}` on the same stories and
blanks, with standard errors over stories (over all kinds too, where each story stands in every kind)."""


def first_story(result: dict[str, Any]) -> str:
    lines = [f"real: {flat(result['real']['texts'][0])}\n"]
    for kind, ways in result["filled"].items():
        lines += [f"{kind}:\n", *(f"- {way}: {flat(ways[way]['texts'][0])}" for way in READ), ""]
    return "\n".join(lines).rstrip()


def bits_of_each(row: dict[str, Any]) -> list[float]:
    return [bits / len(text.encode()) for bits, text in zip(row["judge"]["text_bits"], row["texts"], strict=True)]


def statistics(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:.3f}" for name in ("distinct_3", "repetition_4", "self_bleu")]


def apart(one: list[float], other: list[float], stories: list[int] | None = None) -> str:
    """The mean difference, with its standard error over stories."""
    mean, error = difference(stories or list(range(len(one))), [1] * len(one), one, other)
    return f"{mean:+.3f} ± {error or 0:.3f}"


def reader_table(sheet: Path) -> str:
    ratings, key = read_ratings(sheet), read_key(sheet.with_name("reading-key.json"))
    of = {(e["way"], e["blanks"], e["document"]): ratings[e["number"]] for e in key if e["source"] == "model"}
    rows = []
    for kind in (*KINDS, "all"):
        for way in READ:
            own = {place[1:]: rating for place, rating in of.items() if place[0] == way and kind in (place[1], "all")}
            stories = [document for _, document in own]
            rows.append([kind, way, str(len(own))])
            for name in ("whole", "sense"):
                values = [float(getattr(rating, name)) for rating in own.values()]
                base = [float(getattr(of[BASE, *place], name)) for place in own]
                rows[-1] += [f"{sum(values) / len(values):.2f}", "" if way == BASE else apart(values, base, stories)]
            rows[-1].append(f"{sum(rating.is_program for rating in own.values()) / len(own):.0%}")
    real = [ratings[e["number"]] for e in key if e["source"] == "real"]
    whole, sense, taken = (
        sum(each) / len(real) for each in zip(*((r.whole, r.sense, r.is_program) for r in real), strict=True)
    )
    rows.append(["", "real", str(len(real)), f"{whole:.2f}", "", f"{sense:.2f}", "", f"{taken:.0%}"])
    head = [
        "blanks",
        "way",
        "texts",
        "whole, 1 to 5",
        f"to {BASE}",
        "sense, 1 to 5",
        f"to {BASE}",
        "taken for a program's",
    ]
    return markdown_table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="held-out text, plain or .xz")
    parser.add_argument("--model", type=Path, help="checkpoint folder; without it the model inside the package")
    parser.add_argument("--out", type=Path, default=Path("results/ways"))
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--read", type=int, default=8, help="stories on the sheet, of each way, and real ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="make figures.md of what is there")
    options = parser.parse_args()
    if options.text is not None:
        torch.set_num_threads(options.threads)
        lm = load(options.model)
        documents = read_documents(options.text, "auto")
        passages = draw(documents, lm, options.texts, options.seed)
        command = shlex.join(["python", *sys.argv])
        options.out.mkdir(parents=True, exist_ok=True)

        def work(notes: Notes) -> dict[str, Any]:
            if not (options.out / "reading.md").exists():  # which somebody may have filled in
                write_sheet(lm, passages, options, notes, command)
            return study(lm, passages, options, notes)

        run_study("ways", options.out / "figures.json", lm, options.text, settings(options), command, work)
    elif not options.table:
        parser.error("--text or --table")
    write_text(options.out / "figures.md", tables(options.out))
    print(options.out / "figures.md")


if __name__ == "__main__":
    main()
