"""A dataset with photos on which something can be learnt in seconds."""

from pathlib import Path

import numpy as np
from PIL import Image

from official_layout import write_image
from phrasechain.data.dataset import is_dev


def write_dataset(root: Path) -> Path:
    """Twenty-odd photos of one bright rectangle each, in the official layout."""
    rng = np.random.default_rng(0)
    ids = [str(number) for number in range(1000, 1040)]
    ids = [name for name in ids if not is_dev(name)][:22] + [name for name in ids if is_dev(name)][:2]
    for name in ids:
        x, y = rng.integers(5, 45, 2).tolist()
        box = (x, y, x + 39, y + 29)
        write_image(root, name, "[/EN#1/other A box] here .\n", [(["1"], [box], {})])
        pixels = np.zeros((80, 100, 3), np.uint8)
        pixels[y - 1 : y + 29, x - 1 : x + 39] = 255
        Image.fromarray(pixels).save(root / "images" / f"{name}.jpg")
    (root / "train.txt").write_text("".join(f"{name}\n" for name in ids))
    return root
