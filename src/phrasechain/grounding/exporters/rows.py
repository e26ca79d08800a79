"""A table of phrases: one flat row each, for pandas, CSV, Parquet or a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SIDES = ("x0", "y0", "x1", "y1")
_NESTED = ("box", "alternatives")


def rows_of(groundings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each phrase of groundings as ``to_dict`` gives them; all rows have the same columns.

    Alternatives are left out. A grounding without phrases, or one that failed, has no row.
    """
    return [_row(grounding, phrase) for grounding in groundings for phrase in grounding["phrases"]]


def _row(grounding: Mapping[str, Any], phrase: Mapping[str, Any]) -> dict[str, Any]:
    image = grounding["image"]
    return {
        "image": image["path"],
        "width": image["width"],
        "height": image["height"],
        "caption": grounding["caption"],
        **{key: value for key, value in phrase.items() if key not in _NESTED},
        **dict(zip(SIDES, phrase["box"], strict=True)),
        "model": grounding["model"],
        "decode": grounding["decode"],
    }
