"""The runtimes say the same; the exported graphs are kept, and what cannot be kept or read does no harm."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.regions import runtime
from phrasechain.regions.extractor import RegionExtractor, as_input
from phrasechain.regions.network import RegionNetwork
from phrasechain.regions.pixels import Photo
from phrasechain.regions.runtime import Runtime, load_runtime
from tiny_regions import SIZE, make_network

SHA = "cd" * 32
pytestmark = pytest.mark.slow  # exporting the graphs


@pytest.fixture(scope="module")
def network() -> RegionNetwork:
    return make_network()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, network: RegionNetwork) -> Path:
    """A cache that holds the network's graphs: exporting takes seconds, so it is done once."""
    pytest.importorskip("onnxruntime", reason="the extra 'fast' is not installed")
    pytest.importorskip("onnxscript", reason="the extra 'fast' is not installed")
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(folder))
        load_runtime("onnx", network, SHA)
    return folder


@pytest.fixture
def in_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the cache, in use; there, nothing may be exported."""

    def refuse(_: RegionNetwork) -> None:
        raise AssertionError("exported though it was in the cache")

    shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "export_graphs", refuse)
    return tmp_path / "cache" / "regions"


def stored_graphs(folder: Path) -> tuple[bytes, bytes]:
    return next(folder.glob("backbone-*")).read_bytes()[32:], next(folder.glob("region-head-*")).read_bytes()[32:]


def assert_equal(ours: Runtime, theirs: Runtime, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = as_input(torch.from_numpy(rng.integers(0, 256, (1, SIZE, SIZE, 3), dtype=np.uint8)))
    corners = torch.from_numpy(rng.uniform(0, 1, (1, count, 2, 2)).astype(np.float32)).sort(-2).values
    boxes = corners.flatten(2)  # (1, K, 4)
    with torch.inference_mode():
        (maps, dense), (other_maps, other_dense) = ours.backbone(pixels), theirs.backbone(pixels)
        described, other = ours.region_head(maps, boxes), theirs.region_head(other_maps, boxes)
    for one, two in zip((*maps, *dense, *described), (*other_maps, *other_dense, *other), strict=True):
        assert one.shape == two.shape
        torch.testing.assert_close(two, one, atol=1e-3, rtol=1e-4)


def test_onnx_says_what_torch_says(in_cache: Path, network: RegionNetwork) -> None:
    ours, theirs = load_runtime("torch", network, SHA), load_runtime("onnx", network, SHA)

    @settings(max_examples=10)
    @given(seed=st.integers(0, 1000), count=st.sampled_from([1, 2, 3, 100, 300]))
    def check(seed: int, count: int) -> None:
        assert_equal(ours, theirs, seed, count)

    check()


def test_the_extractor_runs_on_it(in_cache: Path, network: RegionNetwork) -> None:
    photo = Photo(64, 64, np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8))
    ours, theirs = (RegionExtractor(network, SHA, name).regions("a", photo, 10) for name in ("torch", "onnx"))
    np.testing.assert_allclose(theirs.boxes, ours.boxes, atol=1e-3)
    np.testing.assert_allclose(theirs.features.astype(float), ours.features.astype(float), atol=1e-2)
    assert RegionExtractor(network, SHA, "onnx").info == RegionExtractor(network, SHA).info


def test_other_weights_or_versions_are_other_graphs(
    in_cache: Path, network: RegionNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_runtime("onnx", network, SHA)
    with pytest.raises(AssertionError, match="exported"):
        load_runtime("onnx", network, "ef" * 32)
    monkeypatch.setattr(runtime, "version", lambda _: "99")
    with pytest.raises(AssertionError, match="exported"):
        load_runtime("onnx", network, SHA)


@pytest.mark.parametrize("part", ["backbone-*", "region-head-*"])
def test_a_broken_cache_is_mended(
    in_cache: Path, network: RegionNetwork, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    graphs = stored_graphs(in_cache)
    broken = next(in_cache.glob(part))
    broken.write_bytes(broken.read_bytes()[:1000])
    monkeypatch.setattr(runtime, "export_graphs", lambda _: graphs)
    assert_equal(load_runtime("torch", network, SHA), load_runtime("onnx", network, SHA), 0, 5)
    assert stored_graphs(in_cache) == graphs
    assert len(list(in_cache.iterdir())) == 2


def test_a_cache_where_nothing_can_be_kept(
    in_cache: Path, network: RegionNetwork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graphs = stored_graphs(in_cache)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(runtime, "export_graphs", lambda _: graphs)
    assert_equal(load_runtime("torch", network, SHA), load_runtime("onnx", network, SHA), 0, 5)


@pytest.mark.parametrize("package", ["onnxruntime", "onnx", "onnxscript"])
def test_without_the_extra(network: RegionNetwork, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=r"pip install 'phrasechain\[fast\]'"):
        load_runtime("onnx", network, SHA)


def test_an_unknown_runtime(network: RegionNetwork) -> None:
    with pytest.raises(DataError, match=r"no runtime named 'onxx'; there are: torch, onnx \(did you mean 'onnx'"):
        load_runtime("onxx", network, SHA)
