"""What an hour of adaptation makes of a BERT: held-out bits per byte before and after, and of fresh weights.

    python scripts/adapt_bert.py --bert BERT --text wikipedia/*.xz --drop overlap.tsv [--tokens 2000000] [--arms …]
    python scripts/adapt_bert.py --table results/adapt

The BERT is converted, the text prepared in its vocabulary, the arms are trained side by side on a core each, and all are
measured on the held-out documents, with the bytes of the text as it was written. Start it again after an interrupt: what
is finished is not done again, a run goes on from its last checkpoint.
"""

import argparse
import contextlib
import io
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from pmlm.cli import run
from pmlm.corpus.documents import iter_documents
from pmlm.corpus.prepare import PrepareSettings, read_ids, split_of
from pmlm.keeping import write_text
from pmlm.training.loop import read_metrics

ARMS = {"adapted": [], "scratch": ["--from-scratch"], "both": ["--both"]}
NAMES = {
    "before": "as it came",
    "adapted": "adapted",
    "scratch": "from fresh weights",
    "both": "adapted, both visibilities",
}
TRAINING = [
    "evaluation.every=100",
    "evaluation.lengths=[128]",
    "evaluation.rows=128",
    "saving.every=50",
    "saving.keep=1",
]
HELDOUT = PrepareSettings().heldout


