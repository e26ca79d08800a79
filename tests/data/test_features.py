"""Importing the feature files of other tools, each written here as its own tool writes it."""

import base64
import csv
import gzip
import io
import pickle
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import make_regions

from phrasechain.cli import main
from phrasechain.data import features_ddpn, features_tsv
from phrasechain.data.features import import_features, open_features
from phrasechain.data.store import FeatureStore
from phrasechain.errors import DataError
from phrasechain.schema import Regions

COLUMNS = ["image_id", "image_w", "image_h", "num_boxes", "boxes", "features"]
IMAGES = [make_regions("1000", 2), make_regions("2000", 4), make_regions("3000", 1)]


def tsv_bytes(images: list[Regions], **changes: object) -> bytes:
    """What bottom-up-attention's generate_tsv.py writes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, delimiter="\t", fieldnames=COLUMNS)
    for regions in images:
        row = {
            "image_id": regions.image,
            "image_w": regions.width,
            "image_h": regions.height,
            "num_boxes": len(regions.boxes),
            "boxes": base64.b64encode(np.ascontiguousarray(regions.boxes)).decode(),
            "features": base64.b64encode(np.ascontiguousarray(regions.features)).decode(),
        }
        writer.writerow({**row, **changes})
    return text.getvalue().encode()


def write_ban(file: Path, images: list[Regions], **datasets: np.ndarray) -> None:
    """What BAN's converter writes, and its pickle as Python 2 did."""
    ends = np.cumsum([len(regions.boxes) for regions in images])
    scale = [[regions.width, regions.height] * 2 for regions in images for _ in regions.boxes]
    boxes = np.concatenate([regions.boxes for regions in images])
    shares = boxes / np.array(scale, np.float32)
    arrays = {
        "image_features": np.concatenate([regions.features for regions in images]),
        "image_bb": boxes,
        "spatial_features": np.concatenate([shares, shares[:, 2:] - shares[:, :2]], axis=1),
        "pos_boxes": np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1),
    }
    with h5py.File(file, "w") as hdf5:
        for name, values in {**arrays, **datasets}.items():
            if values is not None:
                hdf5[name] = values
    rows = {int(regions.image): row for row, regions in enumerate(images)}
    file.with_name(f"{file.stem}_imgid2idx.pkl").write_bytes(pickle.dumps(rows, protocol=2))


def write_ddpn(folder: Path, images: list[Regions], suffix: str = ".jpg.npz", **changes: object) -> None:
    folder.mkdir(exist_ok=True)
    for regions in images:
        arrays = {
            "x": regions.features.T,
            "bbox": regions.boxes,
            "num_bbox": len(regions.boxes),
            "image_h": regions.height,
            "image_w": regions.width,
        }
        np.savez_compressed(folder / f"{regions.image}{suffix}", **{**arrays, **changes})


def assert_imported(store: Path, images: list[Regions]) -> None:
    opened = FeatureStore.open(store)
    opened.verify()
    assert sorted(opened.ids) == sorted(regions.image for regions in images)
    for wanted in images:
        got = opened[wanted.image]
        assert (got.width, got.height) == (wanted.width, wanted.height)
        np.testing.assert_array_equal(got.boxes, wanted.boxes)
        np.testing.assert_array_equal(got.features, wanted.features.astype(opened.info.dtype))


def test_tsv_files_plain_and_gzipped(tmp_path: Path):
    (tmp_path / "a.tsv.0").write_bytes(tsv_bytes(IMAGES[:1]))
    (tmp_path / "a.tsv.1").write_bytes(gzip.compress(tsv_bytes(IMAGES[1:])))
    report = import_features([tmp_path / "a.tsv.0", tmp_path / "a.tsv.1"], tmp_path / "s", dtype="float32")
    assert (report.written, report.skipped) == (3, 0)
    assert_imported(tmp_path / "s", IMAGES)
    assert FeatureStore.open(tmp_path / "s").info.dtype == "float32"


