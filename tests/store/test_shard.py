"""Shards: readable by others, and checked when others wrote them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from phrasechain.core.errors import DataError
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import encode_shard
from store_helpers import INFO, fails, make_regions, replace_shard, write


def test_safetensors_reads_a_shard(tmp_path: Path):
    images = [make_regions("a", 2), make_regions("ß", 3)]
    write(tmp_path / "s", images)
    with safe_open(tmp_path / "s" / "shard-000000.safetensors", framework="numpy") as shard:
        assert json.loads(shard.metadata()["images"]) == ["a", "ß"]
        assert shard.get_tensor("offsets").tolist() == [0, 2, 5]
        np.testing.assert_array_equal(shard.get_tensor("features")[2:], images[1].features)


def forge(folder: Path, change: dict, values: dict | None = None) -> None:
    """Write a store with one image, then change entries of its shard's header, or the first value of a tensor."""
    write(folder, [make_regions("a")])
    data = (folder / "shard-000000.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), bytearray(data[8 + length :])
    for name, value in (values or {}).items():
        place = header[name]["data_offsets"][0]
        body[place : place + len(value)] = value
    for name, entry in change.items():
        header[name] = {**header.get(name, {}), **entry} if isinstance(entry, dict) else entry
    text = json.dumps(header).encode()
    replace_shard(folder, len(text).to_bytes(8, "little") + text + bytes(body))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"boxes": {"data_offsets": [-32, 0]}}, "data_offsets"),
        ({"boxes": {"data_offsets": [2**63, 2**63 + 32]}}, "overlap or leave gaps"),
        ({"boxes": {"data_offsets": [0, 32]}}, "overlap or leave gaps"),
        ({"boxes": {"data_offsets": [32, 0]}}, "do not fit"),
        ({"boxes": {"data_offsets": "ab"}}, "no data_offsets"),
        ({"boxes": {"data_offsets": [0.0, 32.0]}}, "no data_offsets"),
        ({"boxes": {"shape": [-2, 4]}}, r"\(regions, 4\)"),
        ({"boxes": {"shape": [2**62, 4]}}, "do not fit its shape|is not"),
        ({"boxes": {"shape": [2]}}, r"\(regions, 4\)"),
        ({"boxes": {"dtype": "F64"}}, "'boxes' is not F32"),
        ({"boxes": 5}, r"\(regions, 4\)"),
        ({"features": {"shape": [2, 2]}}, "'features' is not"),
        ({"features": 5}, "'features' is not"),
        ({"more": {"dtype": "F32"}}, "'more'"),
        ({"__metadata__": None}, "no 'images'"),
        ({"__metadata__": {"images": "5"}}, "list of texts"),
        ({"__metadata__": {"images": "[5]"}}, "list of texts"),
        ({"__metadata__": {"images": "["}}, "broken JSON"),
        ({"__metadata__": {"images": '["a", "b"]'}}, "'offsets' is not"),
    ],
)
def test_a_forged_shard_is_refused(tmp_path: Path, change: dict, words: str):
    forge(tmp_path, change)
    fails(tmp_path, words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"offsets": np.array([0, 3], "<i8").tobytes()}, "offsets"),
        ({"offsets": np.array([-(2**63), 2], "<i8").tobytes()}, "offsets"),
        ({"offsets": np.array([2, 2], "<i8").tobytes()}, "offsets"),
        ({"sizes": np.array([-5, 5], "<i4").tobytes()}, "width or height"),
    ],
)
def test_forged_offsets_and_sizes_are_refused(tmp_path: Path, values: dict, words: str):
    forge(tmp_path, {}, values)
    fails(tmp_path, words)


def test_a_forged_class_name_is_refused(tmp_path: Path):
    info = replace(INFO, has_names=True)
    write(tmp_path, [replace(make_regions("a"), names=("dog", "cat"))], info)
    data = (tmp_path / "shard-000000.safetensors").read_bytes()
    replace_shard(tmp_path, data.replace(rb"[\"dog\", \"cat\"]", rb"[\"dog\"         ]"))
    with pytest.raises(DataError, match="class name"):
        FeatureStore.open(tmp_path)["a"]


@pytest.mark.parametrize("data", [b"", b"abc", (2**63).to_bytes(8, "little"), (99).to_bytes(8, "little") + b"{}"])
def test_what_is_no_shard_is_refused(tmp_path: Path, data: bytes):
    write(tmp_path, [make_regions("a")])
    replace_shard(tmp_path, data)
    fails(tmp_path, "header does not fit")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_shard_never_gives_a_traceback(tmp_path: Path, data: st.DataObject):
    shard = bytearray(encode_shard([make_regions("a")], INFO))
    if not (tmp_path / "store.json").exists():
        write(tmp_path, [make_regions("a")])
    cut = data.draw(st.integers(0, len(shard)))
    places = data.draw(st.lists(st.tuples(st.integers(0, len(shard) - 1), st.integers(0, 255)), max_size=4))
    for place, value in places:
        shard[place] = value
    replace_shard(tmp_path, bytes(shard[:cut]) if data.draw(st.booleans()) else bytes(shard))
    try:
        store = FeatureStore.open(tmp_path)
        read = [store[image] for image in store]
    except DataError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert [regions.features.shape for regions in read] == [(2, 3)]
