"""The cached index of a dataset: what parsing gave, as JSON columns in the user's cache folder.

It is used only while the names, sizes and times of the dataset's files are those that were parsed, and made anew when
it is damaged. Nothing is written beside the data, which may be read-only.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from phrasechain.files import cache_folder, write_atomically
from phrasechain.schema import Caption, Example, Phrase

FORMAT = 1  # raise it whenever what is parsed or how it is kept changes


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=20).hexdigest()


def cache_path(key: str, folder: Path | None = None) -> Path:
    """Where the index of the dataset described by ``key`` (its path and how it is read) is kept."""
    return (folder or cache_folder()) / "index" / f"{digest(key.encode('utf-8', 'surrogateescape'))}.json"


def load(path: Path, signature: str) -> dict[str, Any] | None:
    """The columns kept for this very state of the files, or None if there are none that can be used."""
    try:
        header, _, body = path.read_bytes().partition(b"\n")
        if header.decode() != _header(signature, body):
            return None
        columns = json.loads(body)
    except (OSError, ValueError):
        return None
    return columns if isinstance(columns, dict) else None


def save(path: Path, signature: str, columns: Mapping[str, Any]) -> None:
    """Keep the columns; where the cache folder cannot be written, the next run parses again."""
    body = json.dumps(columns, separators=(",", ":"), ensure_ascii=True).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _header(signature, body).encode() + b"\n" + body)
    except OSError:
        return


def _header(signature: str, body: bytes) -> str:
    return f"phrasechain index {FORMAT} {signature} {digest(body)}"


@dataclass
class _Table:
    """Values kept once, and named by their position."""

    rows: dict[Hashable, int] = field(default_factory=dict)

    def add(self, value: Hashable) -> int:
        return self.rows.setdefault(value, len(self.rows))


def encode(examples: Sequence[Example]) -> dict[str, Any]:
    """The examples as columns. Tokens and photos are left out: the reader makes and finds them again."""
    categories, boxes = _Table(), _Table()
    captions = [caption for example in examples for caption in example.captions]
    phrases = [phrase for caption in captions for phrase in caption.phrases]
    return {
        "image": [example.image for example in examples],
        "width": [example.width for example in examples],
        "height": [example.height for example in examples],
        "captions": [len(example.captions) for example in examples],
        "index": [caption.index for caption in captions],
        "text": [caption.text for caption in captions],
        "phrases": [len(caption.phrases) for caption in captions],
        "start": [phrase.start for phrase in phrases],
        "end": [phrase.end for phrase in phrases],
        "first_token": [phrase.first_token for phrase in phrases],
        "end_token": [phrase.end_token for phrase in phrases],
        "entity": [phrase.entity for phrase in phrases],
        "category": [categories.add(phrase.categories) for phrase in phrases],
        "boxes": [boxes.add(phrase.boxes) for phrase in phrases],
        "is_scene": [int(phrase.is_scene) for phrase in phrases],
        "is_boxless": [int(phrase.is_boxless) for phrase in phrases],
        "categories_of": list(categories.rows),
        "boxes_of": list(boxes.rows),
    }


def decode(
    columns: Mapping[str, Any],
    images: Sequence[str],
    tokens_of: Callable[[str], tuple[str, ...]],
    photo_of: Callable[[str], Path | None],
) -> list[Example]:
    """The examples of these images, in their order; images that the index does not hold are passed over."""
    with _without_collector():
        categories = [tuple(names) for names in columns["categories_of"]]
        boxes = [None if kept is None else tuple(tuple(box) for box in kept) for kept in columns["boxes_of"]]
        rows = list(
            zip(
                columns["start"],
                columns["end"],
                columns["first_token"],
                columns["end_token"],
                columns["entity"],
                [categories[row] for row in columns["category"]],
                [boxes[row] for row in columns["boxes"]],
                map(bool, columns["is_scene"]),
                map(bool, columns["is_boxless"]),
                strict=True,
            )
        )
        first_phrase = _starts(columns["phrases"])
        first_caption = _starts(columns["captions"])
        texts, indices = columns["text"], columns["index"]

        def caption(j: int) -> Caption:
            text = texts[j]
            phrases = [Phrase(text[row[0] : row[1]], *row) for row in rows[first_phrase[j] : first_phrase[j + 1]]]
            return Caption(indices[j], text, tokens_of(text), tuple(phrases))

        def example(i: int, image: str) -> Example:
            captions = [caption(j) for j in range(first_caption[i], first_caption[i + 1])]
            return Example(image, photo_of(image), columns["width"][i], columns["height"][i], tuple(captions))

        position = {image: i for i, image in enumerate(columns["image"])}
        return [example(position[image], image) for image in images if image in position]


def _starts(counts: Sequence[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts


@contextmanager
def _without_collector() -> Iterator[None]:
    """Nothing made here is garbage: the collector would only walk over it again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