def test_a_last_line_without_its_end_and_empty_lines(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(b"\n" + tsv_bytes(IMAGES).replace(b"\r\n", b"\n\n").rstrip())
    import_features([tmp_path / "a.tsv"], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES)


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


def test_the_first_of_two_wins(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(tsv_bytes([*IMAGES, make_regions("1000", 5, seed=1)]))
    report = import_features([tmp_path / "a.tsv", tmp_path / "a.tsv"], tmp_path / "s")
    assert (report.written, report.duplicates, report.already_there) == (3, 5, 0)
    assert_imported(tmp_path / "s", IMAGES)


def test_an_import_goes_on_where_it_stopped(tmp_path: Path):
    broken = tsv_bytes(IMAGES[1:2]).replace(b"\t4\t", b"\t5\t")
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES[:1]) + broken + tsv_bytes(IMAGES[2:]))
    with pytest.raises(DataError, match=r"a\.tsv:2: boxes hold 16 numbers, not num_boxes × 4 = 20"):
        import_features([tmp_path / "a.tsv"], tmp_path / "s")
    assert FeatureStore.open(tmp_path / "s", partial=True).ids == ("1000",)
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    report = import_features([tmp_path / "a.tsv"], tmp_path / "s")
    assert (report.written, report.already_there) == (2, 1)
    assert_imported(tmp_path / "s", IMAGES)


def test_what_is_there_is_not_decoded_again(tmp_path: Path):
    write_ddpn(tmp_path / "npz", IMAGES)
    import_features([tmp_path / "npz"], tmp_path / "s")
    for file in (tmp_path / "npz").iterdir():
        file.write_bytes(b"")
    report = import_features([tmp_path / "npz"], tmp_path / "s", on_error="stop")
    assert (report.written, report.already_there) == (0, 3)


def test_only_the_first_images(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    for _ in range(2):
        import_features([tmp_path / "a.tsv"], tmp_path / "s", limit=2)
        assert_imported(tmp_path / "s", IMAGES[:2])
    import_features([tmp_path / "a.tsv"], tmp_path / "s")
    assert_imported(tmp_path / "s", IMAGES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_w": 0}, "size 0 × 90"),
        ({"image_h": "tall"}, "image_h is not a whole number"),
        ({"image_h": "9" * 400}, "image_h is not a whole number"),
        ({"num_boxes": -2}, "num_boxes is not a whole number"),
        ({"num_boxes": 0, "boxes": "", "features": ""}, "no regions"),
        ({"num_boxes": 10**15}, "boxes hold 8 numbers"),
        ({"boxes": "b'AAAA'"}, "boxes is not base64"),
        ({"boxes": "AAAA"}, "3 bytes"),
        ({"features": ""}, "features hold 0"),
        ({"features": "AAAAAA=="}, "which num_boxes = 2 does not divide"),
        ({"features": base64.b64encode(np.full(6, np.nan, "<f4")).decode()}, "NaN"),
        ({"features": base64.b64encode(np.full(6, 7e4, "<f4")).decode()}, "float16 can hold .* as float32"),
        ({"features": base64.b64encode(np.zeros(8, "<f4")).decode()}, r"\(2, 4\), not \(2, 3\)"),
        ({"boxes": base64.b64encode(np.array([9, 9, 1, 1] * 2, "<f4")).decode()}, "ends before it starts"),
        ({"image_id": " "}, "image id"),
        ({"image_id": "a\tb"}, "7 columns|base64"),
    ],
)
def test_a_broken_line_is_named_or_skipped(tmp_path: Path, changes: dict, words: str):
    file = tmp_path / "a.tsv"
    file.write_bytes(tsv_bytes(IMAGES[1:2]) + tsv_bytes(IMAGES[:1], **changes) + tsv_bytes(IMAGES[2:]))
    with pytest.raises(DataError, match=rf"a\.tsv:2: .*({words})") as caught:
        import_features([file], tmp_path / "s")
    assert "\n" not in str(caught.value)
    report = import_features([file], tmp_path / "s", on_error="skip")
    assert report.skipped == 1
    assert report.problems == [str(caught.value)]
    assert_imported(tmp_path / "s", IMAGES[1:])


def test_a_line_without_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features_tsv, "MAX_LINE_BYTES", 300)
    (tmp_path / "a.tsv").write_bytes(b"x" * 1000 + b"\n" + tsv_bytes(IMAGES) + b"y" * 301)
    report = import_features([tmp_path / "a.tsv"], tmp_path / "s", on_error="skip")
    assert [problem.split(": ")[1] for problem in report.problems] == ["a line of more than 300 bytes"] * 2
    assert_imported(tmp_path / "s", IMAGES)


def test_a_cut_gzip_file_keeps_what_came_before(tmp_path: Path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(tsv_bytes(IMAGES))[:-9])
    report = import_features([tmp_path / "a.tsv.gz"], tmp_path / "s", on_error="skip")
    assert report.skipped == 1
    assert "cut or damaged" in report.problems[0]
    assert report.written >= 1


