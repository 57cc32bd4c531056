"""What one request may ask for, and what is said when it asks for more."""

from dataclasses import dataclass

from pmlm.errors import ConfigError, PmlmError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that keep one client from taking everything."""

    body_bytes: int = 65_536
    """Of a request."""
    blanks: int = 64
    """Of a template."""
    samples: int = 16
    """Texts of one request, those that best_of drops included."""
    waiting: int = 128
    """Requests that are being served or wait; the next is told to come back later."""
    seconds: float = 60.0
    """For one request, waiting included."""
    places: int = 32
    """Texts that share forward passes. 1: one after the other."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ConfigError(f"{name} must be positive, got {value}")


class LimitError(PmlmError):
    """A request is well formed but larger than this server allows."""


class Busy(PmlmError):
    """Too many requests are being served; a later one may find room."""


class TooSlow(PmlmError):
    """A request was not done in time."""


class UnknownModel(PmlmError):
    """No model of that name, or for that route, is served."""


class WrongModel(PmlmError):
    """The model that was named is not one for this route."""


MOST_CHARACTERS = 20_000
"""Of a text or a template."""
MOST_OPTION_CHARACTERS = 2_000
MOST_ITEMS = 1_000
MOST_SPANS = 100
"""Answers that are listed."""
MOST_WORDS = 32
"""In an option that lists words: rules grow with each."""
MOST_WORD_CHARACTERS = 40
