"""The errors that a user can cause or meet, one class per kind.

Each is shown as one line. Input that the user can correct exits 2, a failure of the run exits 1; anything else is a
bug and keeps its traceback.
"""


class PmlmError(Exception):
    """Something the user can correct: settings, data, a checkpoint, a template, an order."""

    exit_code = 2


class ConfigError(PmlmError):
    """A setting is unknown, of the wrong type, or impossible together with another."""


class DataError(PmlmError):
    """A text or a data file cannot be used."""


class TokenizerError(PmlmError):
    """A tokenizer file is missing, damaged, or does not fit the model."""


class CheckpointError(PmlmError):
    """A folder is no checkpoint, or its files are damaged or do not fit together."""


class TemplateError(PmlmError):
    """A template is malformed, too long, or does not fit the text it should describe."""


class ConstraintError(PmlmError):
    """What was asked of a text cannot be had."""


class OrderError(PmlmError):
    """An order is malformed, or the model cannot go along it."""


class RunError(PmlmError):
    """The input was fine but the run failed."""

    exit_code = 1


class TrainingDiverged(RunError):
    """The loss or the gradient is no longer finite."""
