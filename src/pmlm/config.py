"""Typed settings: frozen dataclasses <-> plain data and TOML, with overrides such as `masking.high=0.5`.

Knows no setting by name. Every problem of a file is reported at once; an unknown key comes with a suggestion.
What a setting means stands beside the code that it configures.
"""

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pmlm.errors import ConfigError

T = TypeVar("T")


def from_dict(cls: type[T], data: Mapping[str, Any], *, where: str = "") -> T:
    """Build the settings class `cls` from plain data; raise one ConfigError that names every problem."""
    problems: list[str] = []
    value = _build(cls, data, where, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return typing.cast(T, value)


def to_dict(settings: Any) -> dict[str, Any]:
    """Plain data that JSON and TOML can hold; absent optional values are left out."""
    return {
        field.name: _plain(value)
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) is not None
    }


def load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no settings file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"cannot read settings from {path}: {error}") from None


def named_files(package: str, folder: str) -> dict[str, Path]:
    """The settings files inside the package, by name."""
    found = (resources.files(package) / folder).iterdir()
    return {path.name.removesuffix(".toml"): Path(str(path)) for path in found if path.name.endswith(".toml")}


def load_named(name: str, known: Mapping[str, Path], what: str) -> dict[str, Any]:
    """Settings by name, or of a TOML file by path."""
    path = Path(name)
    if path.suffix == ".toml":
        return load_toml(path)
    if name not in known:
        raise ConfigError(f"no {what} {name!r}. Known: {', '.join(sorted(known))}; or give a .toml file.")
    return load_toml(known[name])


def with_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply `a.b=value` overrides; a value is TOML, or a bare word for a string."""
    result = _deep_copy(data)
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"override {override!r} is not of the form section.name=value")
        *sections, name = [part.strip() for part in path.split(".")]
        place = result
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f"override {override!r}: {section!r} is a value, not a section")
        place[name] = _parse_value(text.strip())
    return result


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _deep_copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _deep_copy(value) if isinstance(value, Mapping) else value for key, value in data.items()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _build(cls: Any, data: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(data, Mapping):
        problems.append(f"setting {where!r} must be a section, got {data!r}")
        return None
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    before = len(problems)
    for key in data:
        if key not in fields:
            problems.append(f"unknown setting {_join(where, key)!r}. {_suggest(key, fields)}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], _join(where, name), problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"setting {_join(where, name)!r} is missing")
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:
        problems.append(f"{where}: {error}" if where else str(error))
        return None


def _convert(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where, problems)
    if origin is types.UnionType or origin is typing.Union:
        (inner,) = [arg for arg in args if arg is not type(None)]
        return None if value is None else _convert(inner, value, where, problems)
    if origin is typing.Literal:
        if value not in args:
            problems.append(f"setting {where!r} must be one of {', '.join(map(str, args))}; got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            problems.append(f"setting {where!r} must be a list, got {value!r}")
            return ()
        return tuple(_convert(args[0], item, f"{where}[{i}]", problems) for i, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        problems.append(f"setting {where!r} must be {_TYPE_NAMES.get(hint, hint)}, got {value!r}")
    return value


_TYPE_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _suggest(key: str, fields: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key, fields, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return f"{guess}Known: {', '.join(sorted(fields))}."
