"""The region store: what was written comes back, and what is broken is said in one line."""

import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter
from store_helpers import INFO, assert_same, change_json, fails, make_regions, write


@st.composite
def stores(draw: st.DrawFn) -> tuple[StoreInfo, list[Regions]]:
    info = StoreInfo(
        dimension=draw(st.integers(1, 5)),
        dtype=draw(st.sampled_from(["float16", "float32"])),
        weights_sha256=draw(st.none() | st.just("ab" * 32)),
        has_objectness=draw(st.booleans()),
        has_names=draw(st.booleans()),
    )
    printable = st.text(min_size=1, max_size=8).filter(str.isprintable)
    images = []
    for image in draw(st.lists(printable, unique=True, max_size=5)):
        count = draw(st.integers(1, 4))
        corners = draw(hnp.arrays(np.float32, (2, count, 2), elements=st.floats(-50, 900, width=32)))
        features = hnp.arrays(np.float16, (count, info.dimension), elements=st.floats(-60000, 60000, width=16))
        scores = hnp.arrays(np.float32, count, elements=st.floats(0, 1, width=32))
        images.append(
            Regions(
                image,
                width=draw(st.integers(1, 2**31 - 1)),
                height=draw(st.integers(1, 2**31 - 1)),
                boxes=np.concatenate([corners.min(axis=0), corners.max(axis=0)], axis=1),
                features=draw(features).astype(info.dtype),
                objectness=draw(scores) if info.has_objectness else None,
                names=tuple(draw(st.lists(printable, min_size=count, max_size=count))) if info.has_names else None,
            )
        )
    return info, images


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stores(), st.sampled_from([1, 100, 1 << 26]))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, store: tuple[StoreInfo, list[Regions]], size: int):
    info, images = store
    folder = tmp_path_factory.mktemp("round") / "store"
    write(folder, images, info, shard_bytes=size)
    opened = FeatureStore.open(folder)
    opened.verify()
    assert opened.info == info
    assert list(opened) == [regions.image for regions in images]
    assert len(opened) == len(images)
    for regions in images:
        assert regions.image in opened
        assert_same(opened[regions.image], regions)
        assert opened[regions.image].features.dtype == info.dtype


@settings(max_examples=40, deadline=None)
@given(stores(), st.data())
def test_batches_are_the_images_one_after_the_other(tmp_path_factory, store, data):
    info, images = store
    folder = tmp_path_factory.mktemp("batch") / "store"
    write(folder, images, info, shard_bytes=100)
    opened = FeatureStore.open(folder)
    chosen = data.draw(st.lists(st.sampled_from(images), max_size=6)) if images else []
    batch = opened.read_batch([regions.image for regions in chosen])
    assert batch.features.shape == (sum(len(regions.boxes) for regions in chosen), info.dimension)
    assert batch.sizes.tolist() == [[regions.width, regions.height] for regions in chosen]
    for n, regions in enumerate(chosen):
        rows = slice(batch.offsets[n], batch.offsets[n + 1])
        got = Regions(
            batch.images[n],
            regions.width,
            regions.height,
            batch.boxes[rows],
            batch.features[rows],
            None if batch.objectness is None else batch.objectness[rows],
            regions.names,
        )
        assert_same(got, regions)


def test_a_batch_fills_the_buffer_it_is_given(tmp_path: Path):
    images = [make_regions(name, count) for name, count in [("a", 2), ("b", 3)]]
    write(tmp_path / "s", images)
    store = FeatureStore.open(tmp_path / "s")
    buffer = np.full((9, 3), -1, np.float32)
    batch = store.read_batch(["b", "a"], out=buffer)
    assert np.shares_memory(batch.features, buffer)
    np.testing.assert_array_equal(buffer[:5], np.concatenate([images[1].features, images[0].features]))
    assert (buffer[5:] == -1).all()
    with pytest.raises(DataError, match="at least"):
        store.read_batch(["a", "b"], out=np.empty((4, 3), np.float32))
    with pytest.raises(DataError, match="float32"):
        store.read_batch(["a"], out=np.empty((4, 3), np.float16))


def test_what_is_read_cannot_be_changed(tmp_path: Path):
    write(tmp_path / "s", [make_regions("a")])
    features = FeatureStore.open(tmp_path / "s")["a"].features
    with pytest.raises(ValueError, match="read-only"):
        features[0, 0] = 1


def test_an_absent_image_is_named(tmp_path: Path):
    write(tmp_path / "s", [make_regions("a")])
    store = FeatureStore.open(tmp_path / "s")
    for read in (store.__getitem__, lambda image: store.read_batch([image])):
        with pytest.raises(DataError, match="the store has no image 'b'"):
            read("b")


