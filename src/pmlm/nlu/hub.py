"""GLUE by name through the `datasets` library, where it is installed and its server can be reached."""

from collections.abc import Iterable, Mapping
from typing import Any

from pmlm.errors import ConfigError, DataError
from pmlm.nlu.glue import Example, GlueData, Split, assemble
from pmlm.nlu.tasks import GlueTask

_SPLITS = {"MNLI-m": "_matched", "MNLI-mm": "_mismatched"}


def load_hub_glue(task: GlueTask) -> GlueData:
    try:
        from datasets import load_dataset
    except ImportError:
        raise ConfigError(
            "the `datasets` library is not installed: give a local folder by --data, or install pmlm[data]"
        ) from None
    try:
        parts: Mapping[str, Iterable[Mapping[str, Any]]] = load_dataset("glue", task.hub)
        extra = load_dataset("glue", "ax") if "AX" in task.test else {}
    except Exception as error:  # the library raises many kinds, all of which mean that there is no data
        raise DataError(
            f"`datasets` cannot load glue/{task.hub}: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None
    test = {name: parts["test" + _SPLITS.get(name, "")] for name in task.test if name != "AX"}
    if extra:
        test["AX"] = extra["test"]
    return assemble(
        task,
        _split(parts["train"], task, labelled=True),
        {name: _split(parts["validation" + _SPLITS.get(name, "")], task, labelled=True) for name in task.dev},
        {name: _split(rows, task, labelled=False) for name, rows in test.items()},
        [],
    )


def _split(rows: Iterable[Mapping[str, Any]], task: GlueTask, *, labelled: bool) -> Split:
    """Labels are numbered there as here."""
    columns = task.hub_texts or task.texts
    return Split(
        [
            Example(str(row["idx"]), tuple(row[c] for c in columns), float(row["label"]) if labelled else None)
            for row in rows
        ]
    )
