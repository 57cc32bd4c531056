"""`pmlm info`: what a checkpoint is."""

from __future__ import annotations

from typing import Any

from pmlm.cli.common import JsonOption, ModelOption, print_json


def info(model: ModelOption = None, json: JsonOption = False) -> None:
    """Describe a model: its shape, what it was trained for and on, its files."""
    from pmlm.nlu.finetuned import Finetuned, load_any

    lm = load_any(model, device="cpu")
    assert lm.folder is not None
    config = lm.model.config
    tasks = lm.tasks() if isinstance(lm, Finetuned) else []
    sampling = {} if isinstance(lm, Finetuned) else lm.sampling.choices()
    document: dict[str, Any] = {
        **lm.describe(),
        "bytes_on_disk": sum(path.stat().st_size for path in lm.folder.iterdir() if path.is_file()),
        "tasks": tasks,
        "sampling": sampling,
        "about": lm.about,
    }
    if json:
        print_json(document)
        return
    print(document["name"])
    shape = f"{config.num_layers} layers of {config.width}, {config.num_heads} heads"
    print(f"  {document['parameters']:,} parameters: {shape}")
    print(f"  positions {config.positions}, norm {config.norm}, reads {config.max_length} slots")
    print(f"  vocabulary {lm.tokenizer.vocab_size:,} ({lm.tokenizer.kind})")
    for task in tasks:
        labels = f": {', '.join(task['labels'])}" if task["labels"] else ""
        print(f"  fine-tuned for {task['name']} ({task['kind']}){labels}")
    if not tasks:
        print(f"  visibilities {', '.join(config.visibilities)} (the first is the default)")
    if not isinstance(lm, Finetuned):
        print(f"  texts are drawn at {lm.sampling}, unless told otherwise")
    for key, value in lm.about.items():
        if key != "name":
            print(f"  {key.replace('_', ' ')}: {value}")
