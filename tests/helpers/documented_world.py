"""The files that the examples of the documentation speak of: a folder in which they can be run."""

import json
import shutil
from pathlib import Path

from official_layout import write_image
from paths import ROOT
from phrasechain.store.shard import StoreInfo
from store_helpers import make_regions, write

MARKED = "[/EN#1/people A man] throws [/EN#2/other a frisbee] to [/EN#3/animals a dog] .\n"
OBJECTS = [(["1"], [(11, 21, 60, 80)], {}), (["2"], [(65, 31, 75, 38)], {}), (["3"], [(71, 41, 100, 80)], {})]


def make_world(folder: Path) -> None:
    """Photos, a dataset in the official layout, one as JSON lines, a region store and word vectors."""
    (folder / "photos").symlink_to(ROOT / "photos")
    for name, photo in {"photo": "photographer", "1": "coffee", "2": "astronaut"}.items():
        shutil.copy(ROOT / "photos" / f"{photo}.jpg", folder / f"{name}.jpg")
    for image, split in (("1000", "train"), ("2000", "val"), ("3000", "test")):
        write_image(folder / "flickr30k", image, MARKED, OBJECTS, photo=(100, 80))
        (folder / "flickr30k" / f"{split}.txt").write_text(f"{image}\n")
    caption = {"text": "A spoon on a saucer", "phrases": [{"start": 0, "end": 7, "boxes": [[160, 40, 430, 330]]}]}
    (folder / "mine.jsonl").write_text(json.dumps({"image": "1.jpg", "captions": [caption]}) + "\n")
    images = [make_regions("1000092795", 4), make_regions("1000268201", 2)]
    write(folder / "features", images, StoreInfo(dimension=3))
    (folder / "glove.6B.100d.txt").write_text("dog 0.1 0.2\ncat 0.3 0.4\n")
