"""What a notebook shows of a grounding: its picture, no larger than a screen, above a table of its phrases."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from phrasechain.core.images import encode_png

if TYPE_CHECKING:
    from PIL import Image

_WIDEST = 1_000  # pixels of either side
_HEADINGS = ("phrase", "category", "probability", "box")


def notebook_png(picture: Image.Image) -> bytes:
    """The picture as PNG, made smaller where it is large: a notebook keeps what it shows."""
    picture.thumbnail((_WIDEST, _WIDEST))
    return encode_png(picture)


def notebook_html(grounding: Mapping[str, Any], png: bytes | None) -> str:
    """HTML without scripts of a grounding as ``to_dict`` gives it; every text in it is escaped."""
    if "error" in grounding:
        return f"<p><b>not grounded:</b> {escape(grounding['error'])}</p>"
    heading = "".join(f"<th>{name}</th>" for name in _HEADINGS)
    rows = "".join(_row(phrase) for phrase in grounding["phrases"])
    table = f"<table><tr>{heading}</tr>{rows}</table>" if rows else "<p>no phrase names something to be seen</p>"
    caption = escape(grounding["caption"], quote=True)
    shown = f'<img alt="{caption}" src="data:image/png;base64,{b64encode(png).decode()}">' if png else ""
    return f"<div>{shown}{table}</div>"


def _row(phrase: Mapping[str, Any]) -> str:
    sides = " ".join(f"{side:.0f}" for side in phrase["box"]) if phrase.get("found", True) else "not in the photo"
    cells = (phrase["text"], phrase["category"], f"{phrase['probability']:.0%}", sides)
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
