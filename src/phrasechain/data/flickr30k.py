"""Flickr30k Entities in its official layout: Sentences/ID.txt, Annotations/ID.xml and the photos.

Annotated boxes are 1-based and inclusive: (xmin, ymin, xmax, ymax) becomes the half-open (xmin − 1, ymin − 1, xmax,
ymax). The boxes of an entity that is not in the XML are unknown; one listed without a box is known to have none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

from phrasechain.core.errors import DataError
from phrasechain.core.files import decode_utf8, read_bounded, reason
from phrasechain.core.schema import COORDINATE_LIMIT, Box, Caption, Example
from phrasechain.data.markup import Entity, parse_caption

SENTENCES_LIMIT = 1 << 20  # bytes; real files have about 1,000
ANNOTATION_LIMIT = 1 << 18  # bytes; real files have about 2,000 and at most some 20,000
DEPTH_LIMIT = 16  # nested elements; real files have 4
IMAGE_FOLDERS = ("images", "flickr30k-images", "flickr30k_images")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class Compatibility:
    """Deviations in how the paper's authors read the data; off by default, on in their preset."""

    first_name: bool = False  # an object's box goes to its first <name> only
    first_match: bool = False  # a phrase's tokens are those at which its words first occur in the caption
    plus_one: bool = False  # a box is (xmin, ymin, xmax + 1, ymax + 1)


CORRECTED = Compatibility()
AUTHORS = Compatibility(first_name=True, first_match=True, plus_one=True)
#: The readings of the data by name.
READINGS = {"corrected": CORRECTED, "authors": AUTHORS}


@dataclass(frozen=True)
class Problem:
    """A part of the data that cannot be used; ``image`` is None where it belongs to no known image."""

    image: str | None
    message: str


@dataclass(frozen=True)
class Annotation:
    """One XML file: the image's size and its entities."""

    width: int
    height: int
    entities: dict[str, Entity]


@dataclass(frozen=True)
class DatasetFiles:
    """The files of a dataset, by image id. Ids are looked up here, so no id can lead to a file outside the folders."""

    root: Path
    sentences: dict[str, os.DirEntry[str]]
    annotations: dict[str, os.DirEntry[str]]
    photos: dict[str, str]  # paths


def is_official(root: Path) -> bool:
    return (root / "Sentences").is_dir() and (root / "Annotations").is_dir()


def list_dataset(root: Path) -> DatasetFiles:
    """List the dataset's files; the photos are optional."""
    folder = next((root / name for name in IMAGE_FOLDERS if (root / name).is_dir()), None)
    photos = (
        {} if folder is None else {image: entry.path for image, entry in _list_files(folder, IMAGE_SUFFIXES).items()}
    )
    return DatasetFiles(
        root, _list_files(root / "Sentences", (".txt",)), _list_files(root / "Annotations", (".xml",)), photos
    )


def _list_files(folder: Path, suffixes: tuple[str, ...]) -> dict[str, os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if _is_data(entry.name, suffixes) and entry.is_file()]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {reason(error)}") from None
    return {entry.name.rpartition(".")[0]: entry for entry in sorted(files, key=lambda entry: entry.name)}


def _is_data(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes) and not name.startswith(".")  # macOS archives contain a ._NAME for each file


def read_image(files: DatasetFiles, image: str, compatibility: Compatibility) -> tuple[Example | None, list[Problem]]:
    """One image with its captions; unreadable captions are dropped, and images without captions."""
    if image not in files.annotations:
        missing = files.root / "Annotations" / f"{image}.xml"
        return None, [Problem(image, f"{missing}: missing, so the boxes are unknown; restore it")]
    problems: list[Problem] = []
    captions: list[Caption] = []
    path = files.sentences[image].path
    try:
        annotation = read_annotation(files.annotations[image].path, compatibility)
        for number, line in _read_lines(path):
            try:
                text = decode_utf8(line)
                captions.append(parse_caption(text, number - 1, annotation.entities, compatibility.first_match))
            except DataError as error:
                problems.append(Problem(image, f"{path}:{number}: {error}"))
    except DataError as error:
        return None, [*problems, Problem(image, str(error))]
    if not captions:
        return None, [*problems, Problem(image, f"{path}: contains no caption; restore it")]
    photo = files.photos.get(image)
    path_of_photo = None if photo is None else Path(photo)
    return Example(image, path_of_photo, annotation.width, annotation.height, tuple(captions)), problems


def _read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    data = read_bounded(path, SENTENCES_LIMIT).removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line and not line.isspace():
            yield number, line


