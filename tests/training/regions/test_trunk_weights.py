"""Published weights in our trunk against the networks that they were published for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from phrasechain.regions.trunk import SHAPES, Trunk
from phrasechain.training.regions.trunk_weights import convert_detector, fold_published, published_shape
from published import LAST, random_weights, run_folded, run_published


@pytest.mark.parametrize("name", SHAPES)
def test_the_folded_trunk_computes_the_published_network(name: str) -> None:
    weights = {key: tensor.double() for key, tensor in random_weights(name=name).items()}
    shape = published_shape(weights)
    assert shape is SHAPES[name]
    trunk = Trunk(shape).double()
    trunk.load_state_dict(fold_published(weights, shape))
    pixels = torch.rand(2, 3, 96, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2 - 1
    blocks = run_published(weights, pixels, name)
    maps = trunk(pixels)
    assert [each.shape[1] for each in maps] == list(shape.channels)
    assert [each.shape[2:] for each in maps] == [(12, 8), (6, 4), (3, 2)]
    for found, last in zip(maps, LAST[name], strict=True):
        torch.testing.assert_close(found, blocks[last])


def test_weights_of_no_known_shape_have_none() -> None:
    weights = random_weights()
    assert published_shape({name: tensor for name, tensor in weights.items() if "_blocks.3." not in name}) is None
    assert published_shape({name: tensor for name, tensor in weights.items() if "_conv_head" not in name}) is None


def test_a_detectors_trunk_computes_what_it_did_in_the_detector(shared_folder: Path) -> None:
    weights = load_file(shared_folder / "efficientdet-lite0" / "trunk.safetensors")
    trunk = Trunk().eval()
    trunk.load_state_dict(convert_detector(weights))
    values = torch.randint(256, (1, 3, 12, 12), generator=torch.Generator().manual_seed(1)).float()
    values = torch.nn.functional.interpolate(values, scale_factor=16, mode="bilinear")  # (1, 3, 192, 192) in [0, 255]
    with torch.inference_mode():
        blocks, maps = run_folded(weights, (values - 127) / 128), trunk(values / 127.5 - 1)
    for found, last in zip(maps, LAST["lite0"], strict=True):
        middle = (slice(None), slice(None), *[slice(found.shape[2] // 3, -(found.shape[2] // 3))] * 2)
        apart = (found[middle] - blocks[last][middle]).norm() / blocks[last][middle].norm()
        assert apart < 1e-2  # the border's grey differs by half a step, nothing else does
