"""The arguments of ``phrasechain ground``: which captions on which photos, how, and where the pictures go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.files import require_writable
from phrasechain.data.photos import SUFFIXES, ShardNumber
from phrasechain.grounding.captions import GROUNDED, CaptionedPhoto, exists, pairs_of_photos, read_captions
from phrasechain.model.decode import DECODERS, INDEPENDENT

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class GroundOptions:
    """How captions are grounded and shown."""

    decode: str | None = None  # None: the model's default
    alternatives: bool = False
    compare: bool = False
    min_probability: float | None = None  # None: the model's default

    def __post_init__(self) -> None:
        if self.decode is not None:
            require_name("decoder", self.decode, DECODERS)
        if self.min_probability is not None and not 0 <= self.min_probability <= 1:
            raise DataError(f"--min-probability is from 0 to 1, not {self.min_probability}")
        if self.compare and self.decode == INDEPENDENT:
            raise DataError(
                f"--compare shows what the chain changes, of which {INDEPENDENT} knows nothing; drop --decode"
            )
        if self.compare and self.alternatives:
            raise DataError("--compare and --alternatives do not fit into one picture; choose one")


@dataclass(frozen=True, slots=True)
class GroundRequest:
    """The captions to ground, each with its photo."""

    pairs: list[CaptionedPhoto]
    is_single: bool = False  # one caption on one photo
    problems: list[str] = field(default_factory=list)  # unusable lines of a captions file
    warnings: list[str] = field(default_factory=list)  # one line each

    def first(self, limit: int | None, part: ShardNumber | None) -> GroundRequest:
        """Of many, the first ``limit`` and of those the images of the ``part``."""
        pairs = [pair for pair in self.pairs[:limit] if part is None or part.holds(pair.image)]
        return self if self.is_single else replace(self, pairs=pairs)


def read_request(
    arguments: Sequence[str], captions: Path | None, phrases: Sequence[str], out: str | None
) -> GroundRequest:
    """Read the command's arguments: photos and then a caption, or the folders of a captions file's images."""
    if captions is not None:
        if phrases:
            raise DataError('--phrase and --captions do not go together; a .jsonl file has "phrases" of its own')
        pairs, problems = read_captions(captions, arguments)
        if not pairs and problems:
            raise DataError(f"none of the {len(problems):,} lines of {captions} can be used; the first: {problems[0]}")
        if not pairs:
            raise DataError(f"{captions}: no caption there" + " of these photos" * bool(arguments))
        return GroundRequest(pairs, problems=problems)
    if len(arguments) < 2:
        raise DataError('give a photo and a caption, such as photo.jpg "a dog chases a ball"; --help says more')
    *names, caption = arguments
    if Path(caption).suffix.lower() in SUFFIXES and exists(Path(caption)):
        raise DataError(f"{caption}: a photo, but the last of the arguments is the caption; put it there, in quotes")
    pairs, pictures = pairs_of_photos(names, caption, phrases or None, None if out is None else Path(out))
    warnings = [_left_out(pictures)] if pictures else []
    return GroundRequest(pairs, is_single=len(names) == 1 and not Path(names[0]).is_dir(), warnings=warnings)


def _left_out(pictures: Sequence[Path]) -> str:
    count = "a picture" if len(pictures) == 1 else f"{len(pictures):,} pictures"
    return f"left out {count} that grounding wrote ({pictures[0]}); name one to have it grounded"


def output_path(request: GroundRequest, out: str | None, as_json: bool) -> Path | None:
    """Where pictures go: into a file, or of many into a folder; ``None`` for stdout and for no pictures."""
    if out == STDOUT:
        if as_json or not request.is_single:
            raise DataError(f"--out {STDOUT} is for the picture of one photo, without --json")
        if sys.stdout.isatty():
            raise DataError(
                f"--out {STDOUT} writes a PNG, which a terminal cannot show; send it to a file or a program"
            )
        return None
    if out is None and as_json:
        return None
    if request.is_single:
        return _picture_path(request.pairs[0].path, out)
    if out is None:
        raise DataError("many pictures need a folder: give --out FOLDER, or --json for JSON lines alone")
    return Path(out)


def _picture_path(photo: Path, out: str | None) -> Path:
    """Never over the photo, and only where it can be written."""
    path = Path(f"{photo.stem}{GROUNDED}" if out is None else out)
    if path.suffix and path.suffix.lower() != ".png":
        raise DataError(f"{path}: pictures are written as PNG; give a name that ends with .png")
    if exists(path) and path.samefile(photo):
        raise DataError(f"{path}: the photo itself; give the picture another name")
    require_writable(path)
    return path
