"""The folded trunk against the published network with its batch norms."""

import torch

from phrasechain.vision.trunk import CHANNELS, Trunk, fold_published
from published import random_weights, run_published


def test_the_folded_trunk_computes_the_published_network() -> None:
    weights = {name: tensor.double() for name, tensor in random_weights().items()}
    trunk = Trunk().double()
    trunk.load_state_dict(fold_published(weights))
    pixels = torch.rand(2, 3, 96, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    blocks = run_published(weights, pixels)
    maps = trunk(pixels)
    assert [each.shape[1:] for each in maps] == [(40, 12, 8), (112, 6, 4), (320, 3, 2)]
    assert [each.shape[1] for each in maps] == list(CHANNELS)
    for found, expected in zip(maps, (blocks[4], blocks[10], blocks[15]), strict=True):
        torch.testing.assert_close(found, expected)
