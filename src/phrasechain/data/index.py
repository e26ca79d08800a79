"""The index of a parsed dataset: compact columns from which the examples are made on access.

It is kept in the user's cache folder, used only while the names, sizes and times of the dataset's files are those that
were parsed, and made anew when it is damaged. Nothing is written beside the data, which may be read-only.
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

from phrasechain.core.files import cache_folder, write_atomically
from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.markup import split_tokens

INDEX_FORMAT = 1  # raise it whenever what is parsed or how it is kept changes
#: The columns of a phrase; entities, categories and boxes are rows of their tables, the flags are bits.
PHRASE_COLUMNS = ("start", "end", "first_token", "end_token", "entity", "categories", "boxes", "flags")
SCENE, BOXLESS = 1, 2


class Index:
    """Images, captions and phrases as columns; ``tables`` are lists that JSON can hold."""

    def __init__(self, tables: Mapping[str, list[Any]], phrases: NDArray[np.int32]) -> None:
        self.images: list[str] = tables["images"]
        self.problems: list[tuple[str, str]] = [(image, message) for image, message in tables["problems"]]
        self._tables = tables
        self._phrases = phrases  # (phrases, columns)
        self._first_caption = list(accumulate(tables["captions"], initial=0))
        self._first_phrase = list(accumulate(tables["phrases"], initial=0))
        self._categories = [tuple(names) for names in tables["categories_of"]]
        self._boxes = [None if kept is None else tuple([tuple(box) for box in kept]) for kept in tables["boxes_of"]]

    def example(self, i: int, photo: Path | None) -> Example:
        """The image in row ``i``, made from the columns."""
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
        tables = json.dumps(self._tables, separators=(",", ":")).encode()  # no line end stands in it
        return tables + b"\n" + self._phrases.astype("<i4").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Index:
        tables, _, phrases = data.partition(b"\n")
        return cls(json.loads(tables), np.frombuffer(phrases, "<i4").reshape(-1, len(PHRASE_COLUMNS)))


class IndexBuilder:
    """Takes examples one by one and keeps their columns alone, so that a large dataset needs little memory."""

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
    """Some images of an index, in a given order; each is made when it is first asked for, and kept."""

    def __init__(self, index: Index, images: Sequence[str], photos: Mapping[str, str]) -> None:
        row = {image: i for i, image in enumerate(index.images)}
        self._index = index
        self._rows = [row[image] for image in images if image in row]
        self._photos = photos
        self._made: list[Example | None] = [None] * len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> Example: ...
    @overload
    def __getitem__(self, position: slice) -> list[Example]: ...
    def __getitem__(self, position: int | slice) -> Example | list[Example]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        made = self._made[position]
        if made is None:
            i = self._rows[position]
            photo = self._photos.get(self._index.images[i])
            made = self._made[position] = self._index.example(i, None if photo is None else Path(photo))
        return made


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=20).hexdigest()


def index_path(key: str, folder: Path | None = None) -> Path:
    """Where the index of the dataset described by ``key`` (its path and how it is read) is kept."""
    return (folder or cache_folder()) / "index" / f"{digest(key.encode('utf-8', 'surrogateescape'))}.index"


def load_index(path: Path, signature: str) -> Index | None:
    """The index kept for this very state of the files, or None if there is none that can be used."""
    try:
        header, _, body = path.read_bytes().partition(b"\n")
        return Index.from_bytes(body) if header == _header(signature, body) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def save_index(path: Path, signature: str, index: Index) -> None:
    """Keep the index; where the cache folder cannot be written, the next run parses again."""
    body = index.to_bytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _header(signature, body) + b"\n" + body)
    except OSError:
        return


def _header(signature: str, body: bytes) -> bytes:
    return f"phrasechain index {INDEX_FORMAT} {signature} {digest(body)}".encode()
