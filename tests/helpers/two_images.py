"""Two images with regions and captions whose targets are known by hand."""

import numpy as np

from builders import make_caption, make_example
from phrasechain.core.schema import Regions

LEFT, RIGHT, WHOLE = (0.0, 0.0, 40.0, 40.0), (60.0, 0.0, 100.0, 40.0), (0.0, 0.0, 100.0, 40.0)
DOG = ("a dog", "1", ("animals",), (LEFT,))
DOGS = ("two dogs", "2", ("animals",), (LEFT, RIGHT))
SKY = ("the sky", None, ("scene",), None)
FLOOR = ("the floor", None, ("scene",), ())
WAY = ("the way", None, ("notvisual",), None)
SPECK = ("a speck", "3", ("other",), ((0.0, 0.0, 1.0, 1.0),))


def make_regions(image: str, *boxes: tuple[float, ...], width: int = 100, height: int = 80) -> Regions:
    features = np.arange(len(boxes) * 3, dtype=np.float16).reshape(-1, 3) + 1
    return Regions(image, width, height, np.array(boxes, dtype=np.float32), features)


FIRST = make_example("x", make_caption(0, DOG, SKY, DOGS), make_caption(3, SPECK, WAY))
SECOND = make_example("y", make_caption(1, FLOOR), make_caption(2, DOG), width=50, height=40)
STORE = {
    "x": make_regions("x", (0, 0, 40, 30), (0, 0, 100, 40), (60, 0, 100, 40)),
    "y": make_regions("y", (0, 0, 20, 40), (10, 0, 40, 40), width=50, height=40),
}
ITEMS = [(example, caption) for example in (FIRST, SECOND) for caption in example.captions]
