"""Which recipe learns fastest? Trains the arms below for equal numbers of tokens and tabulates held-out bits per byte.

    python scripts/search_recipe.py --data CORPUS --tokens 2000000 [--only NAME …] [--out results/recipe]
    python scripts/search_recipe.py --table results/recipe
    python scripts/search_recipe.py --data CORPUS --measure runs/recipe/RUN/model --visibility order-causal

Each arm is the base with a few settings changed; a finished arm is not run again, an interrupted one goes on from its
last checkpoint; one that begins with another's weights wants that one's folder. The third command measures a model in a
visibility that it was not trained for last, on the windows of the table. The corpus is made by `pmlm prepare
wiki_AA.txt.xz --vocab-size 8192 --drop overlap_with_wikitext_valid_test.tsv --out CORPUS`; each record says of which
files and settings it was made.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, get_args

import torch

from pmlm import load
from pmlm.config import from_dict, to_dict, with_overrides
from pmlm.corpus.rows import heldout_rows
from pmlm.corpus.shards import open_corpus
from pmlm.evaluation import Scorer
from pmlm.keeping import alone_in, made, markdown_table, write_text
from pmlm.model import Visibility
from pmlm.training.loop import read_metrics
from pmlm.training.plan import work_per_token
from pmlm.training.run import MODEL, Evaluation, Run, with_tokens
from pmlm.training.settings import TrainSettings

BASE = {
    "name": "base",
    "batch_rows": 8,
    "model": {
        "num_layers": 4, "width": 256, "num_heads": 4, "ff_width": 1024, "max_length": 128,
        "positions": "rotary", "norm": "pre", "norm_eps": 1e-5, "dropout": 0.0,
    },
    "optim": {"kind": "muon", "lr": 0.002, "matrix_lr": 0.02, "warmup_steps": 50, "decay": "linear", "final": 0.05},
    "evaluation": {"every": 0, "rows": 512, "lengths": [32, 128]},
    "saving": {"every": 100, "keep": 1},
}  # fmt: skip
PMLM = {"objective": {"kind": "pmlm"}}
PMLM_MEAN = {"objective": {"kind": "pmlm", "weighting": "token-mean"}}
APLM = {"objective": {"kind": "aplm", "weighting": "token-mean"}}
GIVEN = {"objective": {"kind": "aplm", "weighting": "token-mean", "given_prob": 0.5}}
L2R = {"objective": {"kind": "aplm", "weighting": "token-mean", "order": "l2r"}}


def mix(*members: tuple[dict[str, Any], float, float]) -> list[dict[str, Any]]:
    return [member | {"start": start, "end": end} for member, start, end in members]


ROWS_16, ROWS_32 = ["batch_rows=16"], ["batch_rows=32"]
NEAR, RELATIVE = ["model.near_start=2.0"], ["model.positions=relative"]
ARMS: dict[str, dict[str, Any]] = {
    "u-pmlm-32-rows": {"members": [PMLM], "set": ROWS_32},
    "mix-given-85-50-32-rows": {"members": mix((GIVEN, 0.85, 0.5), (PMLM, 0.15, 0.5)), "set": ROWS_32},
    "mix-given-85-50": {"members": mix((GIVEN, 0.85, 0.5), (PMLM, 0.15, 0.5))},
    "u-pmlm": {"members": [PMLM]},
    "aplm": {"members": [APLM]},
    "u-pmlm-known-only": {"members": [{"objective": {"kind": "pmlm", "visibility": "known-only"}}]},
    "u-pmlm-relative": {"members": [PMLM], "set": RELATIVE},
    "u-pmlm-relative-sinusoidal": {"members": [PMLM], "set": ["model.positions=relative-sinusoidal"]},
    "u-pmlm-adamw": {"members": [PMLM], "set": ["optim.kind=adamw", "optim.lr=0.001"]},
    "mix-aplm-85-25": {"members": mix((APLM, 0.85, 0.25), (PMLM, 0.15, 0.75))},
    "u-pmlm-token-mean": {"members": [PMLM_MEAN]},
    "u-pmlm-low-first": {"members": [{"objective": {"kind": "pmlm", "masking": {"start_prior": {"high": 0.3}, "ramp": 0.5}}}]},
    "mix-l2r-75-25": {"members": mix((L2R, 0.75, 0.25), (PMLM, 0.25, 0.75))},
    "u-pmlm-absolute": {"members": [PMLM], "set": ["model.positions=absolute"]},
    "u-pmlm-count": {"members": [{"objective": {"kind": "pmlm", "masking": {"draw": "count"}}}]},
    "u-pmlm-post-norm": {"members": [PMLM], "set": ["model.norm=post"]},
    "u-pmlm-lamb": {"members": [PMLM], "set": ["optim.kind=lamb", "optim.lr=0.005"]},
    "gpt": {"members": [{"objective": {"kind": "alm"}}]},
    # heads that begin by looking at a neighbour
    "u-pmlm-token-mean-near": {"members": [PMLM_MEAN], "set": NEAR},
    "u-pmlm-relative-token-mean-near": {"members": [PMLM_MEAN], "set": [*RELATIVE, *NEAR]},
    "u-pmlm-absolute-token-mean-near": {"members": [PMLM_MEAN], "set": ["model.positions=absolute", *NEAR]},
    "mix-given-85-50-token-mean-near": {"members": mix((GIVEN, 0.85, 0.5), (PMLM_MEAN, 0.15, 0.5)), "set": NEAR},
    "aplm-near": {"members": [APLM], "set": NEAR},
    # the finalists
    "mix-given-85-50-near-16-rows": {"members": mix((GIVEN, 0.85, 0.5), (PMLM_MEAN, 0.15, 0.5)), "set": [*ROWS_16, *NEAR]},
    "aplm-near-16-rows": {"members": [APLM], "set": [*ROWS_16, *NEAR]},
    "u-pmlm-relative-near-16-rows": {"members": [PMLM_MEAN], "set": [*ROWS_16, *RELATIVE, *NEAR]},
    # order-causal first, then u-PMLM alone: from the weights of a finalist
    "aplm-10M-then-u-pmlm": {
        "members": [PMLM_MEAN], "from": ("aplm-near-16-rows", 10_000_000),
        "set": [*ROWS_16, *NEAR, "optim.lr=0.001", "optim.matrix_lr=0.01", "optim.warmup_steps=20"],
    },
    "mix-aplm-100-0-near": {"members": mix((APLM, 1.0, 0.0), (PMLM_MEAN, 0.0, 1.0)), "set": NEAR},
    # one vote per text, the paper's equation; two masks of each row
    "u-pmlm-row-near": {"members": [{"objective": {"kind": "pmlm", "weighting": "row"}}], "set": NEAR},
    "u-pmlm-two-masks-near": {"members": [{"objective": PMLM_MEAN["objective"] | {"masks": 2}}], "set": NEAR},
}  # fmt: skip


def settings_of(name: str, tokens: int) -> TrainSettings:
    arm = ARMS[name]
    data = with_overrides(BASE | {"name": name, "objective": {"members": arm["members"]}}, arm.get("set", []))
    return with_tokens(from_dict(TrainSettings, data), tokens)


def run_arm(name: str, corpus_folder: Path, tokens: int, out: Path, work: Path) -> None:
    target = out / f"{name}-{tokens / 1e6:g}M.json"
    if target.is_file():
        return
    start = ARMS[name].get("from")
    if start is not None and not (work / f"{start[0]}-{start[1]}" / MODEL).is_dir():
        print(f"{name}: left out, since it begins with {start[0]} after {start[1]} tokens, which is not there")
        return
    run = Run(
        settings_of(name, tokens), open_corpus(corpus_folder), work / f"{name}-{tokens}", device=torch.device("cpu"),
        init_from=None if start is None else load(work / f"{start[0]}-{start[1]}" / MODEL),
    )  # fmt: skip
    with alone_in(run.folder):
        run.resume()
        for event in run.events():
            if isinstance(event, Evaluation):
                print(f"{name}: {json.dumps(event.bits_per_byte)}", flush=True)
                write_text(target, json.dumps(record_of(run, event, tokens), indent=2) + "\n")


def record_of(run: Run, measured: Evaluation, tokens: int) -> dict[str, Any]:
    steps = [record for record in read_metrics(run.folder) if record["kind"] == "step"]
    name = run.settings.name
    return {
        "name": name, "command": f"python scripts/search_recipe.py --tokens {tokens} --only {name}",
        **run.origin, "tokens": steps[-1]["tokens"], "steps": steps[-1]["step"], "parameters": run.model.num_parameters(),
        "bits_per_byte": measured.bits_per_byte, "settings": to_dict(run.settings), "corpus": run.corpus.manifest["recipe"],
        "made": made(sum(step["seconds"] for step in steps)),
    }  # fmt: skip


def measured_as(model: Path, corpus_folder: Path, visibility: Visibility) -> dict[int, float]:
    """Bits per byte of a model in one visibility, on the windows and with the draws of every arm's evaluation."""
    lm, corpus, wanted = load(model), open_corpus(corpus_folder), settings_of("u-pmlm", 1).evaluation
    scorer = Scorer(lm.model, corpus.tokenizer, visibility, seed=0)
    bounds = {n: scorer.bound(heldout_rows(corpus, n, wanted.rows)) for n in wanted.lengths}
    return {n: bound.nll / math.log(2) / bound.num_bytes for n, bound in bounds.items()}


