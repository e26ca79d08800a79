"""Region networks for tests: the real one in small, with weights by which what it sees makes a difference."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from phrasechain.regions.network import RegionNetwork
from phrasechain.regions.weights import save_network

SIZE, DIMENSION = 64, 8


def make_network(seed: int = 0, dimension: int = DIMENSION) -> RegionNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = RegionNetwork(dimension, torch.rand(2, 3, 2) * 0.4 + 0.2, SIZE)
        for part in network.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(part.weight)
        for layer in (network.region_head.judge, *(head.say for head in network.proposal_heads)):
            layer.weight.data *= 0.05  # boxes move by a part of their size, not out of the photo
    return network.eval()


def write_weights(path: Path, seed: int = 0, dimension: int = DIMENSION) -> Path:
    save_network(path, make_network(seed, dimension))
    return path


def write_photo(path: Path, seed: int = 0, size: tuple[int, int] = (48, 32)) -> Path:
    """A photo of large random blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(size).save(path)
    return path
