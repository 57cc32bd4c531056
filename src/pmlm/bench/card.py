"""The model card of a story model, from a study's document and from what people wrote of its data."""

from collections.abc import Mapping, Sequence
from typing import Any

from pmlm.bench.reading import rating_table
from pmlm.bench.study import TRAINING
from pmlm.bench.tables import origin, paired, pairs_of, story_tables
from pmlm.errors import DataError
from pmlm.keeping import tokens_of
from pmlm.lm import LM

LONGEST_SAMPLE = 2000


def model_card(lm: LM, document: Mapping[str, Any], notes: str, ratings: Sequence[Mapping[str, Any]] = ()) -> str:
    """`notes` is Markdown that no measurement can give: data, licences, known weaknesses.

    `ratings`: what a blind reader thought of this model's texts (`pmlm.bench.reading.summarise`).
    """
    if document["study"] != "stories":
        raise DataError(f"a card is made from the study of a story model, not from {document['study']!r}")
    measured, here = document["provenance"]["model"], lm.describe()
    now = {"parameters": here["parameters"], "tokenizer": lm.tokenizer.fingerprint}
    now |= {key: lm.about[key] for key in TRAINING if key in measured and key in lm.about}
    if any(measured[key] != value for key, value in now.items()):
        raise DataError("the study is about another model than this one: measure this one first")
    parts = [
        f"# {here['name']}\n",
        f"An any-order language model of {here['parameters']:,} parameters for short English stories: place words "
        "anywhere and let it write the rest, in any order (`pmlm generate`).\n",
        notes.strip() + "\n",
        f"## Settings\n\n{_settings(here, lm)}{_beside(document.get('gpt'))}",
        f"## Figures\n\n{story_tables(document['result'])}",
        *([f"## Before a blind reader\n\n{rating_table(ratings)}\n"] if ratings else []),
        f"## Weak points that the figures show\n\n{weak_points(document['result'])}",
        f"## Samples, unpicked: seeds from 0 on\n\n{_written_how(document['result']['settings'])}\n"
        f"{_samples(document['result'])}",
        origin(document),
    ]
    return "\n".join(parts)


def _settings(shape: Mapping[str, Any], lm: LM) -> str:
    about = lm.about
    lines = [
        f"- {shape['layers']} layers of {shape['width']}, {shape['heads']} heads, positions {shape['positions']}, norm "
        f"{shape['norm']}, reads {shape['max_length']} slots",
        f"- vocabulary of {shape['vocabulary']['size']:,} pieces ({shape['vocabulary']['kind']})",
        f"- visibilities: {', '.join(shape['visibilities'])} (the first is the default)",
        f"- texts are drawn at {lm.sampling}, unless told otherwise",
    ]
    if "tokens_before" in about:
        lines.append(f"- tokens of training in all: {tokens_of(about):,}; the lines below are of the last leg")
    lines += [f"- {key.replace('_', ' ')}: {_shown(value)}" for key, value in about.items() if key != "name"]
    return "\n".join(lines) + "\n"


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def weak_points(result: Mapping[str, Any]) -> str:
    """What the figures themselves say against the model: a line for each way of writing."""
    appraisal = result["free_stories"]["appraisal"]
    found = {
        name: _short_of(each, appraisal["real"])
        for name, each in appraisal.items()
        if not name.startswith(("real", "GPT"))
    }
    lines = [f"- {name}: {'; '.join(points)}." for name, points in found.items() if points]
    lines += _against_gpt(result)
    return "\n".join(lines or ["- none of those that are looked for here"]) + "\n"


def _short_of(each: Mapping[str, Any], real: Mapping[str, Any]) -> list[str]:
    points = []
    if each["judge"] is not None:
        ratio = each["judge"]["bits_per_byte"] / real["judge"]["bits_per_byte"]
        if ratio >= 1.005:
            points.append(f"the judge needs {ratio:.2f} times the bits per byte of real stories")
    for key, what in (("repetition_4", "repeated 4-grams"), ("self_bleu", "self-BLEU")):
        if each[key] > 1.1 * real[key]:
            points.append(f"{what} {each[key]:.3f}, real stories {real[key]:.3f}")
    if each["distinct_2"] < 0.9 * real["distinct_2"]:
        points.append(f"distinct-2 {each['distinct_2']:.3f}, real stories {real['distinct_2']:.3f}")
    return points


def _against_gpt(result: Mapping[str, Any]) -> list[str]:
    if result["gpt"] is None:
        return ["- no GPT of the same size was measured beside it."]
    lines = []
    for visibility, what, one, other in pairs_of(result):
        if "GPT" in what:
            apart, error, documents = paired(one, other)
            lines.append(
                f"- {visibility}, left to right: {apart:+.3f} ± {error or 0:.3f} nats per token next to the GPT, on "
                f"the same {documents} stories."
            )
    return lines


def _beside(gpt: Mapping[str, Any] | None) -> str:
    """What is known of the GPT that stands beside it."""
    if gpt is None:
        return ""
    tokens = tokens_of(gpt)
    return f"\nThe GPT beside it: {gpt['name']}, {gpt['parameters']:,} parameters, {tokens:,} tokens of training.\n"


def _written_how(settings: Mapping[str, Any]) -> str:
    order = settings["orders"][0]
    return f"Written along the order `{order}`, temperature {settings['temperature']:g}, top-p {settings['top_p']:g}.\n"


def _samples(result: Mapping[str, Any]) -> str:
    samples = result["samples"]
    parts = []
    for name, each in samples.items():
        if isinstance(each, str):
            parts.append(f"### {name.capitalize()}, whose words are hidden below\n\n{_quoted(each)}\n")
            continue
        parts.append(f"### {name[:1].upper()}{name[1:]}\n")
        template = each[0]["template"]
        is_one = all(sample["template"] == template for sample in each)
        if is_one and len(template) <= LONGEST_SAMPLE:
            parts.append(f"{_code(template)}\n")
        for sample in each:
            parts.append(f"{sample['seed']}. {flat(sample['text'])}")
            if not is_one:
                parts.append(f"   - of {_code(sample['template'])}")
        parts.append("")
    return "\n".join(parts)


def _code(template: str) -> str:
    return f"`{' '.join(template.split())}`".replace("``", "`")


def _quoted(text: str) -> str:
    return f"> {flat(text)}"


def flat(text: str) -> str:
    """On one line, with what Markdown would take for its own set apart."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>" else c for c in " ".join(text.split()))