def read_annotation(path: str | Path, compatibility: Compatibility = CORRECTED) -> Annotation:
    """Read one XML file; document type declarations are refused, so no entity is expanded or fetched."""
    data = read_bounded(path, ANNOTATION_LIMIT)
    reader = _AnnotationReader(compatibility)
    try:
        reader.parser.Parse(data, True)
        return reader.result()
    except expat.ExpatError as error:
        raise DataError(f"{path}:{error.lineno}: broken XML: {expat.ErrorString(error.code)}; restore it") from None
    except DataError as error:
        raise DataError(f"{path}:{reader.parser.CurrentLineNumber}: {error}") from None


class _AnnotationReader:
    """Collects an annotation from expat's events. Unknown elements are ignored."""

    def __init__(self, compatibility: Compatibility) -> None:
        self._first_name = compatibility.first_name
        self._plus_one = compatibility.plus_one
        self._path = ""  # of the open element, such as /annotation/object/name
        self._depth = 0
        self._text: list[str] = []
        self._size: dict[str, float] = {}
        self._sides: dict[str, float] = {}
        self._names: list[str] = []
        self._boxes: list[Box] = []
        self._flags: set[str] = set()
        self._entities: dict[str, Entity] = {}
        self._leaves = {
            "/annotation/size/width": self._end_size,
            "/annotation/size/height": self._end_size,
            "/annotation/object/name": self._end_name,
            "/annotation/object/scene": self._end_flag,
            "/annotation/object/nobndbox": self._end_flag,
            "/annotation/object/bndbox": self._end_box,
            "/annotation/object": self._end_object,
        } | {f"/annotation/object/bndbox/{side}": self._end_side for side in BOX_SIDES}
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text.append
        self.parser.StartDoctypeDeclHandler = _refuse_doctype

    def result(self) -> Annotation:
        width, height = self._size.get("width", 0), self._size.get("height", 0)
        if not (width >= 1 and height >= 1 and width == int(width) and height == int(height)):
            raise DataError("no <size> with a whole <width> and <height> above 0; restore the file")
        return Annotation(int(width), int(height), self._entities)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path += "/" + tag
        self._depth += 1
        self._text.clear()
        if self._depth > DEPTH_LIMIT:
            raise DataError(f"more than {DEPTH_LIMIT} nested elements: this is not an annotation")
        if self._depth == 1 and tag != "annotation":
            raise DataError(f"the root is <{tag[:40]}>, not <annotation>: this is not an annotation")

    def _end(self, tag: str) -> None:
        if handle := self._leaves.get(self._path):
            handle(tag, "".join(self._text).strip())
        self._path = self._path[: -len(tag) - 1]
        self._depth -= 1
        self._text.clear()

    def _end_size(self, tag: str, text: str) -> None:
        self._size[tag] = _number(tag, text)

    def _end_name(self, tag: str, text: str) -> None:
        if not text:
            raise DataError("an empty <name>; it is the id of an entity")
        if not (self._first_name and self._names):
            self._names.append(text)

    def _end_flag(self, tag: str, text: str) -> None:
        if _number(tag, text):
            self._flags.add(tag)

    def _end_side(self, tag: str, text: str) -> None:
        self._sides[tag] = _number(tag, text)

    def _end_box(self, tag: str, text: str) -> None:
        if len(self._sides) < 4:
            absent = ", ".join(f"<{side}>" for side in BOX_SIDES if side not in self._sides)
            raise DataError(f"a box without {absent}")
        xmin, ymin, xmax, ymax = (self._sides[side] for side in BOX_SIDES)
        if xmax < xmin or ymax < ymin:
            raise DataError(f"a box that ends before it starts: {xmin:g}, {ymin:g}, {xmax:g}, {ymax:g}")
        one = 1.0 if self._plus_one else 0.0
        self._boxes.append((xmin - 1 + one, ymin - 1 + one, xmax + one, ymax + one))
        self._sides.clear()

    def _end_object(self, tag: str, text: str) -> None:
        if not self._names:
            raise DataError("an <object> without <name>, so its box belongs to no entity")
        boxes, is_scene, is_boxless = tuple(self._boxes), "scene" in self._flags, "nobndbox" in self._flags
        for name in dict.fromkeys(self._names):
            old = self._entities.get(name, Entity())
            self._entities[name] = Entity(old.boxes + boxes, old.is_scene or is_scene, old.is_boxless or is_boxless)
        self._names.clear()
        self._boxes.clear()
        self._flags.clear()


def _refuse_doctype(*_: object) -> None:
    raise DataError("a document type declaration, which annotations never have; remove it")


def _number(tag: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= COORDINATE_LIMIT:
        raise DataError(f"<{tag}> is {text[:40]!r}, not a number within ±{COORDINATE_LIMIT:,}")
    return number
