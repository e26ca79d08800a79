"""DDPN npz: whole, damaged and forged."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feature_files import IMAGES, assert_imported, write_ddpn
from phrasechain.core.errors import DataError
from phrasechain.store.importers import ddpn as features_ddpn
from phrasechain.store.importers.features import import_features
from phrasechain.store.reader import FeatureStore


@pytest.mark.parametrize("suffix", [".npz", ".jpg.npz", ".JPG.npz"])
def test_ddpn_folders_and_files(tmp_path: Path, suffix: str):
    write_ddpn(tmp_path / "npz", IMAGES[:2], suffix)
    write_ddpn(tmp_path / "more", IMAGES[2:], suffix)
    import_features([tmp_path / "npz", tmp_path / "more" / f"3000{suffix}"], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES)


def test_ddpn_files_with_one_row_per_region_and_other_members(tmp_path: Path):
    """As the PyTorch port of bottom-up-attention writes them; its pickled member is not opened."""
    for regions in IMAGES:
        write_ddpn(tmp_path / "npz", [regions], x=regions.features, info={"objects": object})
    import_features([tmp_path / "npz"], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES)


def test_npy_headers_of_python_2(tmp_path: Path):
    write_ddpn(tmp_path / "npz", IMAGES[:1])
    file = next((tmp_path / "npz").iterdir())
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    assert b"(2, 4), }  " in members["bbox.npy"]
    members["bbox.npy"] = members["bbox.npy"].replace(b"(2, 4), }  ", b"(2L, 4L), }")
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    import_features([file], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES[:1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.zeros((3, 5))}, r"x has shape \(3, 5\)"),
        ({"x": np.array([[object()]])}, "'x' holds object, not numbers"),
        ({"bbox": np.zeros((3, 4))}, r"\(3, 4\), not \(num_bbox, 4\) = \(2, 4\)"),
        ({"num_bbox": [1, 2]}, "num_bbox is not one whole number"),
        ({"num_bbox": 0, "bbox": np.zeros((0, 4)), "x": np.zeros((3, 0))}, "boxes are 0"),
        ({"image_w": np.nan}, "image_w is not one whole number"),
        ({"image_h": 1e300}, "whole pixels"),
    ],
)
def test_broken_ddpn_files(tmp_path: Path, changes: dict, words: str):
    write_ddpn(tmp_path / "npz", IMAGES[:1], **changes)
    with pytest.raises(DataError, match=words):
        import_features([tmp_path / "npz"], tmp_path / "s")


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\x93NUMPY\x09\x00",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", bytes(4)),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (0, " + "9" * 30 + ")}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 3000),
        npy("__import__('os').system('true')"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': ()}", pickle.dumps(1)),
    ],
)
def test_forged_npy_arrays(tmp_path: Path, member: bytes):
    write_ddpn(tmp_path / "npz", IMAGES[:1])
    file = next((tmp_path / "npz").iterdir())
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(DataError, match="npz") as caught:
        import_features([file], tmp_path / "s")
    assert "\n" not in str(caught.value)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features_ddpn, "MAX_BYTES", 100_000)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x", "bbox", "num_bbox", "image_w", "image_h"):  # together too large
            archive.writestr(f"{name}.npy", bytes(30_000))
    with pytest.raises(DataError, match=r"a\.npz: its arrays unpack to more than 100,000 bytes"):
        import_features([tmp_path / "a.npz"], tmp_path / "s")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_npz_gives_an_error_or_a_store(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("fuzz")
    write_ddpn(folder / "npz", IMAGES[:1])
    file = next((folder / "npz").iterdir())
    content = bytearray(file.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    try:
        import_features([file], folder / "s", format="ddpn")
    except DataError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert FeatureStore.open(folder / "s").ids == ("1000",)


def test_hidden_files_are_no_features(tmp_path: Path):
    write_ddpn(tmp_path / "npz", IMAGES)
    (tmp_path / "npz" / "._1000.npz").write_bytes(b"\0\5\x16\7")
    import_features([tmp_path / "npz"], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES)


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_ddpn(tmp_path / "npz", IMAGES)
    (tmp_path / "npz" / "more").mkdir()
    scandir = os.scandir

    def refuse(path: str):  # type: ignore[no-untyped-def]
        if Path(path).name == "more":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="more: cannot be listed: Permission denied"):
        import_features([tmp_path / "npz"], tmp_path / "s")
