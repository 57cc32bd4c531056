"""Studies as Markdown, made from their documents and nothing else: no figure is typed by hand."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pmlm.errors import DataError
from pmlm.evaluation import difference, ratio_stderr
from pmlm.keeping import markdown_table, tokens_of

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


def origin(document: Mapping[str, Any], by: str = "pmlm bench report") -> str:
    """The last lines of every page; `by` is the command that makes it."""
    p, model, text = document["provenance"], document["provenance"]["model"], document["text"]
    commit, weights = ((value or "unknown")[:12] for value in (p["commit"], model["weights_sha256"]))
    added = document.get("added")
    later = "" if added is None else f" What stands beside the model was added by `{added['command']}`."
    if (gpt := document.get("gpt")) is not None and "tokens_seen" in gpt:
        later += f" The model has seen {tokens_of(model):,} tokens, the GPT {tokens_of(gpt):,}."
    return (
        f"Made from JSON by `{by}`; measured by `{p['command']}` on commit {commit}, model "
        f"{model['name']} (weights {weights}), text `{text['file']}` (sha256 {text['sha256'][:12]}), {p['machine']}."
        f"{later}\n"
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
        _order_summary(result),
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


def _order_summary(result: Mapping[str, Any]) -> str:
    """One line per order; differences are to the first order of all, on the same rows and texts."""
    first = next(iter(result["exact"]))
    shares = [f"{float(share):.0%}" for share in result["infilling"]]
    written = [f"{float(share):.0%}" for share in result["written"]]
    head = ["order", f"whole windows, nats per token (to {first})", *(f"{s} hidden (to {first})" for s in shares)]
    head += [f"judge, {s} written (to {first})" for s in written]
    rows = []
    for name, figure in result["exact"].items():
        cells = [_against(figure, result["exact"][first])]
        cells += [_against(each[name], each[first]) for each in result["infilling"].values()]
        cells += [_judged_against(each[name], each[first]) for each in result["written"].values()]
        rows.append([name, *cells])
    return (
        "Nats per token of real text: of whole windows, and of hidden words given the others; then the judge's bits "
        f"per byte of what is written. In brackets the difference to {first}, with its standard error over the same "
        "documents or texts.\n\n" + table(head, rows)
    )


def _against(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    apart, error = difference(one["row_documents"], one["row_tokens"], one["row_nll"], other["row_nll"])
    return f"{one['nats_per_token']:.3f} ({apart:+.3f} ± {error or 0:.3f})"


def _judged_against(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    if one["judge"] is None or other["judge"] is None:
        return "–"
    bits_of = [_text_bits(each) for each in (one, other)]
    both = sorted(bits_of[0].keys() & bits_of[1].keys())
    pairs = [
        (bits_of[0][i] - bits_of[1][i] * len(one["all"][i].encode()) / len(other["all"][i].encode()),
         len(one["all"][i].encode()))
        for i in both
    ]  # fmt: skip
    mean = sum(a for a, _ in pairs) / max(1, sum(n for _, n in pairs))
    return f"{one['judge']['bits_per_byte']:.3f} ({mean:+.3f} ± {ratio_stderr(pairs) or 0:.3f})"


def _text_bits(each: Mapping[str, Any]) -> dict[int, float]:
    found = [i for i, text in enumerate(each["all"]) if text is not None]
    return dict(zip(found, each["judge"]["text_bits"], strict=True))


def _nats_error(figure: Mapping[str, Any]) -> str:
    error = figure["nats_per_token_stderr"]
    return "" if error is None else f" ± {error:.4f}"


def _stories(result: Mapping[str, Any]) -> str:
    return "# The story model on held-out stories\n\n" + story_tables(result)


def story_tables(result: Mapping[str, Any]) -> str:
    """The figures of the story model; also the heart of its card."""
    s = result["settings"]
    parts = [
        f"### Likelihood: bits per byte (perplexity per token)\n\nThe bound on {s['documents']} held-out stories, and "
        "exact figures too where one pass gives them; bidirectional ones, a pass per token, on "
        f"{s['exact_documents']} of them, along the model's own order on {s['policy_documents']}. With standard errors "
        "over stories: compare figures of the same number of stories. An any-order model knows how long a text is, a "
        "GPT does not; the GPT's bound is its exact figure.\n\n" + _likelihood_table(result),
    ]
    if not result["same_vocabulary"]:
        parts.append("The GPT has a vocabulary of its own, so its windows are cut at other places.\n")
    parts.append(_paired_table(result))
    rows = [
        [visibility, *(f"{percent(f['accuracy'])} ± {_points(f)} of {f['words']}" for f in shares.values())]
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
        f"temperature {s['temperature']:g}, top-p {s['top_p']:g}. An any-order model knows where a story ends, a GPT "
        "does not: its stories are cut there.\n\n" + table(APPRAISAL_HEAD, appraisal_rows(free["appraisal"]))
    )
    storage = result["storage"]
    if storage is None:
        parts.append("### What storage costs\n\nNot measured: the weights were stored in fewer than 32 bits already.\n")
        return "\n".join(parts)
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


def _points(figure: Mapping[str, Any]) -> str:
    """The standard error of a share, in points of a hundred."""
    return f"{100 * (figure.get('accuracy_stderr') or 0):.1f}"


def paired(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, float | None, int]:
    """Nats per token apart over the documents that both were measured on, the error of that, and their number."""
    both = set(one["row_documents"]) & set(other["row_documents"])
    (documents, tokens, ours), (_, _, theirs) = (_rows_of(figure, both) for figure in (one, other))
    return *difference(documents, tokens, ours, theirs), len(both)


def _rows_of(figure: Mapping[str, Any], wanted: Container[int]) -> tuple[list[int], list[int], list[float]]:
    """Document, tokens and nats of the rows of some documents."""
    rows = zip(figure["row_documents"], figure["row_tokens"], figure["row_nll"], strict=True)
    some = [row for row in rows if row[0] in wanted]
    return [d for d, _, _ in some], [n for _, n, _ in some], [nll for _, _, nll in some]


def pairs_of(result: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any], Mapping[str, Any]]]:
    """What is compared on the same stories, at the greatest length: (visibility, what, one, other)."""
    found = []
    for visibility, lengths in result["likelihood"].items():
        longest = max(lengths, key=int)
        ours, gpt = lengths[longest], (result["gpt"] or {}).get("causal", {}).get(longest)
        found += [(visibility, f"{o} less l2r", ours[o], ours["l2r"]) for o in ("random", "confidence") if o in ours]
        if gpt is not None and result["same_vocabulary"]:
            found.append((visibility, "l2r less the GPT's", ours["l2r"], gpt["l2r"]))
    return found


def _paired_table(result: Mapping[str, Any]) -> str:
    rows = []
    for visibility, what, one, other in pairs_of(result):
        apart, error, documents = paired(one, other)
        rows.append([visibility, what, f"{apart:+.3f} ± {error or 0:.3f}", str(documents)])
    return "On the same stories, at the greatest length:\n\n" + table(
        ["visibility", "difference", "nats per token", "stories"], rows
    )


def _figure(figure: Mapping[str, Any] | None) -> str:
    return "–" if figure is None else f"{bits(figure)} ({figure['perplexity']:.2f})"


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