def test_many_problems_are_counted_and_some_named(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(b"broken\n" * 50 + tsv_bytes(IMAGES))
    report = import_features([tmp_path / "a.tsv"], tmp_path / "s", on_error="skip")
    assert (report.skipped, len(report.problems), report.written) == (50, 20, 3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_arbitrary_tsv_gives_an_error_or_a_store(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    whole = tsv_bytes(IMAGES)
    kind = data.draw(st.sampled_from(["bytes", "cut", "changed", "columns"]))
    if kind == "bytes":
        content = data.draw(st.binary(max_size=200))
    elif kind == "cut":
        start = data.draw(st.integers(0, len(whole)))
        content = whole[start : data.draw(st.integers(start, len(whole)))]
    elif kind == "changed":
        content = bytearray(whole)
        for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=5)):
            content[place] = data.draw(st.integers(0, 255))
    else:
        rows = st.lists(st.binary(max_size=12), min_size=5, max_size=7).map(b"\t".join)
        content = b"\n".join(data.draw(st.lists(rows, max_size=4)))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a.tsv").write_bytes(gzip.compress(content) if data.draw(st.booleans()) else content)
    try:
        report = import_features([folder / "a.tsv"], folder / "s", format="tsv", on_error="skip")
    except DataError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert len(FeatureStore.open(folder / "s")) == report.written > 0


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
        ({"image_bb": np.zeros((6, 5))}, "last side must be 4"),
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
    with pytest.raises(DataError, match="within this file"):
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
        archive.writestr("x.npy", bytes(200_000))
    with pytest.raises(DataError, match="200000 bytes, more than 100000"):
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


def test_the_door_says_what_it_needs(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    write_ddpn(tmp_path / "npz", IMAGES)
    (tmp_path / "empty").mkdir()
    for arguments, words in [
        (([tmp_path / "absent"],), "no such file"),
        (([tmp_path / "a.tsv"], "tvs"), r"no format named 'tvs'.*did you mean 'tsv'"),
        (([tmp_path / "a.tsv", tmp_path / "npz"],), "ddpn and tsv"),
        (([],), "none"),
        (([tmp_path / "npz"], "tsv"), "a folder holds DDPN"),
        (([tmp_path / "a.tsv"], "auto", [tmp_path / "a.tsv"]), "--ids belongs to BAN"),
    ]:
        with pytest.raises(DataError, match=words):
            open_features(*arguments)
    with pytest.raises(DataError, match="no image to import"):
        import_features([tmp_path / "empty"], tmp_path / "s")
    with pytest.raises(DataError, match="on_error"):
        import_features([tmp_path / "a.tsv"], tmp_path / "s", on_error="ignore")
    with pytest.raises(DataError, match="float16 or float32, not 'int8'"):
        import_features([tmp_path / "a.tsv"], tmp_path / "s", dtype="int8")
    assert not (tmp_path / "s").exists()


def test_a_folder_that_is_no_store_is_not_a_broken_image(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    with pytest.raises(DataError, match="no region store and not empty"):
        import_features([tmp_path / "a.tsv"], tmp_path, on_error="skip")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["phrasechain", "import-features", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    file = tmp_path / "a.tsv"
    file.write_bytes(tsv_bytes(IMAGES[:2]) + b"broken\n" + tsv_bytes(IMAGES[2:]))
    assert run(monkeypatch, file, "--out", tmp_path / "s") == 2
    captured = capsys.readouterr()
    assert captured.err.strip().startswith(f"phrasechain: {file}:3: 1 columns, not 6")
    assert run(monkeypatch, file, "--out", tmp_path / "s", "--on-error", "skip") == 1
    captured = capsys.readouterr()
    assert f"skipped {file}:3" in captured.err
    rows = [line.split() for line in captured.out.splitlines()]
    assert [row[-2] for row in rows if len(row) > 3 and row[-2].isdigit()] == ["1", "2", "0", "1"]
    assert_imported(tmp_path / "s", IMAGES)
    file.write_bytes(tsv_bytes(IMAGES))
    assert run(monkeypatch, file, "--out", tmp_path / "s") == 0
    assert run(monkeypatch, file, "--out", tmp_path / "s", "--dtype", "float32") == 2
    assert "the store has dtype 'float16', not 'float32'" in capsys.readouterr().err
