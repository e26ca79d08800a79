"""A tiny world for training: images of six tiles, each of a colour, and captions that name some of them."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from official_layout import Object, write_image
from phrasechain.core.schema import Regions
from phrasechain.model.checkpoint import read_run_state
from phrasechain.model.config import Config, make_config
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter

COLOURS = ("red", "blue", "green", "black", "white", "pink", "grey", "gold")
DIMENSION, REGIONS = len(COLOURS), 6
#: Of different sizes: what is the same for all has no gradient but rounding.
TILES = [(x0, y0, x1, y1) for y0, y1 in ((0, 35), (35, 80)) for x0, x1 in ((0, 25), (25, 60), (60, 100))]
SMALL = (
    "text.dimension=16",
    "text.buckets=16",
    "model.lstm=8",
    "model.rank=16",
    "model.joint=16",
    "model.transition_hidden=4",
    "train.batch=4",
    "train.rate=0.03",
)


def tiny_config(*settings: str, preset: str = "small") -> Config:
    return make_config(preset, texts=[*SMALL, *settings])


def write_world(root: Path, images: int = 30, seed: int = 0, single: bool = False) -> tuple[Path, Path]:
    """A dataset in the official layout, all of it ``train``, and the store of its regions.

    Every image has two captions of one to three tiles, of one with ``single``, and the second a phrase without a box.
    """
    data, rng = root / "data", np.random.default_rng(seed)
    ids = [str(1000 + number) for number in range(images)]
    info = StoreInfo(DIMENSION, "float32", "tiles", "ab" * 32)
    with StoreWriter(root / "store", info) as writer:
        for image in ids:
            colours = rng.permutation(DIMENSION)[:REGIONS]
            objects: list[Object] = [
                ([str(tile)], [(x0 + 3, y0 + 3, x1 - 1, y1 - 1)], {}) for tile, (x0, y0, x1, y1) in enumerate(TILES, 1)
            ]
            captions = [_caption(rng, colours, 1 if single else int(rng.integers(1, 4))) for _ in range(2)]
            captions[1] += " in [/EN#99/scene the street]"
            write_image(data, image, "".join(f"{caption} .\n" for caption in captions), objects)
            features = np.eye(DIMENSION, dtype=np.float32)[colours] + 0.1 * rng.normal(size=(REGIONS, DIMENSION))
            writer.add(Regions(image, 100, 80, np.array(TILES, np.float32), features.astype(np.float32)))
        writer.finish()
    (data / "train.txt").write_text("".join(f"{image}\n" for image in ids))
    return data, root / "store"


def _caption(rng: np.random.Generator, colours: np.ndarray, phrases: int) -> str:
    tiles = rng.permutation(REGIONS)[:phrases]
    return " beside ".join(f"[/EN#{tile + 1}/other a {COLOURS[colours[tile]]} tile]" for tile in tiles)


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    state = read_run_state(run)
    assert state is not None
    return load_file(run / state.last / "model.safetensors")


def assert_close(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], within: float = 1e-5) -> None:
    """Whether all weights are as near as rounding lets them be.

    Two numbers are left out, the constants that all emissions and all transitions have in common: no probability
    depends on them, so that their gradient is nothing but rounding, of which Adam makes steps of full size.
    """
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        mine, theirs = found[name].clone(), tensor.clone()
        if name in ("pairs.heads.bias", "transition.out.bias", "transition.paper.out.bias"):
            mine[0] = theirs[0] = 0
        torch.testing.assert_close(mine, theirs, rtol=0, atol=within, msg=lambda text, name=name: f"{name}: {text}")
