"""Pictures of groundings: pure functions from an image and what was found in it to another image.

- ``picture.py``: :func:`draw_grounding`, the photo with its boxes and labels, and the caption below.
- ``comparison.py``: :func:`draw_comparison`, two groundings of one caption side by side.
- ``places.py``: where labels go; ``frames.py``: boxes and chips; ``caption.py``: the wrapped caption.
- ``font.py``: text that the font can show; ``colours.py``: a colour-blind-safe palette.
"""

from phrasechain.draw.comparison import draw_comparison
from phrasechain.draw.picture import draw_grounding

__all__ = ["draw_comparison", "draw_grounding"]
