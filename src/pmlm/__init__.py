"""Any-order language modelling: write text in any order around the words you place, with exact likelihoods.

Importing this imports no torch; what is asked for is imported then.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmlm.errors import PmlmError
    from pmlm.generation.template import acrostic
    from pmlm.lm import LM, Stream, load
    from pmlm.model import LanguageModel, ModelConfig
    from pmlm.nlu.finetuned import Finetuned, load_finetuned
    from pmlm.results import Filled, Ranked, Refined, Score, Step, Streamer
    from pmlm.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "Filled": "pmlm.results",
    "Finetuned": "pmlm.nlu.finetuned",
    "LM": "pmlm.lm",
    "LanguageModel": "pmlm.model",
    "ModelConfig": "pmlm.model",
    "PmlmError": "pmlm.errors",
    "Ranked": "pmlm.results",
    "Refined": "pmlm.results",
    "Score": "pmlm.results",
    "Step": "pmlm.results",
    "Stream": "pmlm.lm",
    "Streamer": "pmlm.results",
    "Tokenizer": "pmlm.tokenizer",
    "acrostic": "pmlm.generation.template",
    "load": "pmlm.lm",
    "load_finetuned": "pmlm.nlu.finetuned",
    "load_tokenizer": "pmlm.tokenizer",
    "train_tokenizer": "pmlm.tokenizer",
}

__all__ = [
    "LM",
    "Filled",
    "Finetuned",
    "LanguageModel",
    "ModelConfig",
    "PmlmError",
    "Ranked",
    "Refined",
    "Score",
    "Step",
    "Stream",
    "Streamer",
    "Tokenizer",
    "__version__",
    "acrostic",
    "load",
    "load_finetuned",
    "load_tokenizer",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pmlm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
