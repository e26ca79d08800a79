"""Writes tiny datasets in the official layout."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

Object = tuple[Sequence[str], Sequence[tuple[float, float, float, float]], Mapping[str, int]]


def annotation_xml(objects: Sequence[Object], width: int = 100, height: int = 80) -> str:
    """Objects are (names, boxes in 1-based inclusive pixels, flags)."""
    lines = ["<annotation>", "<filename>x.jpg</filename>"]
    lines += ["<size>", f"<width>{width}</width>", f"<height>{height}</height>", "<depth>3</depth>", "</size>"]
    for names, boxes, flags in objects:
        lines += ["<object>", *(f"<name>{name}</name>" for name in names)]
        lines += [f"<{flag}>{value}</{flag}>" for flag, value in flags.items()]
        for box in boxes:
            sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
            lines += ["<bndbox>", *(f"<{side}>{value:g}</{side}>" for side, value in sides), "</bndbox>"]
        lines.append("</object>")
    return "\n".join([*lines, "</annotation>"])


def write_image(
    root: Path, image: str, sentences: str | bytes, objects: Sequence[Object] = (), photo: tuple[int, int] | None = None
) -> None:
    for folder in ("Sentences", "Annotations", "images"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    data = sentences if isinstance(sentences, bytes) else sentences.encode()
    (root / "Sentences" / f"{image}.txt").write_bytes(data)
    (root / "Annotations" / f"{image}.xml").write_text(annotation_xml(objects), encoding="utf-8")
    if photo is not None:
        Image.new("RGB", photo).save(root / "images" / f"{image}.jpg")
