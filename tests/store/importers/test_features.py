"""Importing: resumed, limited, refused, and the command."""

import sys
from pathlib import Path

import pytest

from feature_files import IMAGES, assert_imported, tsv_bytes, write_ddpn
from phrasechain.cli import main
from phrasechain.core.errors import DataError
from phrasechain.store.importers.features import import_features, open_features
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter
from store_helpers import make_regions


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


def test_many_problems_are_counted_and_some_named(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(b"broken\n" * 50 + tsv_bytes(IMAGES))
    report = import_features([tmp_path / "a.tsv"], tmp_path / "s", on_error="skip")
    assert (report.skipped, len(report.problems), report.written) == (50, 20, 3)


def test_the_door_says_what_it_needs(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    write_ddpn(tmp_path / "npz", IMAGES)
    (tmp_path / "empty").mkdir()
    for arguments, words in [
        (([tmp_path / "absent"],), "no such file"),
        (([tmp_path / "a.tsv"], "tvs"), r"no format named 'tvs'.*did you mean 'tsv'"),
        (([tmp_path / "a.tsv", tmp_path / "npz"],), "ddpn and tsv"),
        (([],), "none"),
        (([tmp_path / "npz"], "tsv"), "only supported for DDPN"),
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
    with pytest.raises(DataError, match="non-empty folder that is not a region store"):
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


def test_an_empty_file_adds_nothing_to_a_store_that_was_begun(tmp_path: Path):
    StoreWriter(tmp_path / "s", StoreInfo(3, extractor="bottom-up-attention")).close()
    (tmp_path / "a.tsv").write_bytes(b"")
    with pytest.raises(DataError, match="there is no image to import"):
        import_features([tmp_path / "a.tsv"], tmp_path / "s")


def test_a_folder_that_holds_something_else_stays_as_it_is(tmp_path: Path):
    (tmp_path / "a.tsv").write_bytes(tsv_bytes(IMAGES))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    with pytest.raises(DataError, match="photos: a non-empty folder that is not a region store"):
        import_features([tmp_path / "a.tsv"], tmp_path / "photos")
    assert [file.name for file in (tmp_path / "photos").iterdir()] == ["a.jpg"]
