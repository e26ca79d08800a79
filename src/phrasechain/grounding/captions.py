"""Which captions are grounded on which photos: one caption on all of them, or a file that has both.

A captions file is UTF-8. If its name ends with ``.jsonl``, each line is an object with ``image``, ``caption`` and,
where they are given, ``phrases``; else it is the image, a tab and the caption, and the first line may be a heading.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short
from typing import Any

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.files import decode_utf8, files_below
from phrasechain.core.json_lines import parse_json, read_lines
from phrasechain.data.photos import SUFFIXES
from phrasechain.phrases.given import Given

KEYS = ("image", "caption", "phrases")
_HEADING = ("image", "caption")
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_NAME_SHOWN = 50  # code points of a photo's name in its picture's
_DIGITS = 10  # of a hash, in a picture's name

#: What grounding writes: the lines of a folder of groundings, and the end of the name of a single picture.
LINES = "groundings.jsonl"
GROUNDED = ".grounded.png"
_PICTURE = re.compile(rf".*\.[0-9a-f]{{{_DIGITS}}}\.png", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CaptionedPhoto:
    """A caption to be grounded on a photo."""

    image: str  # as the user names it
    path: Path
    caption: str
    phrases: tuple[Given, ...] | None = None  # those of the user; None to find them
    where: str | None = field(default=None, compare=False)  # FILE:LINE, if it comes from a captions file

    @property
    def picture(self) -> str:
        """A file name for its picture, unique to the pair."""
        whole = json.dumps([self.image, self.caption, self.phrases]).encode()
        return f"{self.path.stem[:_NAME_SHOWN]}.{hashlib.sha256(whole).hexdigest()[:_DIGITS]}.png"


def existing_path(name: str, hint: str = "") -> Path:
    """The file or folder of this name, which must be there."""
    if _URL.match(name):
        raise DataError(f"{name}: an address; download the photo and give the name of the file")
    if not name or not exists(Path(name)):
        raise DataError(f"{name or repr(name)}: no such file or folder{hint}")
    return Path(name)


def pairs_of_photos(
    names: Sequence[str], caption: str, phrases: Sequence[Given] | None = None, out: Path | None = None
) -> tuple[list[CaptionedPhoto], list[Path]]:
    """Pair the caption with each photo, and with those in and below the folders but not in ``out``, by name.

    Pictures that grounding wrote into the folders are no photos: they are returned second. One that is named is taken.
    """
    given = None if phrases is None else tuple(phrases)
    pairs: list[CaptionedPhoto] = []
    made: list[Path] = []
    for name in names:
        path = existing_path(name, "; a caption of several words stands in quotes" if len(names) > 1 else "")
        photos, pictures = _photos_in(path, out) if path.is_dir() else ([path], [])
        pairs += [CaptionedPhoto(str(photo), photo, caption, given) for photo in photos]
        made += pictures
    return pairs, made


def is_grounded_picture(path: Path) -> bool:
    """Whether grounding wrote this picture: by its name and, of many, by the lines beside it."""
    is_one_of_many = _PICTURE.fullmatch(path.name) is not None and (path.parent / LINES).exists()
    return is_one_of_many or path.name.endswith(GROUNDED)


def _photos_in(folder: Path, out: Path | None) -> tuple[list[Path], list[Path]]:
    """The photos in and below a folder but not in ``out``, and the pictures that grounding wrote there."""
    found = {False: list[Path](), True: list[Path]()}
    for photo in _photos_outside(folder, out):
        found[is_grounded_picture(photo)].append(photo)
    if not found[False]:
        but = " but pictures that grounding wrote; name those that you mean" if found[True] else ""
        raise DataError(f"{folder}: no photos there{but} (files that end with {', '.join(SUFFIXES)})")
    return found[False], found[True]


def _photos_outside(folder: Path, out: Path | None) -> Iterator[Path]:
    if out is None:
        return files_below(folder, SUFFIXES)
    if out.resolve() == folder.resolve():
        raise DataError(f"{out}: the photos are there; choose another folder for the pictures")
    return (photo for photo in files_below(folder, SUFFIXES) if out.resolve() not in photo.resolve().parents)


def read_captions(file: Path, places: Sequence[str] = ()) -> tuple[list[CaptionedPhoto], list[str]]:
    """The pairs of a captions file, and the errors of its other lines.

    Images are searched for in the folders among ``places``, by default in the file's own. Photos among them are found
    by their names; where there are photos alone, the lines about others are skipped.
    """
    search = _Search.among([existing_path(place) for place in places] or [file.parent])
    parse = _json_line if file.suffix.lower() == ".jsonl" else _tab_line
    pairs: list[CaptionedPhoto] = []
    problems: list[str] = []
    for number, line in read_lines(file):
        try:
            found = parse(line)
            if number == 1 and parse is _tab_line and found[:2] == _HEADING:
                continue
            path = search.find(found[0])
            if path is not None:
                pairs.append(CaptionedPhoto(found[0], path, *found[1:], f"{file}:{number}"))
        except DataError as error:
            problems.append(f"{file}:{number}: {error}")
    return pairs, problems


@dataclass(frozen=True, slots=True)
class _Search:
    folders: tuple[Path, ...]
    photos: Mapping[str, Path]  # by name

    @classmethod
    def among(cls, places: Sequence[Path]) -> _Search:
        photos: dict[str, Path] = {}
        for place in places:
            if not place.is_dir() and photos.setdefault(place.name, place) != place:
                raise DataError(f"{place}: {photos[place.name]} has the same name; give their folders instead")
        return cls(tuple(place for place in places if place.is_dir()), photos)

    def find(self, image: str) -> Path | None:
        """Where the image is; None if photos were chosen and it is none of them."""
        if _URL.match(image):
            raise DataError(f"{image}: an address; download the photo and give the name of the file")
        if path := self.photos.get(Path(image).name):
            return path
        for folder in self.folders:
            if exists(folder / image):
                return folder / image
        if self.folders:
            raise DataError(f"there is no image {image} in {' or '.join(map(str, self.folders))}")
        return None


def _tab_line(line: bytes) -> tuple[str, str, None]:
    image, tab, caption = decode_utf8(line).rstrip("\r\n").partition("\t")
    if not tab or not image.strip():
        raise DataError("not an image, a tab and a caption (JSON lines are read from files that end with .jsonl)")
    return image.strip(), caption.strip(), None


def _json_line(line: bytes) -> tuple[str, str, tuple[Given, ...] | None]:
    record = parse_json(line)
    if not isinstance(record, dict):
        raise DataError('not an object such as {"image": "photo.jpg", "caption": "a dog"}')
    for key in record:
        require_name("key", key, KEYS)
    return _text(record, "image"), _text(record, "caption"), _phrases(record.get("phrases"))


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise DataError(f'"{key}" must be a text')
    return value


def _phrases(value: Any) -> tuple[Given, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise DataError('"phrases" must be a list of texts or of [start, end]; leave it out to have them found')
    return tuple(_phrase(item) for item in value)


def _phrase(item: Any) -> Given:
    if isinstance(item, str):
        return item
    if not isinstance(item, list) or len(item) != 2 or any(type(place) is not int for place in item):
        raise DataError(f"{short(item)} is no phrase; give a text, or [start, end] in characters of the caption")
    return item[0], item[1]


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; of no name that could not be one."""
    try:
        return path.exists()
    except OSError:  # a name too long
        return False
