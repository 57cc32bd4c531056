"""Ways of writing around scattered words, on the same held-out stories: before a judge, and on a sheet for a blind reader.

    python scripts/compare_ways.py --text tinystories_heldout.txt.xz [--out results/ways] [--texts 24] [--read 8]
    python scripts/compare_ways.py --table [--out results/ways]

The stories and blanks are the same for every way, so ways are compared story by story. The sheet has the first stories
written in the ways of READ beside as many real ones; `pmlm bench reading FILE` sums a filled-in one up, --table compares
its ways. Start it again after an interrupt: what is written and judged is not done again.
"""

import argparse
import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from pmlm.bench.judge import appraise, load_judge
from pmlm.bench.material import Passage, draw_passages, hide_words, sentences, write_texts
from pmlm.bench.reading import read_key, read_ratings, shuffled_sheet
from pmlm.bench.study import Notes, provenance, run_study
from pmlm.corpus.documents import read_documents
from pmlm.evaluation import ratio_stderr
from pmlm.keeping import markdown_table, write_text
from pmlm.lm import LM, load
from pmlm.options import FillOptions
from pmlm.runtime import generator

WAYS: dict[str, tuple[FillOptions, int]] = {
    **{
        f"{order} {temperature:g}": (FillOptions(order=order, temperature=temperature, top_p=1.0), 1)
        for order, temperature in [
            ("l2r", 1.0), ("l2r", 0.7), ("l2r", 0.5), ("margin", 0.7), ("margin", 0.5), ("confidence", 0.5)
        ]
    },
    **{
        f"l2r {temperature:g}, likeliest of 8": (FillOptions(order="l2r", temperature=temperature, top_p=1.0), 8)
        for temperature in (0.7, 0.5)
    },
    **{
        f"l2r {temperature:g}, {num} particles": (FillOptions(temperature=temperature, top_p=1.0, particles=num), 1)
        for temperature, num in [(1.0, 64), (0.7, 8), (0.7, 16), (0.7, 64), (0.5, 64)]
    },
}  # fmt: skip
READ = ("l2r 0.7", "l2r 0.7, likeliest of 8", "margin 0.5", "l2r 0.7, 64 particles")
BASE = "l2r 0.7"
SHARES = (0.15, 0.5, 0.85)


def draw(documents: list[str], lm: LM, count: int, seed: int) -> list[Passage]:
    fit = [text for text in documents if len(sentences(text)) >= 3]
    return draw_passages(
        fit, lm.tokenizer, room=lm.model.config.max_length - 2, count=count, rng=generator(seed, "ways")
    )


def written(lm: LM, passages: list[Passage], share: float, way: str, notes: Notes, seed: int) -> list[str | None]:
    options, best = WAYS[way]
    templates = [hide_words(p, share, generator(seed, "hide", share, i)) for i, p in enumerate(passages)]
    print(f"{share:.0%} {way}", file=sys.stderr)
    return write_texts(lm, templates, options, notes, f"{share}/{way}", first_seed=seed, best_of=best)


def apart(one: list[float], other: list[float]) -> dict[str, float | None]:
    """How far two ways are apart in the mean over stories, with the standard error of that."""
    pairs = [(b - a, 1) for a, b in zip(one, other, strict=True)]
    return {"mean": sum(d for d, _ in pairs) / len(pairs), "stderr": ratio_stderr(pairs)}


def judged(texts: list[str | None]) -> dict[str, Any]:
    """The judge's figures and the statistics, over all texts and of each; a text that was not found is refused."""
    found = [text for text in texts if text is not None]
    if len(found) < len(texts):
        sys.exit(f"{len(texts) - len(found)} texts were not found")
    judge = load_judge()
    of_each = [nats / len(text.encode()) / math.log(2) for nats, text in zip(judge.nats(found), found, strict=True)]
    return {**appraise(found, judge), "of_each": of_each}


def study(lm: LM, passages: list[Passage], options: argparse.Namespace, notes: Notes) -> dict[str, Any]:
    real = notes.get("judged/real", judged, [passage.text for passage in passages])
    table: dict[str, Any] = {}
    for share in SHARES:
        texts = {way: written(lm, passages, share, way, notes, options.seed) for way in WAYS}
        figures = {way: notes.get(f"judged/{share}/{way}", judged, texts[way]) for way in WAYS}
        table[f"{share:g}"] = {
            way: {
                **figures[way],
                "texts": texts[way],
                "to_base": apart(figures[BASE]["of_each"], figures[way]["of_each"]),
            }
            for way in WAYS
        }
    return {"settings": settings(options), "real": real, "written": table}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    return {"texts": options.texts, "seed": options.seed, "ways": {way: [dict(o), n] for way, (o, n) in WAYS.items()}}