def test_an_unfinished_store_says_so_and_opens_in_part(tmp_path: Path):
    with StoreWriter(tmp_path / "s", INFO) as writer:
        writer.add(make_regions("a"))
    fails(tmp_path / "s", "unfinished, 1 images so far")
    store = FeatureStore.open(tmp_path / "s", partial=True)
    assert not store.is_finished
    assert_same(pickle.loads(pickle.dumps(store))["a"], make_regions("a"))


def _sum(job: tuple[FeatureStore, str]) -> float:
    return float(job[0][job[1]].features.sum())


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_many_processes_read_one_store(tmp_path: Path, method: str):
    images = [make_regions(str(n), count=1 + n % 4) for n in range(20)]
    write(tmp_path / "s", images, shard_bytes=200)
    store = FeatureStore.open(tmp_path / "s")
    store.read_batch(store.ids)  # the maps are open before the processes start
    with multiprocessing.get_context(method).Pool(2) as pool:
        sums = pool.map(_sum, [(store, image) for image in store])
    assert sums == [float(regions.features.sum()) for regions in images]


def test_more_shards_than_open_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phrasechain.store.reader._MAX_OPEN_MAPS", 2)
    images = [make_regions(str(n)) for n in range(8)]
    write(tmp_path / "s", images, shard_bytes=1)
    store = FeatureStore.open(tmp_path / "s")
    kept = [store[regions.image] for regions in images]
    for got, wanted in zip(kept, images, strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "zip"}, "not the header"),
        ({"version": 2}, "format version 2, this phrasechain reads 1"),
        ({"dimension": 4}, "'features' is not F32 of shape"),
        ({"dimension": -3}, "from 1 to 65536, not -3"),
        ({"dimension": True}, "not True"),
        ({"dimension": 10**30}, "from 1 to"),
        ({"dtype": "float16"}, "'features' is not F16"),
        ({"dtype": "object"}, "not 'object'"),
        ({"box_convention": "xywh"}, "box convention"),
        ({"extractor": 5}, "must be texts"),
        ({"has_names": True}, "no 'names'"),
        ({"has_names": 1}, "true or false"),
        ({"has_objectness": True}, "the store needs"),
        ({"colour": "red"}, "missing or unknown"),
        ({"finished": {"shards": 2, "images": 1}}, "does not list the 2 shards"),
        ({"finished": {"shards": 1}}, "missing or unknown"),
        ({"finished": [1]}, "missing or unknown"),
    ],
)
def test_a_strange_header_is_refused(tmp_path: Path, changes: dict, words: str):
    write(tmp_path, [make_regions("a")])
    change_json(tmp_path / "store.json", **changes)
    fails(tmp_path, words)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff", '{"dimension": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize("file", ["store.json", "shards.jsonl"])
def test_broken_json_is_refused(tmp_path: Path, file: str, text: str):
    write(tmp_path, [make_regions("a")])
    (tmp_path / file).write_bytes(text.encode("latin1") + b"\n")
    fails(tmp_path, file, partial=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../../secret"},
        {"file": "shard-000001.safetensors"},
        {"bytes": -1},
        {"bytes": 5},
        {"bytes": "all"},
        {"images": 7},
        {"sha256": "zz"},
        {"sha256": 5},
        {"more": 1},
    ],
)
def test_a_strange_record_is_refused(tmp_path: Path, changes: dict):
    write(tmp_path, [make_regions("a")])
    change_json(tmp_path / "shards.jsonl", **changes)
    with (tmp_path / "shards.jsonl").open("a") as file:
        file.write("\n")
    fails(tmp_path, "shard", partial=True)


def test_an_image_twice_is_refused(tmp_path: Path):
    write(tmp_path, [make_regions("a"), make_regions("b")], shard_bytes=1)
    first = tmp_path / "shard-000000.safetensors"
    (tmp_path / "shard-000001.safetensors").write_bytes(first.read_bytes())
    fails(tmp_path, "twice")


def test_a_missing_manifest_or_shard_is_refused(tmp_path: Path):
    write(tmp_path, [make_regions("a")])
    (tmp_path / "shard-000000.safetensors").unlink()
    fails(tmp_path, "cannot read the shard: No such file")
    (tmp_path / "shards.jsonl").unlink()
    fails(tmp_path, "does not list the 1 shards")


def test_one_flipped_bit_is_found(tmp_path: Path):
    write(tmp_path, [make_regions("a")])
    shard = tmp_path / "shard-000000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DataError, match="checksum is wrong"):
        FeatureStore.open(tmp_path).verify()


def test_a_shard_that_shrinks_while_the_store_is_open_is_refused(tmp_path: Path):
    write(tmp_path, [make_regions("a")])
    store = FeatureStore.open(tmp_path)
    for length in (100, 0):
        os.truncate(tmp_path / "shard-000000.safetensors", length)
        with pytest.raises(DataError, match="shard"):
            store["a"]
