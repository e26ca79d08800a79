"""BAN HDF5 with its pickle of ids."""

import pickle
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from feature_files import IMAGES, assert_imported, write_ban
from phrasechain.core.errors import DataError
from phrasechain.store.importers.features import import_features
from store_helpers import make_regions


def test_ban_files(tmp_path: Path):
    write_ban(tmp_path / "train.hdf5", IMAGES[:2])
    write_ban(tmp_path / "val.hdf5", IMAGES[2:])
    import_features([tmp_path / "train.hdf5", tmp_path / "val.hdf5"], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES)


def test_ban_files_with_the_same_number_of_regions_everywhere(tmp_path: Path):
    images = [make_regions("7", 3), make_regions("5", 3)]
    write_ban(tmp_path / "f.hdf5", images)
    with h5py.File(tmp_path / "f.hdf5", "a") as hdf5:
        del hdf5["pos_boxes"]
        for name in list(hdf5):
            values = hdf5[name][:]
            del hdf5[name]
            hdf5[name] = values.reshape(2, 3, -1)
    (tmp_path / "ids.pkl").write_bytes(pickle.dumps({"7": 0, "5": 1}))
    import_features([tmp_path / "f.hdf5"], tmp_path / "s", ids=[tmp_path / "ids.pkl"])
    assert_imported(tmp_path / "s", images)


@pytest.mark.parametrize(
    ("datasets", "words"),
    [
        ({"image_bb": None}, "no dataset 'image_bb'"),
        ({"pos_boxes": np.array([[0, 99], [2, 6]])}, r"\[0\]: pos_boxes says 0 to 99, there are 6"),
        ({"pos_boxes": np.array([[-1, 2], [2, 6]])}, "pos_boxes says -1 to 2"),
        ({"pos_boxes": np.array([[0, 0], [2, 6]])}, r"\[0\]: the image has 0 regions"),
        ({"pos_boxes": np.array([[0, 2]])}, r"\[1\]: row 1 does not exist, there are 1"),
        ({"pos_boxes": np.zeros((2, 2))}, "whole numbers"),
        ({"pos_boxes": None}, "do not fit each other"),
        ({"image_bb": np.zeros((6, 5))}, "last dimension must be 4"),
        ({"image_features": np.zeros((5, 3))}, "do not fit each other"),
        ({"image_features": np.array([b"a"] * 6)}, "not an array of numbers"),
        ({"spatial_features": np.zeros((6, 6))}, "do not agree on the width"),
    ],
)
def test_broken_ban_files(tmp_path: Path, datasets: dict, words: str):
    write_ban(tmp_path / "f.hdf5", IMAGES[:2], **datasets)
    with pytest.raises(DataError, match=words):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s")


def test_ban_files_do_not_reach_other_files(tmp_path: Path):
    write_ban(tmp_path / "other.hdf5", IMAGES[:1])
    write_ban(tmp_path / "f.hdf5", IMAGES[:1], image_bb=h5py.ExternalLink("other.hdf5", "image_bb"))
    with pytest.raises(DataError, match="no dataset 'image_bb'"):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s")
    write_ban(tmp_path / "f.hdf5", IMAGES[:1], image_bb=None)
    (tmp_path / "secret").write_bytes(bytes(32))
    with h5py.File(tmp_path / "f.hdf5", "a") as hdf5:
        hdf5.create_dataset("image_bb", (2, 4), "<f4", external=[(str(tmp_path / "secret"), 0, 32)])
    with pytest.raises(DataError, match="within the file"):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s")


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2], "a list, not a dict"),
        ({"1000": 1.5}, "not an image id and a row"),
        ({"1000": True}, "not an image id and a row"),
        ({"1000": -1}, r"row -1 does not exist"),
        ({None: 0}, "not an image id and a row"),
    ],
)
def test_broken_ban_ids(tmp_path: Path, ids: object, words: str):
    write_ban(tmp_path / "f.hdf5", IMAGES)
    (tmp_path / "f_imgid2idx.pkl").write_bytes(pickle.dumps(ids))
    with pytest.raises(DataError, match=words):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s")


def test_ban_files_need_their_ids(tmp_path: Path):
    write_ban(tmp_path / "f.hdf5", IMAGES)
    (tmp_path / "f_imgid2idx.pkl").rename(tmp_path / "ids.pkl")
    with pytest.raises(DataError, match="name it with --ids"):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s")
    with pytest.raises(DataError, match="1 HDF5 files but 2 pickles"):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s", ids=[tmp_path / "ids.pkl"] * 2)
    (tmp_path / "g.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(50))
    with pytest.raises(DataError, match="cannot read it as HDF5"):
        import_features([tmp_path / "g.hdf5"], tmp_path / "s", ids=[tmp_path / "ids.pkl"])


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_ban(tmp_path / "f.hdf5", IMAGES)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"pip install 'phrasechain\[train\]'"):
        import_features([tmp_path / "f.hdf5"], tmp_path / "s")
