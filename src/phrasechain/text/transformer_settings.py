"""The settings of a transformer from an untrusted folder: known keys alone, each number within bounds.

What is known are the keys that the configuration of that kind of model has by itself. Keys that name code, files or
other implementations are never passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from phrasechain.core.errors import DataError, library_errors
from phrasechain.core.hugging_face import import_transformers

_MOST = 4_000_000  # the largest vocabularies have a quarter of a million entries
_MOST_LAYERS = 256
_MOST_PIECES = 1_000_000  # of a caption
_MOST_ITEMS = 10_000  # of a list
_LAYERS = re.compile(r"layer|depth|block|stage|expert|branch", re.IGNORECASE)
_NEVER = re.compile(
    r"^_|implementation|auto_map|trust|quantization|kernel|name_or_path|torchscript|adapter|compile|label"
)


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a ``TransformerEncoder``, checked."""
    config, tokenizer = settings.get("config"), settings.get("tokenizer")
    if not isinstance(config, dict) or not isinstance(tokenizer, str):
        raise DataError('"config" is not an object, or "tokenizer" not a text')
    limit, name = settings.get("limit"), settings.get("name", "transformer")
    if type(limit) is not int or not 1 <= limit <= _MOST_PIECES:
        raise DataError(f'"limit" is not a whole number from 1 to {_MOST_PIECES:,}')
    if type(settings.get("frozen", True)) is not bool or not isinstance(name, str):
        raise DataError('"frozen" is not true or false, or "name" not a text')
    others = {key: value for key, value in settings.items() if key in ("tokenizer", "limit", "frozen", "name")}
    return {"config": check_config(config), **others}


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's configuration without the keys that are not of its kind, its numbers checked."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise DataError('"config" names no "model_type"')
    transformers = import_transformers("the encoder 'transformer'")
    with library_errors(f"no transformer of the kind {kind[:60]!r}"):
        known = transformers.AutoConfig.for_model(kind).to_dict()
    return _allowed(config, known) | {"model_type": kind}


def _allowed(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known or _NEVER.search(key):
            continue
        if isinstance(value, dict) and isinstance(known[key], dict) and key.endswith("_config"):
            found[key] = _allowed(value, known[key])
        else:
            _check(key, value)
            found[key] = value
    return found


def _check(key: str, value: Any, depth: int = 0) -> None:
    """Refuse a number that no model has, at any place within a value."""
    if depth > 4:
        raise DataError(f'"{key[:60]}" is nested too deeply')
    if isinstance(value, dict | list):
        if len(value) > _MOST_ITEMS:
            raise DataError(f'"{key[:60]}" has more than {_MOST_ITEMS:,} items')
        for item in value.values() if isinstance(value, dict) else value:
            _check(key, item, depth + 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        most = _MOST_LAYERS if _LAYERS.search(key) and isinstance(value, int) else _MOST
        if not abs(value) <= most and not isinstance(value, float):
            raise DataError(f'"{key[:60]}" is not within ±{most:,}')
