"""What a grounder returns: a grounding that draws itself and exports itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Box, GroundedPhrase, Grounding
from phrasechain.regions.pixels import ImageSource, read_rgb

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True, slots=True)
class PhotoGrounding(Grounding):
    """A grounding together with its photo: a file, or the image or array that the caller gave."""

    source: ImageSource | None = field(default=None, repr=False, compare=False)

    def draw(self, *, probabilities: bool = False, alternatives: int = 0) -> Image.Image:
        """The photo with its boxes and the caption below; see :func:`phrasechain.draw.draw_grounding`."""
        from phrasechain.draw import draw_grounding  # imported here: an answer without a picture comes sooner

        return draw_grounding(self.photo(), self, probabilities=probabilities, alternatives=alternatives)

    def photo(self) -> Image.Image:
        """The photo as displayed, in RGB, decoded anew."""
        if self.error is not None or self.source is None:
            raise DataError(f"nothing to draw: {self.error or 'the photo is not known'}")
        return read_rgb(self.source)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, as JSON has them; ``error`` and ``hint`` only where there is one."""
        record = {
            "image": {"path": self.path, "width": self.width, "height": self.height},
            "caption": self.caption,
            "model": self.model,
            "decode": self.decode,
            "phrases": [_phrase_dict(phrase) for phrase in self.phrases],
        }
        notes = {"error": self.error, "hint": self.hint}
        return record | {name: text for name, text in notes.items() if text is not None}

    def to_json(self) -> str:
        """One line of JSON in ASCII, fit for a JSON lines file."""
        return json.dumps(self.to_dict(), allow_nan=False)


def _phrase_dict(phrase: GroundedPhrase) -> dict[str, Any]:
    return {
        "text": phrase.text,
        "start": phrase.start,
        "end": phrase.end,
        "category": phrase.category,
        **_box_dict(phrase.box, phrase.probability),
        "presence": None if phrase.presence is None else round(phrase.presence, 6),
        "found": phrase.found,
        "alternatives": [_box_dict(other.box, other.probability) for other in phrase.alternatives],
    }


def _box_dict(box: Box, probability: float) -> dict[str, Any]:
    """To a thousandth of a pixel: what is behind that is noise of float32."""
    return {"box": [round(end, 3) for end in box], "probability": round(probability, 6)}
