"""Studies as Markdown, made from their documents and nothing else: no figure is typed by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from pmlm.errors import DataError
from pmlm.keeping import markdown_table

STATISTICS = {
    "distinct_1": "distinct-1", "distinct_2": "distinct-2", "distinct_3": "distinct-3",
    "repetition_4": "repeated 4-grams", "entropy_bits": "entropy, bits", "self_bleu": "self-BLEU",
}  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(head, rows) + "\n"


def render(document: Mapping[str, Any]) -> str:
    """A study as a page: what was measured, then where it comes from."""
    body = {"lengths": _lengths, "coverage": _coverage, "orders": _orders, "stories": _stories}.get(document["study"])
    if body is None:
        raise DataError(f"unknown study {document['study']!r}")
    return f"{body(document['result'])}\n{origin(document)}"


def origin(document: Mapping[str, Any]) -> str:
    """The last lines of every page."""
    p, model, text = document["provenance"], document["provenance"]["model"], document["text"]
    commit, weights = ((value or "unknown")[:12] for value in (p["commit"], model["weights_sha256"]))
    return (
        f"Made from JSON by `pmlm bench report`; measured by `{p['command']}` on commit {commit}, model "
        f"{model['name']} (weights {weights}), text `{text['file']}` (sha256 {text['sha256'][:12]}), {p['machine']}.\n"
    )


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def bits(figure: Mapping[str, Any] | None) -> str:
    """With its standard error where there is one."""
    if figure is None or figure.get("bits_per_byte") is None:
        return "–"
    error = figure.get("bits_per_byte_stderr")
    return f"{figure['bits_per_byte']:.3f}" + ("" if error is None else f" ± {error:.3f}")


def appraisal_rows(named: Mapping[str, Mapping[str, Any] | None]) -> list[list[str]]:
    return [
        [name, bits(each.get("judge")), *(f"{each[key]:.3f}" if key in each else "–" for key in STATISTICS)]
        for name, each in named.items()
        if each is not None
    ]


APPRAISAL_HEAD = ["", "judge, bits per byte", *STATISTICS.values()]


def _lengths(result: Mapping[str, Any]) -> str:
    parts = ["# How long is a blank?\n"]
    titles = {"word": "One word", "long word": "One word of two tokens or more", "span": "A span of words"}
    for kind, title in titles.items():
        each = result[kind]
        rows = [
            [name, percent(s["exact"]) + _error(s["exact_stderr"]), percent(s["within_one"]), f"{s['mean_error']:.2f}"]
            for name, s in sorted(each["scores"].items(), key=lambda item: -item[1]["exact"])
        ]
        least, most = each["lengths"]
        parts.append(
            f"## {title}: {each['items']} held-out sentences, lengths {least} to {most}, {result['visibility']}\n\n"
            + table(["score", "true length", "within one", "mean error, tokens"], rows)
        )
        lengths = list(each["exact_by_true_length"].items())
        names = [name for name in lengths[0][1] if name != "items"]
        parts.append(
            "True length chosen, by the true length:\n\n"
            + table(
                ["score", *(f"{n} ({f['items']})" for n, f in lengths)],
                [[name, *(percent(f[name]) for _, f in lengths)] for name in names],
            )
        )
    return "\n".join(parts)


def _error(value: float | None) -> str:
    return "" if value is None else f" ± {100 * value:.1f}"


def _coverage(result: Mapping[str, Any]) -> str:
    s = result["settings"]
    return (
        "# Words that must appear\n\n"
        f"{result['sets']} random sets of {s['fewest']} to {s['most']} of the {s['common']} commonest words, "
        f"{s['length']} tokens, order {s['order']}, {result['visibility']}: satisfied {result['satisfied']} "
        f"({percent(result['satisfied_share'])}), refused with an error {result['errors']}, "
        f"neither {result['broken']}.\n\n" + table(APPRAISAL_HEAD, appraisal_rows(result["appraisal"]))
    )


def _orders(result: Mapping[str, Any]) -> str:
    rows = [
        [name, f"{f['bits_per_byte']:.4f}", f"{f['nats_per_token']:.4f}" + _nats_error(f), f"{f['perplexity']:.3f}"]
        for name, f in sorted(result["exact"].items(), key=lambda item: item[1]["nll"])
    ]
    some = next(iter(result["exact"].values()))
    parts = [
        "# Which order is best?\n",
        f"## Real text: exact NLL along each order, {some['rows']} windows of at most {result['context']} slots, "
        f"{some['tokens']} tokens, {result['visibility']}\n\n"
        + table(["order", "bits per byte", "nats per token", "perplexity"], rows),
    ]
    for share, each in result["written"].items():
        parts.append(
            f"## Written text, {float(share):.0%} of the words hidden\n\n" + table(APPRAISAL_HEAD, appraisal_rows(each))
        )
    failed = sum(row.get("failed", 0) for each in result["written"].values() for row in each.values())
    if failed:
        parts.append(f"{failed} texts were not found under whole words and are left out.\n")
    return "\n".join(parts)


def _nats_error(figure: Mapping[str, Any]) -> str:
    error = figure["nats_per_token_stderr"]
    return "" if error is None else f" ± {error:.4f}"


def _stories(result: Mapping[str, Any]) -> str:
    return "# The story model on held-out stories\n\n" + story_tables(result)


def story_tables(result: Mapping[str, Any]) -> str:
    """The figures of the story model; also the heart of its card."""
    s = result["settings"]
    parts = [
        f"### Likelihood: bits per byte (perplexity per token)\n\nThe bound on {s['documents']} held-out stories; "
        f"exact figures on {s['exact_documents']} of them, along the model's own order on {s['policy_documents']}. An "
        "any-order model knows how long a text is, a GPT does not.\n\n" + _likelihood_table(result),
    ]
    if not result["same_vocabulary"]:
        parts.append("The GPT has a vocabulary of its own, so its windows are cut at other places.\n")
    rows = [
        [visibility, *(f"{percent(f['accuracy'])} of {f['words']}" for f in shares.values())]
        for visibility, shares in result["hidden_words"].items()
    ]
    if rows:
        heads = [f"{float(share):.0%} hidden" for share in next(iter(result["hidden_words"].values()))]
        parts.append(
            "### Hidden words guessed right (top 1)\n\nWhole words, the number of their tokens given, while everything "
            "hidden stays hidden.\n\n" + table(["visibility", *heads], rows)
        )
    free = result["free_stories"]
    parts.append(
        f"### Free stories before an outside judge\n\n{s['stories']} stories of the lengths of as many real ones; "
        f"temperature {s['temperature']:g}, top-p {s['top_p']:g}.\n\n"
        + table(APPRAISAL_HEAD, appraisal_rows(free["appraisal"]))
    )
    storage = result["storage"]
    parts.append(
        f"### What storage costs ({storage['visibility']})\n\n"
        + table(
            ["weights", "bits per byte", "cost"],
            [
                [kind, f"{b:.5f}", f"{100 * storage['cost'][kind]:+.3f} %"]
                for kind, b in storage["bits_per_byte"].items()
            ],
        )
    )
    return "\n".join(parts)


def _figure(figure: Mapping[str, Any] | None) -> str:
    return "–" if figure is None else f"{figure['bits_per_byte']:.4f} ({figure['perplexity']:.2f})"


def _likelihood_table(result: Mapping[str, Any]) -> str:
    orders = ("bound", "l2r", "random", "confidence")
    named = list(result["likelihood"].items())
    if result["gpt"] is not None:
        named.append(("GPT", result["gpt"]["causal"]))
    rows = [
        [name, length, *(_figure(f.get(order)) for order in orders)]
        for name, lengths in named
        for length, f in lengths.items()
    ]
    return table(["model", "slots", "bound, all orders", "l2r", "random", "confidence"], rows)
