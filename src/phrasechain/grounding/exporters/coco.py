"""COCO's JSON of object detection: images, annotations and categories.

An annotation is a phrase: its box as x, y, width, height, its category, and beside COCO's own keys ``score`` (the
probability), ``phrase``, ``caption`` and ``span``. A phrase that the photo does not show (``found`` is false) is no
annotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from phrasechain.core.schema import CATEGORIES


def coco_of(groundings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One file of groundings as ``to_dict`` gives them; captions on the same image share its entry.

    Images from memory have no path to know them by: each is an image of its own.
    """
    images: dict[tuple[object, ...], dict[str, Any]] = {}
    categories = {name: number for number, name in enumerate(CATEGORIES, 1)}
    annotations: list[dict[str, Any]] = []
    for grounding in groundings:
        if "error" in grounding:
            continue
        size = grounding["image"]
        key = (size["path"], size["width"], size["height"]) if size["path"] else (None, len(images))
        name = size["path"] or ""
        image = images.setdefault(key, {"id": len(images) + 1, "file_name": name, **_size(size)})
        for phrase in grounding["phrases"]:
            if phrase.get("found", True):
                category = categories.setdefault(phrase["category"], len(categories) + 1)
                annotations.append(_annotation(len(annotations) + 1, image["id"], category, phrase, grounding))
    return {
        "info": {"description": "phrases and the boxes that they name, by phrasechain"},
        "images": list(images.values()),
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for name, number in categories.items()],
    }


def _size(image: Mapping[str, Any]) -> dict[str, Any]:
    return {"width": image["width"], "height": image["height"]}


def _annotation(
    number: int, image: int, category: int, phrase: Mapping[str, Any], grounding: Mapping[str, Any]
) -> dict[str, Any]:
    x0, y0, x1, y1 = phrase["box"]
    width, height = round(x1 - x0, 3), round(y1 - y0, 3)
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [x0, y0, width, height],
        "area": round(width * height, 3),
        "iscrowd": 0,
        "score": phrase["probability"],
        "phrase": phrase["text"],
        "caption": grounding["caption"],
        "span": [phrase["start"], phrase["end"]],
    }