def write_sheet(lm: LM, passages: list[Passage], options: argparse.Namespace, notes: Notes, command: str) -> None:
    """Each story in every way, so that ways are compared on the same ones, and as many real texts of other stories."""
    entries: list[dict[str, Any]] = []
    for share in SHARES:
        for way in READ:
            texts = written(lm, passages[: options.read], share, way, notes, options.seed)
            entries += [
                {"source": "model", "kind": f"{share:.0%} hidden, {way}", "share": share, "way": way,
                 "document": passage.document, "text": " ".join((text or "").split())}
                for passage, text in zip(passages[: options.read], texts, strict=True)
            ]  # fmt: skip
    entries += [
        {"source": "real", "kind": "real", "document": passage.document, "text": " ".join(passage.text.split())}
        for passage in passages[options.read : 2 * options.read]
    ]
    sheet = shuffled_sheet(entries, options.seed)
    key = {"provenance": provenance(lm, command), "texts": sheet.key}
    write_text(options.out / "reading-key.json", json.dumps(key, indent=2, ensure_ascii=False) + "\n")
    write_text(options.out / "reading.md", sheet.page)


def tables(folder: Path) -> str:
    document = json.loads((folder / "figures.json").read_text())
    result = document["result"]
    rows = [
        [f"{float(share):.0%}", way, f"{row['judge']['bits_per_byte']:.3f}", signed(row["to_base"]),
         f"{row['distinct_3']:.3f}", f"{row['repetition_4']:.3f}"]
        for share, ways in result["written"].items()
        for way, row in ways.items()
    ]  # fmt: skip
    real = result["real"]
    rows.append(
        [
            "",
            "real",
            f"{real['judge']['bits_per_byte']:.3f}",
            "",
            f"{real['distinct_3']:.3f}",
            f"{real['repetition_4']:.3f}",
        ]
    )
    head = ["hidden", "way", "judge", f"to {BASE}, a story", "distinct 3-grams", "repeated 4-grams"]
    page = f"# Ways around scattered words\n\n`{document['provenance']['command']}`\n\n{markdown_table(head, rows)}\n"
    sheet = folder / "reading.md"
    if "whole: __" not in sheet.read_text():
        page += f"\nBefore a blind reader:\n\n{reader_table(sheet)}\n"
    return page


def reader_table(sheet: Path) -> str:
    ratings, key = read_ratings(sheet), read_key(sheet.with_name("reading-key.json"))
    rows = []
    for share in SHARES:
        by_way = {
            way: {e["document"]: ratings[e["number"]] for e in key if e.get("way") == way and e.get("share") == share}
            for way in READ
        }
        for way in READ:
            cells = []
            for name in ("whole", "sense"):
                own, base = ([float(getattr(r, name)) for _, r in sorted(by_way[w].items())] for w in (way, BASE))
                error = ratio_stderr([(v, 1) for v in own])
                cells += [
                    f"{sum(own) / len(own):.2f} ± {error or 0:.2f}",
                    "" if way == BASE else signed(apart(base, own)),
                ]
            rows.append([f"{share:.0%}", way, str(len(by_way[way])), *cells])
    own = [ratings[e["number"]] for e in key if e["source"] == "real"]
    rows.append(["", "real", str(len(own)), f"{sum(r.whole for r in own) / len(own):.2f}", "", f"{sum(r.sense for r in own) / len(own):.2f}", ""])  # fmt: skip
    head = ["hidden", "way", "texts", "whole, 1 to 5", f"to {BASE}", "sense, 1 to 5", f"to {BASE}"]
    return markdown_table(head, rows)


def signed(figure: dict[str, float | None]) -> str:
    return f"{figure['mean']:+.3f} ± {figure['stderr'] or 0:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="held-out text, plain or .xz")
    parser.add_argument("--model", type=Path, help="checkpoint folder; without it the model inside the package")
    parser.add_argument("--out", type=Path, default=Path("results/ways"))
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--read", type=int, default=8, help="stories on the sheet, of each way, and real ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sheet-only", action="store_true", help="write the sheet's texts, judge nothing yet")
    parser.add_argument("--table", action="store_true", help="make figures.md of what is there")
    options = parser.parse_args()
    if options.text is not None:
        torch.set_num_threads(options.threads)
        lm = load(options.model)
        documents = read_documents(options.text, "auto")
        passages = draw(documents, lm, options.texts, options.seed)
        command = shlex.join(["python", *sys.argv])
        options.out.mkdir(parents=True, exist_ok=True)
        if not (options.out / "reading.md").exists():
            write_sheet(lm, passages, options, Notes(None, {}), command)
        if not options.sheet_only:
            out = options.out / "figures.json"
            run_study(
                "ways", out, lm, options.text, settings(options), command, lambda n: study(lm, passages, options, n)
            )
    elif not options.table:
        parser.error("--text or --table")
    if not options.sheet_only:
        write_text(options.out / "figures.md", tables(options.out))
        print(options.out / "figures.md")


if __name__ == "__main__":
    main()
