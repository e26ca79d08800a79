"""A grounder that knows a few words and finds each of them in a place of its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phrasechain.core.errors import DataError
from phrasechain.core.images import PhotoFile, check_image
from phrasechain.core.schema import Alternative, Box, GroundedPhrase
from phrasechain.grounding.result import PhotoGrounding
from phrasechain.phrases.given import locate_phrases

KNOWN = {"dog": "animals", "ball": "other", "man": "people"}
Pair = tuple[Path, str, Sequence[str | tuple[int, int]] | None]


@dataclass
class FakeGrounder:
    """Each phrase alone is elsewhere than all jointly."""

    name: str = "fake"
    decode: str = "consensus"
    asked: list[tuple[str, str]] = field(default_factory=list)  # the photos and captions that it was asked about
    stop_after: int | None = None  # questions, and then the user interrupts

    def ground(
        self,
        image: Path | PhotoFile,
        caption: str,
        phrases: Sequence[str | tuple[int, int]] | None = None,
        decode: str | None = None,
        top_k: int = 5,
        min_probability: float | None = None,
    ) -> PhotoGrounding:
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        photo = image if isinstance(image, PhotoFile) else PhotoFile.read(image)
        path = Path(photo.path)
        self.asked.append((path.name, caption))
        width, height = check_image(path)
        if not caption.strip():
            raise DataError("the caption is empty")
        found = [word for word in KNOWN if word in caption.split()] if phrases is None else phrases
        spans = locate_phrases(caption, found)
        alone = decode == "independent"
        grounded = tuple(
            _phrase(caption[span.start : span.end], span.start, place, alone, (width, height), min_probability or 0)
            for place, span in enumerate(spans)
        )
        return PhotoGrounding(
            photo.path, width, height, caption, self.name, decode or self.decode, grounded, source=photo
        )

    def compare(
        self,
        image: Path | PhotoFile,
        caption: str,
        phrases: Sequence[str | tuple[int, int]] | None = None,
        decode: str | None = None,
        min_probability: float | None = None,
    ) -> tuple[PhotoGrounding, PhotoGrounding]:
        joint = self.ground(image, caption, phrases, decode, min_probability=min_probability)
        size = (joint.width, joint.height)
        alone = tuple(
            _phrase(each.text, each.start, place, True, size, min_probability or 0)
            for place, each in enumerate(joint.phrases)
        )
        return joint, replace(joint, decode=f"independent {joint.decode}", phrases=alone)

    def compare_many(
        self,
        pairs: Iterable[Pair],
        decode: str | None = None,
        min_probability: float | None = None,
        keep_photos: bool = False,
    ) -> Iterator[tuple[PhotoGrounding, PhotoGrounding]]:
        yield from (self.compare(*pair, decode, min_probability) for pair in pairs)

    def ground_many(
        self,
        pairs: Iterable[Pair],
        batch_size: int = 16,
        decode: str | None = None,
        min_probability: float | None = None,
        keep_photos: bool = False,
    ) -> Iterator[PhotoGrounding]:
        for image, caption, phrases in pairs:
            try:
                yield self.ground(image, caption, phrases, decode, min_probability=min_probability)
            except DataError as error:
                yield PhotoGrounding(str(image), 0, 0, caption, self.name, decode or self.decode, error=str(error))


def _phrase(text: str, start: int, place: int, alone: bool, size: tuple[int, int], least: float) -> GroundedPhrase:
    """Phrases stand beside each other, from the left; decided alone, the second and further ones are elsewhere.

    What presence they have follows from their place: 0.9, 0.8, …
    """
    left, top = (place + 1) * size[0] / 10, (0.5 if alone and place else 0.1) * size[1]
    box: Box = (left, top, left + size[0] / 10, top + size[1] / 5)
    rival = Alternative((0.0, 0.0, size[0] / 2, size[1] / 2), 0.125)
    presence, category = 0.9 - place / 10, KNOWN.get(text, "other")
    return GroundedPhrase(text, start, start + len(text), category, box, 0.75, (rival,), presence, presence >= least)
