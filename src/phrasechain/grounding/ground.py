"""``phrasechain ground``: from a request to groundings, pictures and JSON; of many captions, into a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from phrasechain.core.errors import DataError
from phrasechain.core.images import PhotoFile, encode_png, is_animated, without_warnings
from phrasechain.core.progress import track
from phrasechain.core.schema import Box, GroundedPhrase
from phrasechain.core.terminal import print_table, printable
from phrasechain.draw import draw_comparison
from phrasechain.draw.caption import NOT_FOUND
from phrasechain.draw.comparison import differing
from phrasechain.grounding.captions import CaptionedPhoto
from phrasechain.grounding.folder import GroundingFolder, origin
from phrasechain.grounding.requests import GroundOptions
from phrasechain.grounding.result import PhotoGrounding
from phrasechain.model.decode import INDEPENDENT

if TYPE_CHECKING:
    from PIL import Image

    from phrasechain.grounding.grounder import Grounder

SHOWN_ALTERNATIVES = 2  # of each phrase, in a picture
ANIMATED = "an animation; its first frame is used"
NO_PHRASES = "no phrase of the caption names something to be seen; say which you mean with --phrase"


@dataclass(frozen=True, slots=True)
class GroundResult:
    """The grounding of a pair and, to compare it with, the one that decodes each phrase alone by the same decoder."""

    grounding: PhotoGrounding
    independent: PhotoGrounding | None = None

    @property
    def has_phrases(self) -> bool:
        return bool(self.grounding.phrases)

    def to_dict(self) -> dict[str, Any]:
        """The grounding as JSON has it, with the phrases of the other under ``independent``."""
        record = self.grounding.to_dict()
        return record if self.independent is None else record | {INDEPENDENT: self.independent.to_dict()["phrases"]}

    def picture(self, alternatives: bool = False) -> bytes:
        """Its picture, as PNG."""
        try:
            with without_warnings():
                return encode_png(self._draw(SHOWN_ALTERNATIVES if alternatives else 0))
        except MemoryError:
            raise DataError(f"{self.grounding.path}: its picture does not fit into the memory that is left") from None

    def _draw(self, alternatives: int) -> Image.Image:
        if self.independent is None:
            return self.grounding.draw(probabilities=True, alternatives=alternatives)
        names = (f"each phrase alone ({self.independent.decode})", f"all phrases jointly ({self.grounding.decode})")
        photo = self.grounding.canvas(panels=2)
        return draw_comparison(photo, self.independent, self.grounding, names, probabilities=True)

    def is_animated(self) -> bool:
        """Whether the photo's file has more frames than the one that was used."""
        return isinstance(self.grounding.source, PhotoFile) and is_animated(self.grounding.source)


@dataclass(slots=True)
class GroundReport:
    """What became of many captions."""

    grounded: int = 0
    without_phrases: int = 0
    already_there: int = 0
    repeated: int = 0  # duplicates in the same run
    problems: list[str] = field(default_factory=list)  # one line for each that failed
    animated: list[str] = field(default_factory=list)  # photos of which the first frame was used


def ground_one(grounder: Grounder, pair: CaptionedPhoto, options: GroundOptions) -> GroundResult:
    """Ground one pair."""
    with without_warnings():
        arguments = (pair.path, pair.caption, pair.phrases, options.decode)
        if options.compare:
            return _result(pair, *grounder.compare(*arguments, min_probability=options.min_probability))
        return _result(pair, grounder.ground(*arguments, min_probability=options.min_probability))


def _result(pair: CaptionedPhoto, *groundings: PhotoGrounding) -> GroundResult:
    return GroundResult(*(replace(grounding, path=pair.image) for grounding in groundings))


def _ground_all(grounder: Grounder, pairs: Sequence[CaptionedPhoto], options: GroundOptions) -> Iterator[GroundResult]:
    """Ground all pairs, in order; what cannot be grounded has an ``error``."""
    inputs = [(pair.path, pair.caption, pair.phrases) for pair in pairs]
    given: dict[str, Any] = {"decode": options.decode, "min_probability": options.min_probability, "keep_photos": True}
    with without_warnings():
        if options.compare:
            found = grounder.compare_many(inputs, **given)
            yield from (_result(pair, *both) for pair, both in zip(pairs, found, strict=True))
        else:
            one = grounder.ground_many(inputs, **given)
            yield from (_result(pair, grounding) for pair, grounding in zip(pairs, one, strict=True))


def ground_many(
    grounder: Grounder,
    pairs: Sequence[CaptionedPhoto],
    options: GroundOptions,
    report: GroundReport,
    out: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Ground many pairs and yield them as JSON has them; with ``out``, write them and their pictures into that folder.

    What the folder has already is skipped. What fails is reported, and the next run tries it again. An interrupt loses
    nothing that was done.
    """
    with nullcontext() if out is None else GroundingFolder(out) as folder:
        if folder is not None:
            folder.require_origin(origin(grounder.name, options.decode or grounder.decode, options.compare))
        different = dict.fromkeys(pairs)
        missing = [pair for pair in different if folder is None or pair not in folder]
        report.repeated, report.already_there = len(pairs) - len(different), len(different) - len(missing)
        for pair, found in track(
            zip(missing, _ground_all(grounder, missing, options), strict=True), len(missing), "captions"
        ):
            try:
                _raise_error(found)
                png = found.picture(options.alternatives) if found.has_phrases and folder is not None else None
                if pair.image not in report.animated and found.is_animated():
                    report.animated.append(pair.image)
            except DataError as error:
                report.problems.append(problem_line(pair, error))
                continue
            record = found.to_dict()
            yield record if folder is None else folder.add(pair, record, png)
            report.grounded += found.has_phrases
            report.without_phrases += not found.has_phrases


def _raise_error(found: GroundResult) -> None:
    for grounding in (found.grounding, found.independent):
        if grounding is not None and grounding.error is not None:
            raise DataError(grounding.error)


def problem_line(pair: CaptionedPhoto, error: DataError) -> str:
    """What is wrong, where: the line of the captions file, or else the photo."""
    place = pair.where or pair.image
    return str(error) if str(error).startswith(place) else f"{place}: {error}"


def print_result(found: GroundResult, options: GroundOptions, console: Console) -> None:
    """The phrases as a table: the box and the probability of each, and that of its being there where it is known."""
    has_presence = any(phrase.presence is not None for phrase in found.grounding.phrases)
    names = ["phrase", "category", "box", "probability", *(["presence"] if has_presence else [])]
    table = Table(*names, *([f"{INDEPENDENT} box"] if found.independent else []))
    for column in table.columns[3 : len(names)]:
        column.justify = "right"
    differ = differing(found.independent, found.grounding) if found.independent else set()
    for number, phrase in enumerate(found.grounding.phrases):
        other = [_shown(found.independent.phrases[number]) + " *" * (number in differ)] if found.independent else []
        presence = [] if phrase.presence is None else [f"{phrase.presence:.1%}"]
        row = [escape(printable(phrase.text)), phrase.category, _shown(phrase), f"{phrase.probability:.1%}"]
        table.add_row(*row, *presence, *other)
        for rival in phrase.alternatives if options.alternatives and phrase.found else ():
            table.add_row("", "  or", _box(rival.box), f"{rival.probability:.1%}")
    print_table(table, console)


def _shown(phrase: GroundedPhrase) -> str:
    return _box(phrase.box) if phrase.found else NOT_FOUND


def _box(box: Box) -> str:
    """
    >>> _box((10, 0, 120.25, 80.96))
    '10 0 120 81'
    """
    return " ".join(f"{end:.0f}" for end in box)