def command(*arguments: str | Path) -> str:
    """Run `pmlm …` here and return what it prints; its error line has been printed where it fails."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run([str(argument) for argument in arguments])
    if code:
        sys.exit(code)
    return printed.getvalue()


def prepare(options: argparse.Namespace) -> None:
    """The BERT in our format, its corpus, and the held-out documents as text."""
    start, corpus, heldout = (options.work / name for name in ("start", "corpus", "heldout.jsonl"))
    if not (start / "config.json").is_file():
        command("convert", options.bert, "--out", start)
    drop = [part for path in options.drop for part in ("--drop", path)]
    size = ("--heldout", str(options.heldout))
    print(command("prepare", *options.text, "--tokenizer", start, "--out", corpus, *drop, *size), end="", flush=True)
    if heldout.is_file():
        return
    dropped = {key for path in options.drop for key in read_ids(path)}
    documents = (d for path in options.text for d in iter_documents(path) if d.id is None or d.id not in dropped)
    kept = [d.text for d in documents if split_of(d.text, options.heldout) == "heldout"]
    write_text(heldout, "".join(json.dumps({"text": text}) + "\n" for text in kept))


def training_arguments(name: str, options: argparse.Namespace) -> list[str]:
    arguments = ["adapt", options.work / "start", "--data", options.work / "corpus", "--out", run_folder(name, options)]
    arguments += ["--tokens", options.tokens, "--threads", options.threads, "--device", "cpu", *ARMS[name]]
    return [*map(str, arguments), *(f"--set={setting}" for setting in (*TRAINING, *options.set))]


def run_folder(name: str, options: argparse.Namespace) -> Path:
    return options.work / f"{name}-{options.tokens}"


def train(names: list[str], options: argparse.Namespace) -> None:
    """All arms at once, a process each; an interrupt stops them after their step, and they save."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for name in names:
            path = options.work / f"{name}-{options.tokens}.log"
            arguments = [sys.executable, "-m", "pmlm", *training_arguments(name, options)]
            with path.open("ab") as log:
                running[name] = subprocess.Popen(
                    arguments, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            print(f"{name}: training, see {path}", flush=True)
        codes = {name: process.wait() for name, process in running.items()}
    except KeyboardInterrupt:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        print("interrupted: the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    if failed := [name for name, code in codes.items() if code]:
        sys.exit(f"{', '.join(failed)}: training failed, see {options.work}/{failed[0]}-{options.tokens}.log")


def measure(name: str, model: Path, options: argparse.Namespace, target: Path) -> None:
    """The order-averaged bound on all held-out windows, and exact figures on a few; every model sees the same draws."""
    if target.is_file():
        return
    arguments = [
        "--context",
        str(options.context),
        "--order",
        "l2r,random",
        "--limit",
        str(options.exact),
        "--max-slots",
        "4096",
    ]
    if name == "both":
        arguments += ["--visibility", "bidirectional"]
    report = json.loads(command("evaluate", options.work / "heldout.jsonl", "-m", model, *arguments, "--json"))
    record = {
        "name": name,
        "command": shlex.join(["python", *map(told, sys.argv)]),
        "machine": f"{platform.machine()}, {options.threads} threads a run, torch {torch.__version__}",
        "report": report,
        **(training_facts(run_folder(name, options)) if name in ARMS else {"tokens": 0}),
    }
    write_text(target, json.dumps(record, indent=2) + "\n")


def told(argument: str) -> str:
    """An argument without the way to a file that is elsewhere: only its name means something to others."""
    path = Path(argument)
    return path.name if path.is_absolute() or ".." in path.parts else argument


def training_facts(folder: Path) -> dict[str, Any]:
    lines = read_metrics(folder)
    steps = [line for line in lines if line["kind"] == "step"]
    return {
        "tokens": steps[-1]["tokens"],
        "steps": steps[-1]["step"],
        "training_seconds": round(sum(step["seconds"] for step in steps)),
        "curve": {line["step"]: line["headline"] for line in lines if line["kind"] == "evaluation"},
        "settings": json.loads((folder / "settings.json").read_text())["settings"],
    }


def bits(figure: dict[str, Any], *, error: bool = False) -> str:
    """Bits per byte, with the standard error over documents where wanted."""
    per_byte = figure["tokens"] / (math.log(2) * figure["bytes"])
    known = error and figure["nats_per_token_stderr"] is not None
    spread = f" ± {figure['nats_per_token_stderr'] * per_byte:.3f}" if known else ""
    return f"{figure['bits_per_byte']:.3f}{spread}"


def table(folder: Path) -> str:
    """For docs/log.md, in the order of the names above."""
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    records.sort(key=lambda r: (list(NAMES).index(r["name"]), r["tokens"]))
    head = "| | tokens | training | bits per byte, all orders | exact, l2r | exact, random |\n|---|---|---|---|---|---|"
    rows = [
        f"| {NAMES[r['name']]} | {r['tokens'] / 1e6:.2f}M | {r.get('training_seconds', 0) / 60:.0f} min "
        f"| {bits(r['report']['bound'], error=True)} | {bits(r['report']['exact']['l2r'])} "
        f"| {bits(r['report']['exact']['random'])} |"
        for r in records
    ]
    return "\n".join([head, *rows])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bert", type=Path, help="folder of the checkpoint")
    parser.add_argument("--text", type=Path, nargs="+", help="files to train on; their held-out documents are measured")
    parser.add_argument("--drop", type=Path, nargs="*", default=[], help="files with ids of documents to leave out")
    parser.add_argument("--heldout", type=float, default=HELDOUT, help="share of documents held out")
    parser.add_argument("--tokens", type=int, default=2_000_000, help="for each arm")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["adapted", "scratch"])
    parser.add_argument("--threads", type=int, default=1, help="of each arm; all arms run at once")
    parser.add_argument("--context", type=int, default=128, help="slots of a window that is measured")
    parser.add_argument("--exact", type=int, default=16, help="windows with exact figures")
    parser.add_argument("--set", action="append", default=[], help="a setting of all arms: optim.lr=0.0003")
    parser.add_argument("--work", type=Path, default=Path("runs/adapt"))
    parser.add_argument("--out", type=Path, default=Path("results/adapt"))
    parser.add_argument("--table", type=Path, help="only print the table of such a folder")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(options.table))
        return
    if not options.bert or not options.text:
        parser.error("--bert and --text are needed")
    options.work.mkdir(parents=True, exist_ok=True)
    prepare(options)
    measure("before", options.work / "start", options, options.out / "before.json")
    targets = {name: options.out / f"{name}-{options.tokens / 1e6:g}M.json" for name in options.arms}
    train([name for name, target in targets.items() if not target.is_file()], options)
    for name, target in targets.items():
        measure(name, run_folder(name, options) / "model", options, target)
    print(table(options.out))


if __name__ == "__main__":
    main()
