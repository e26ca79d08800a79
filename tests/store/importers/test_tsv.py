"""Bottom-up-attention TSV: whole, cut, broken and arbitrary."""

import base64
import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feature_files import IMAGES, assert_imported, tsv_bytes
from phrasechain.core.errors import DataError
from phrasechain.store.importers import tsv as features_tsv
from phrasechain.store.importers.features import import_features
from phrasechain.store.reader import FeatureStore


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
    assert "truncated or damaged" in report.problems[0]
    assert report.written >= 1


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
