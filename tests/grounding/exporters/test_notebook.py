"""What a notebook shows: a picture of a bounded size, and a table that no caption can break out of."""

from io import BytesIO

import numpy as np
from PIL import Image

from phrasechain.core.schema import GroundedPhrase
from phrasechain.grounding.exporters.notebook import notebook_html
from phrasechain.grounding.result import PhotoGrounding
from records import FOUND

HOSTILE = '<script>alert("1")</script>'


def drawable(width: int, height: int, text: str = "a dog") -> PhotoGrounding:
    phrase = GroundedPhrase(text, 0, len(text), "animals", (1, 1, width / 2, height / 2), 0.75)
    pixels = np.zeros((height, width, 3), np.uint8)
    return PhotoGrounding(None, width, height, text, "small", "viterbi", (phrase,), source=pixels)


def test_the_picture_fits_a_screen() -> None:
    small, large = (Image.open(BytesIO(drawable(*size)._repr_png_() or b"")) for size in ((200, 100), (3000, 1500)))
    assert small.format == "PNG"
    assert max(large.size) == 1000


def test_the_page_has_the_picture_and_a_row_for_each_phrase() -> None:
    html = drawable(60, 40)._repr_html_()
    assert html.count("data:image/png;base64,") == 1
    assert "<td>a dog</td><td>animals</td><td>75%</td><td>1 1 30 20</td>" in html


def test_a_caption_stays_text() -> None:
    html = drawable(60, 40, HOSTILE)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_without_a_photo_the_table_remains() -> None:
    assert FOUND._repr_png_() is None
    assert "<img" not in FOUND._repr_html_()
    assert "<td>a dog</td>" in FOUND._repr_html_()
    assert "no phrase" in PhotoGrounding(None, 1, 1, "", "small", "viterbi")._repr_html_()


def test_a_failure_and_an_absent_phrase_are_told() -> None:
    failed = PhotoGrounding("<b>", 0, 0, "a dog", "small", "viterbi", error="<b>: missing")
    assert "&lt;b&gt;: missing" in failed._repr_html_()
    record = FOUND.to_dict()
    record["phrases"][0]["found"] = False
    assert "not in the photo" in notebook_html(record, None)
