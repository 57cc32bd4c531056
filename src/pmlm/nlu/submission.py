"""Test predictions as GLUE's leaderboard wants them: a zip of TSV files, each with its name, header and labels."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmlm.errors import RunError
from pmlm.nlu.finetuned import Finetuned
from pmlm.nlu.framing import frame_texts
from pmlm.nlu.glue import GlueData
from pmlm.nlu.predict import decide, predict
from pmlm.nlu.tasks import SUBMISSION_NAMES, GlueTask

HEADER = "index\tprediction"


def predict_test(finetuned: Finetuned, data: GlueData) -> dict[str, str]:
    """The TSV of each test file that there is, by its name in the zip."""
    task, tokenizer = data.task, finetuned.tokenizer
    spec = finetuned.model.specs[task.name]
    files: dict[str, str] = {}
    for name, split in data.test.items():
        rows = frame_texts([e.texts for e in split.examples], tokenizer, finetuned.row_length(spec))
        values = decide(spec, predict(finetuned.model, spec.name, rows, tokenizer.pad_id))
        files[name] = submission_tsv(task, [e.id for e in split.examples], values)
    return files


def submission_tsv(task: GlueTask, ids: Sequence[str], values: Sequence[float]) -> str:
    said = (f"{value:.3f}" if task.is_number else task.labels[int(value)] for value in values)
    lines = [HEADER, *(f"{key}\t{text}" for key, text in zip(ids, said, strict=True))]
    return "\n".join(lines) + "\n"


def write_submission(path: Path, files: Mapping[str, str]) -> list[str]:
    """Write the zip; returns the names that the leaderboard wants and that are missing in it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in files.items():
                archive.writestr(f"{name}.tsv", text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    return [name for name in SUBMISSION_NAMES if name not in files]
