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


FORMAT_VERSION = 1  # of a grounding as JSON: keys may be added to it, never changed


@dataclass(frozen=True, slots=True)
class PhotoGrounding(Grounding):
    """A grounding together with its photo: a file, or the image or array that the caller gave."""

    source: ImageSource | None = field(default=None, repr=False, compare=False)

    def draw(self, *, probabilities: bool = False, alternatives: int = 0) -> Image.Image:
        """The photo with its boxes and the caption below; see :func:`phrasechain.draw.draw_grounding`."""
        from phrasechain.draw import draw_grounding  # imported here: an answer without a picture comes sooner

        return draw_grounding(self.canvas(), self, probabilities=probabilities, alternatives=alternatives)

    def canvas(self, panels: int = 1) -> Image.Image:
        """The photo as displayed, in RGB, decoded anew, at the size at which it is drawn."""
        from phrasechain.draw.panel import canvas_size

        if self.error is not None or self.source is None:
            raise DataError(f"nothing to draw: {self.error or 'the photo is not known'}")
        size = canvas_size(self.width, self.height, panels)
        return read_rgb(self.source, None if size[0] >= self.width else size)

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, as JSON has them; ``error`` and ``hint`` only where there is one."""
        record = {
            "version": FORMAT_VERSION,
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

    def to_rows(self) -> list[dict[str, Any]]:
        """A flat dict for each phrase, the rows of a table: ``pandas.DataFrame(found.to_rows())``."""
        from phrasechain.grounding.exporters.rows import rows_of

        return rows_of([self.to_dict()])

    def to_coco(self) -> dict[str, Any]:
        """COCO's JSON of object detection; of many groundings, see :func:`phrasechain.grounding.exporters.coco_of`."""
        from phrasechain.grounding.exporters.coco import coco_of

        return coco_of([self.to_dict()])

    def _repr_png_(self) -> bytes | None:
        """The picture, for a notebook; nothing where it cannot be drawn any more."""
        from phrasechain.grounding.exporters.notebook import notebook_png

        try:
            return notebook_png(self.draw(probabilities=True))
        except DataError:
            return None

    def _repr_html_(self) -> str:
        """The picture and a table, for a notebook."""
        from phrasechain.grounding.exporters.notebook import notebook_html

        return notebook_html(self.to_dict(), self._repr_png_())


def _phrase_dict(phrase: GroundedPhrase) -> dict[str, Any]:
    return {
        "text": phrase.text,
        "start": phrase.start,
        "end": phrase.end,
        "category": phrase.category,
        **box_dict(phrase.box, phrase.probability),
        "presence": None if phrase.presence is None else round(phrase.presence, 6),
        "found": phrase.found,
        "alternatives": [box_dict(other.box, other.probability) for other in phrase.alternatives],
    }


def box_dict(box: Box, probability: float) -> dict[str, Any]:
    """To a thousandth of a pixel: what is behind that is noise of float32."""
    return {"box": [round(end, 3) for end in box], "probability": round(probability, 6)}
