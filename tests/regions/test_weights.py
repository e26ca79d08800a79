"""Region networks in files: what comes back is what was saved, and what is broken is one line."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.regions.network import RegionNetwork, without_norms
from phrasechain.regions.pixels import read_photo
from phrasechain.regions.trunk import LITE2
from phrasechain.regions.weights import EMBEDDED, REGIONS_FORMAT, load_network, save_network
from tiny_regions import DIMENSION, SIZE, make_network, write_weights

SHAPE = {"dimension": DIMENSION, "size": SIZE}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_weights(tmp_path_factory.mktemp("weights") / "w.safetensors").read_bytes()


def fails(path: Path, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        load_network(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def forge(path: Path, tensors: dict[str, torch.Tensor], shape: Any = SHAPE, **about: str) -> Path:
    path.write_bytes(save(tensors, {"format": REGIONS_FORMAT, "shape": json.dumps(shape)} | about))
    return path


def test_what_is_loaded_is_what_was_saved_in_half_precision(tmp_path: Path) -> None:
    path, network = write_weights(tmp_path / "w.safetensors"), without_norms(make_network())
    loaded = load_network(path)
    assert (loaded.network.dimension, loaded.network.size) == (DIMENSION, SIZE)
    assert torch.equal(loaded.network.anchors, network.anchors)
    assert loaded.network.state_dict().keys() == network.state_dict().keys()
    for name, tensor in loaded.network.state_dict().items():
        assert torch.equal(tensor, network.state_dict()[name].half().float()), name


def test_a_file_says_which_trunk_it_has(tmp_path: Path) -> None:
    network = RegionNetwork(DIMENSION, make_network().sides, SIZE, LITE2)
    save_network(tmp_path / "w", network)
    loaded = load_network(tmp_path / "w").network
    assert loaded.trunk.shape == LITE2
    assert torch.equal(loaded.trunk.stem.weight, network.trunk.stem.weight.half().float())


def test_the_hash_tells_files_apart(tmp_path: Path) -> None:
    one, same, other = (write_weights(tmp_path / str(n), seed) for n, seed in enumerate([0, 0, 1]))
    assert load_network(one).sha256 == load_network(same).sha256 != load_network(other).sha256


def test_another_version_is_named(tmp_path: Path, saved: bytes) -> None:
    fails(
        forge(tmp_path / "w", load(saved), format="phrasechain regions 99"),
        r"version \(phrasechain regions 99, not phrasechain regions 3\)",
    )
    (tmp_path / "w").write_bytes(save(load(saved)))
    fails(tmp_path / "w", "no format at all")


@pytest.mark.parametrize("end", [0, 7, 8, 1000, -1])
def test_a_cut_file(tmp_path: Path, saved: bytes, end: int) -> None:
    (tmp_path / "w").write_bytes(saved[:end])
    fails(tmp_path / "w", "broken region network: ")


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    fails(tmp_path / "none", "cannot be read: No such file")
    fails(tmp_path, "cannot be read: Is a directory")
    for content in (b"\x80\x04" + b"K\x01." * 100, b"\xff" * 100, (1 << 60).to_bytes(8, "little") + b"{}"):
        (tmp_path / "w").write_bytes(content)
        fails(tmp_path / "w", "broken region network: ")
    with (tmp_path / "w").open("wb") as file:
        file.truncate((1 << 28) + 1)
    fails(tmp_path / "w", "more than 268,435,456 bytes")


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"dimension": 10**9, "size": SIZE}, "dimension"),
        ({"dimension": float("inf"), "size": SIZE}, "broken region network: Infinity is not a number"),
        ({"dimension": DIMENSION, "size": 10**9}, "multiple of 32"),
        ({"dimension": DIMENSION, "size": 65}, "multiple of 32"),
        ({"dimension": DIMENSION + 1, "size": SIZE}, "region_head.feature"),
        (SHAPE | {"trunk": "lite9"}, "no trunk named 'lite9'"),
        (SHAPE | {"trunk": ["lite0"]}, "no trunk named"),
        (SHAPE | {"trunk": "lite2"}, "does not fit its shape"),
        ({}, "broken region network: "),
        ([], "broken region network: "),
    ],
)
def test_a_shape_that_lies_takes_no_memory(tmp_path: Path, saved: bytes, shape: Any, words: str) -> None:
    fails(forge(tmp_path / "w", load(saved), shape), words)


def test_other_tensors(tmp_path: Path, saved: bytes) -> None:
    tensors = load(saved)
    name = "trunk.stem.weight"
    fails(forge(tmp_path / "w", tensors | {"more": torch.zeros(1)}), "more")
    fails(forge(tmp_path / "w", {key: value for key, value in tensors.items() if key != name}), name)
    fails(forge(tmp_path / "w", {key: value for key, value in tensors.items() if key != "sides"}), "sides")
    fails(forge(tmp_path / "w", tensors | {name: torch.zeros(2)}), name)
    fails(forge(tmp_path / "w", tensors | {"sides": torch.zeros(2, 10**6, 2)}), "anchors")
    fails(forge(tmp_path / "w", tensors | {name: tensors[name] * torch.inf}), "not finite")
    fails(forge(tmp_path / "w", tensors | {"sides": tensors["sides"] * torch.nan}), "not finite")


def test_the_embedded_network_is_small_and_finds_regions() -> None:
    path = Path(str(files("phrasechain.regions") / "regions.safetensors"))
    weights = [
        path,
        *(
            files("phrasechain") / name
            for name in ("grounding/embedded/model.safetensors", "phrases/finder.safetensors")
        ),
    ]
    assert sum(Path(str(each)).stat().st_size for each in weights) <= 32_000_000
    extractor = RegionExtractor.from_pretrained()
    pixels = np.full((120, 160, 3), 90, np.uint8)
    pixels[30:90, 50:110] = (220, 30, 30)
    found = extractor.regions("square", read_photo(pixels, extractor.size))
    assert found.boxes.shape == (100, 4)
    assert found.features.shape == (100, 256)
    square = torch.tensor([50.0, 30.0, 110.0, 90.0])
    assert iou_xyxy(torch.from_numpy(found.boxes[:10]), square).max() > 0.5  # the only thing there is among the first


def test_files_keep_the_names_that_they_always_had(tmp_path: Path) -> None:
    """Earlier files are read, and the embedded one, whose hash a model relies on, can be written again."""
    loaded = load_network()
    save_network(tmp_path / "w.safetensors", loaded.network)
    again, embedded = (load(path.read_bytes()) for path in (tmp_path / "w.safetensors", EMBEDDED))
    assert again.keys() == embedded.keys() >= {"describe.feature.weight", "propose.0.say.weight"}
    assert all(torch.equal(again[name], tensor) for name, tensor in embedded.items())
    assert load_network(tmp_path / "w.safetensors").sha256 == loaded.sha256