def _seen(record: dict[str, Any]) -> int:
    """Tokens, those of the weights that an arm began with included."""
    return int(record["tokens"] + record.get("tokens_before", 0))


def table(folder: Path) -> str:
    kinds = ("bidirectional", "order-causal", "known-only", "causal")
    head = ["arm", "tokens", *(f"{kind} 32 / 128" for kind in kinds), "arithmetic per token"]
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    records.sort(key=lambda r: (-_seen(r) // 10**6, min(f["128"] for f in r["bits_per_byte"].values())))
    unit = work_per_token(settings_of("u-pmlm", 1))
    rows = []
    for r in records:
        found = [r["bits_per_byte"].get(kind) for kind in kinds]
        cells = [f"{f['32']:.3f} / {f['128']:.3f}" if f else "–" for f in found]
        ratio = work_per_token(from_dict(TrainSettings, r["settings"])) / unit
        start = f"{r['tokens_before'] / 1e6:.1f}M + " if "tokens_before" in r else ""
        rows.append([r["name"], f"{start}{r['tokens'] / 1e6:.1f}M", *cells, f"{ratio:.2f}"])
    return markdown_table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--only", nargs="*", choices=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("results/recipe"))
    parser.add_argument("--work", type=Path, default=Path("runs/recipe"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--measure", type=Path, metavar="MODEL")
    parser.add_argument("--visibility", choices=get_args(Visibility), default="order-causal")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return
    if options.measure:
        print(json.dumps(measured_as(options.measure, options.data, options.visibility)))
        return
    for name in options.only or ARMS:
        run_arm(name, options.data, options.tokens, options.out, options.work)


if __name__ == "__main__":
    main()
