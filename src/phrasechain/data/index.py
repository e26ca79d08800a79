"""The cached index of a parsed dataset: compact columns from which examples are created on access.

It is stored in the user's cache folder, valid only while the names, sizes and times of the dataset's files are
unchanged, and rebuilt when it is damaged. Nothing is written to the dataset's folder, which may be read-only.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.files import cache_folder, private_folder, write_atomically
from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.markup import split_tokens

INDEX_FORMAT = 1  # increase it whenever the parsing or the format changes
#: The columns of a phrase; entity, categories and boxes are indices into tables, flags are bits.
PHRASE_COLUMNS = ("start", "end", "first_token", "end_token", "entity", "categories", "boxes", "flags")
SCENE, BOXLESS = 1, 2


class Index:
    """Images, captions and phrases as columns; ``tables`` are JSON lists."""

    def __init__(self, tables: Mapping[str, list[Any]], phrases: NDArray[np.int32]) -> None:
        self.images: list[str] = tables["images"]
        self.problems: list[tuple[str, str]] = [(image, message) for image, message in tables["problems"]]
        self._tables = tables
        self._phrases = phrases  # (phrases, columns)
        self._first_caption = list(accumulate(tables["captions"], initial=0))
        self._first_phrase = list(accumulate(tables["phrases"], initial=0))
        self._categories = [tuple(names) for names in tables["categories_of"]]
        self._boxes = [None if boxes is None else tuple([tuple(box) for box in boxes]) for boxes in tables["boxes_of"]]

    def example(self, i: int, photo: Path | None) -> Example:
        """Create the example of row ``i`` from the columns."""
        tables = self._tables
        first, end = self._first_caption[i], self._first_caption[i + 1]
        rows = iter(self._phrases[self._first_phrase[first] : self._first_phrase[end]].tolist())
        captions = [self._caption(j, islice(rows, tables["phrases"][j])) for j in range(first, end)]
        return Example(self.images[i], photo, tables["widths"][i], tables["heights"][i], tuple(captions))

    def _caption(self, j: int, rows: Iterable[list[int]]) -> Caption:
        text: str = self._tables["texts"][j]
        entities, categories, boxes = self._tables["entity_of"], self._categories, self._boxes
        phrases = [
            Phrase(
                text[start:end],
                start,
                end,
                first_token,
                end_token,
                entities[entity],
                categories[category],
                boxes[box],
                bool(flags & SCENE),
                bool(flags & BOXLESS),
            )
            for start, end, first_token, end_token, entity, category, box, flags in rows
        ]
        return Caption(self._tables["indices"][j], text, split_tokens(text), tuple(phrases))

    def to_bytes(self) -> bytes:
        tables = json.dumps(self._tables, separators=(",", ":")).encode()  # JSON escapes newlines
        return tables + b"\n" + self._phrases.astype("<i4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Index:
        tables, _, phrases = data.partition(b"\n")
        return cls(json.loads(tables), np.frombuffer(phrases, "<i4").reshape(-1, len(PHRASE_COLUMNS)))


class IndexBuilder:
    """Builds an index from examples one by one, so that a large dataset needs little memory."""

    def __init__(self) -> None:
        names = ("images", "widths", "heights", "captions", "indices", "texts", "phrases", "problems")
        self._tables: dict[str, list[Any]] = {name: [] for name in names}
        self._phrases = array("i")
        self._entities: dict[Hashable, int] = {}
        self._categories: dict[Hashable, int] = {}
        self._boxes: dict[Hashable, int] = {}

    def add(self, example: Example) -> None:
        tables = self._tables
        tables["images"].append(example.image)
        tables["widths"].append(example.width)
        tables["heights"].append(example.height)
        tables["captions"].append(len(example.captions))
        for caption in example.captions:
            tables["indices"].append(caption.index)
            tables["texts"].append(caption.text)
            tables["phrases"].append(len(caption.phrases))
            for phrase in caption.phrases:
                self._phrases.extend(self._row(phrase))

    def add_problem(self, image: str, message: str) -> None:
        self._tables["problems"].append((image, message))

    def _row(self, phrase: Phrase) -> tuple[int, ...]:
        return (
            phrase.start,
            phrase.end,
            phrase.first_token,
            phrase.end_token,
            self._entities.setdefault(phrase.entity, len(self._entities)),
            self._categories.setdefault(phrase.categories, len(self._categories)),
            self._boxes.setdefault(phrase.boxes, len(self._boxes)),
            SCENE * phrase.is_scene | BOXLESS * phrase.is_boxless,
        )

    def build(self) -> Index:
        values = {"entity_of": self._entities, "categories_of": self._categories, "boxes_of": self._boxes}
        tables = self._tables | {name: list(rows) for name, rows in values.items()}
        return Index(tables, np.array(self._phrases, np.int32).reshape(-1, len(PHRASE_COLUMNS)))


class IndexedExamples(Sequence[Example]):
    """A selection of an index's images, in a given order; each is created on first access and cached."""

    def __init__(self, index: Index, images: Sequence[str], photos: Mapping[str, str]) -> None:
        row = {image: i for i, image in enumerate(index.images)}
        self._index = index
        self._rows = [row[image] for image in images if image in row]
        self._photos = photos
        self._cache: list[Example | None] = [None] * len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> Example: ...
    @overload
    def __getitem__(self, position: slice) -> list[Example]: ...
    def __getitem__(self, position: int | slice) -> Example | list[Example]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        example = self._cache[position]
        if example is None:
            i = self._rows[position]
            photo = self._photos.get(self._index.images[i])
            example = self._cache[position] = self._index.example(i, None if photo is None else Path(photo))
        return example


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=20).hexdigest()


def index_path(key: str, folder: Path | None = None) -> Path:
    """The cache file of the dataset with this ``key`` (its path and reading options)."""
    return (folder or cache_folder()) / "index" / f"{digest(key.encode('utf-8', 'surrogateescape'))}.index"


def load_index(path: Path, signature: str) -> Index | None:
    """The cached index if its signature matches and it is intact, else None."""
    if private_folder(path.parent) is None:
        return None
    try:
        header, _, body = path.read_bytes().partition(b"\n")
        return Index.from_bytes(body) if header == _header(signature, body) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def save_index(path: Path, signature: str, index: Index) -> None:
    """Write the index to the cache; if that fails, the next run parses again."""
    body = index.to_bytes()
    if private_folder(path.parent) is None:
        return
    try:
        write_atomically(path, _header(signature, body) + b"\n" + body)
    except OSError:
        return


def _header(signature: str, body: bytes) -> bytes:
    return f"phrasechain index {INDEX_FORMAT} {signature} {digest(body)}".encode()
