"""Settings of a run: frozen dataclasses of plain values, changed by presets, TOML files and ``section.key=value``.

A settings class has one field for each section, and a section one field for each key, made by ``setting``. Its class
variables keep old files readable: ``ALIASES`` (old key to new key), ``REMOVED`` (old key to the one value that still
makes sense) and ``ADDED`` (new key to the value that it had before it was there). A module never receives settings,
only values out of them.
"""

from __future__ import annotations

import tomllib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from math import isfinite
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar, get_type_hints

from phrasechain.core.errors import DataError, library_errors, located, require_name, unknown_name
from phrasechain.core.files import decode_utf8, read_bounded

S = TypeVar("S")
Values = Mapping[str, Any]  # "section.key" to value

NO_PRESETS: Mapping[str, Values] = {"default": {}}
_FILE_LIMIT = 1 << 20
_LARGEST = (1 << 63) - 1  # whole number


def setting(default: Any, text: str, least: float | None = None, most: float | None = None) -> Any:
    """A key: its default, what it is for, and the bounds of its value. ``text`` is a cell of a Markdown table."""
    return field(default=default, metadata={"text": text, "least": least, "most": most})


def make_settings(
    settings: S,
    file: Path | None = None,
    texts: Iterable[str] = (),
    preset: str = "default",
    presets: Mapping[str, Values] = NO_PRESETS,
) -> S:
    """The settings with a preset, a TOML file and ``section.key=value`` texts applied; what comes later wins."""
    require_name("preset", preset, presets)
    settings = with_values(settings, presets[preset])
    if file is not None:
        settings = with_values(settings, flatten(settings, _read_toml(file), str(file)), str(file))
    return with_texts(settings, texts)


def with_texts(settings: S, texts: Iterable[str], where: str = "--set") -> S:
    """The settings with ``section.key=value`` texts applied, each parsed as its key's type."""
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise DataError(f"{where} takes section.key=value, such as train.rate=1e-3, not {text!r}")
        settings = with_values(settings, {name: _parse(value, _type_of(settings, name, where))}, where)
    return settings


def with_values(settings: S, values: Values, where: str = "") -> S:
    """The settings with other values, by their dotted names; ``where`` they come from is for messages."""
    for name, value in current_names(settings, values, where):
        checked = _checked(value, _type_of(settings, name, where), name, where)
        section, key = name.split(".")
        changed = replace(getattr(settings, section), **{key: checked})
        _check_bounds(changed, key, name, where)
        settings = replace(settings, **{section: changed})  # type: ignore[type-var]
    return settings


def current_names(settings: object, values: Values, where: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values, old names replaced. A removed key is left out, or refused if it asks for what is gone."""
    for name, value in values.items():
        if name not in _removed(settings):
            yield getattr(settings, "ALIASES", {}).get(name, name), value
        elif value != (left := _removed(settings)[name]):
            raise DataError(f"{_before(where)}{name}={value} was removed from phrasechain; only {left} is left")


def upgraded(settings: object, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested values of an earlier version under their present names; what is no section stays as it is."""
    found: dict[str, Any] = {key: {} if key in _names(settings) else value for key, value in values.items()}
    sections = {key: value for key, value in values.items() if key in _names(settings)}
    for name, value in current_names(settings, flatten(settings, sections, where), where):
        section, key = name.split(".", 1)
        found[section][key] = value
    for name, value in added(settings).items():
        section, key = name.split(".")
        if section in sections:
            found[section].setdefault(key, value)
    return found


def added(settings: object) -> Values:
    """The keys that files of earlier versions lack, and their values there."""
    return getattr(settings, "ADDED", {})


def flatten(settings: object, values: object, where: str) -> dict[str, Any]:
    """``{"train": {"rate": 1}}`` to ``{"train.rate": 1}``."""
    flat: dict[str, Any] = {}
    for section, keys in values.items() if isinstance(values, dict) else ((values, None),):
        if not isinstance(keys, dict):
            raise DataError(f"{where}: {section!r} stands outside a section; there are: {', '.join(_names(settings))}")
        flat |= {f"{section}.{key}": value for key, value in keys.items()}
    return flat


def key_table(settings: object, section: str) -> str:
    """The keys of a section with their defaults and what they are for, as a Markdown table."""
    rows = ["| key | default | what |", "|---|---|---|"]
    for part in fields(getattr(settings, section)):
        default = str(part.default).lower() if isinstance(part.default, bool) else str(part.default) or "–"
        rows.append(f"| `{section}.{part.name}` | {default} | {part.metadata['text']} |")
    return "\n".join(rows) + "\n"


def _read_toml(path: Path) -> dict[str, Any]:
    with located(path):
        text = decode_utf8(read_bounded(path, _FILE_LIMIT, named=False).removeprefix(BOM_UTF8))
    with library_errors(f"{path}: not TOML"):
        return tomllib.loads(text)


def _names(settings: Any) -> list[str]:
    return [part.name for part in fields(settings)]


def _removed(settings: object) -> Values:
    return getattr(settings, "REMOVED", {})


def _before(where: str) -> str:
    return f"{where}: " if where else ""


def _type_of(settings: Any, name: str, where: str) -> type:
    """The type of a key; the error for one that does not exist says what there is."""
    if name in _removed(settings):
        return type(_removed(settings)[name])
    section, dot, key = getattr(settings, "ALIASES", {}).get(name, name).partition(".")
    if section not in _names(settings):
        every = [f"{each}.{key}" for each in _names(settings) for key in _names(getattr(settings, each))]
        raise DataError(
            _before(where) + unknown_name("key" if dot else "section", name, every if dot else _names(settings))
        )
    known: dict[str, type] = get_type_hints(type(getattr(settings, section)))
    if key not in known:
        raise DataError(_before(where) + unknown_name("key", name, [f"{section}.{each}" for each in known]))
    return known[key]


def _parse(text: str, kind: type) -> Any:
    """A value out of a text; texts that are no value of the type are left for the check."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def _checked(value: Any, kind: type, name: str, where: str) -> Any:
    if type(value) is int and abs(value) > _LARGEST:
        raise DataError(f"{_before(where)}{name} has more digits than a number may have")
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not isfinite(value)):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
        raise DataError(f"{_before(where)}{name} is {wanted}, not {short(value)}")
    return value


def _check_bounds(section: Any, key: str, name: str, where: str) -> None:
    bounds = next(part.metadata for part in fields(section) if part.name == key)
    value, least, most = getattr(section, key), bounds["least"], bounds["most"]
    if least is not None and (value < least or (most is not None and value > most)):
        wanted = f"{least} or more" if most is None else f"from {least} to {most}"
        raise DataError(f"{_before(where)}{name} is {wanted}, not {value}")
