"""Groundings made by hand."""

from PIL import Image

from phrasechain.core.schema import Alternative, Box, GroundedPhrase, Grounding


def grounding(
    image: Image.Image, caption: str, *found: tuple[str, Box], others: tuple[Alternative, ...] = ()
) -> Grounding:
    """The phrases at their places in the caption, one after the other, all with a probability of 0.8."""
    phrases, end = [], 0
    for text, box in found:
        start = caption.index(text, end)
        end = start + len(text)
        phrases.append(GroundedPhrase(text, start, end, "other", box, 0.8, others))
    return Grounding("photo.jpg", image.width, image.height, caption, "small", "viterbi", tuple(phrases))
