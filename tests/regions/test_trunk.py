"""The folded trunk against the published network with its batch norms."""

import pytest
import torch

from phrasechain.regions.trunk import CHANNELS, Block, Trunk, fold_published
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


def test_blocks_are_left_out_by_chance_while_the_trunk_learns_alone() -> None:
    torch.manual_seed(0)
    trunk = Trunk()
    trunk.set_drop_path(0.2)
    assert [block.drop_path for block in trunk.blocks()] == pytest.approx([0.2 * place / 16 for place in range(1, 17)])
    block = trunk.blocks()[-2]  # the last one that adds
    x = torch.rand(400, 192, 2, 2)
    with torch.no_grad():
        whole = block.eval()(x)
        learnt = block.train()(x)
    is_dropped = (learnt == x).flatten(1).all(1)
    assert 0.1 < float(is_dropped.float().mean()) < 0.3  # the last but one: 0.1875
    scaled = x + (whole - x) / (1 - block.drop_path)
    torch.testing.assert_close(learnt[~is_dropped], scaled[~is_dropped])


def test_only_a_depthwise_convolution_with_stride_and_gradient_stays_in_float32() -> None:
    x = torch.rand(1, 24, 8, 8)
    for stride, learns, expected in ((1, True, torch.bfloat16), (2, True, torch.float32), (2, False, torch.bfloat16)):
        block, seen = Block(24, 24, 3, stride, expansion=1), x.clone().requires_grad_(learns)
        with torch.autocast("cpu", torch.bfloat16):
            found = block._depthwise(seen)
        assert found.dtype == expected
        torch.testing.assert_close(found.float(), block.filter(x), atol=0.02, rtol=0.02)
