"""What a check says of a small dataset whose every count is known, and of the same dataset damaged."""

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from builders import write_store
from official_layout import write_image
from phrasechain.cli import app
from phrasechain.core.errors import DataError
from phrasechain.evaluation.check import Category, CheckReport, check_dataset
from phrasechain.evaluation.check_report import check_dict, draw_figure, print_check


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    sentences = (
        "[/EN#1/people Two men] in [/EN#2/clothing/other hats] at [/EN#3/scene a park] .\n"
        "[/EN#1/people Men] see [/EN#0/notvisual each other] and [/EN#4/animals a dog] .\n"
        "Nothing here .\n"
    )
    objects = [
        (["1"], [(1, 1, 10, 10), (11, 1, 20, 10)], {}),
        (["1", "2"], [(1, 1, 4, 4)], {}),
        (["3"], [], {"nobndbox": 1}),
    ]
    write_image(root, "10", sentences, objects, photo=(100, 80))
    write_image(root, "11", "[/EN#5/people A man] waits .\n", [(["5"], [(91, 71, 101, 80)], {})], photo=(100, 80))
    (root / "train.txt").write_text("10\n")
    (root / "val.txt").write_text("11\n")
    return root


FAR = [50.0, 50.0, 60.0, 60.0]


def test_counts_of_each_split(data: Path) -> None:
    report = check_dataset(data)
    train = report.splits["train"]
    assert (train.images, train.captions, train.phrases) == (1, 3, 6)
    assert (train.boxed, train.boxed_in_caption_0, train.boxless, train.unknown, train.not_visual) == (3, 2, 1, 1, 1)
    assert train.categories == {
        "people": Category(2, 2),
        "clothing": Category(1, 1),
        "other": Category(1, 1),
        "scene": Category(1, 0),
        "notvisual": Category(1, 0),
        "animals": Category(1, 0),
    }
    assert train.phrases_per_caption == (1, 1, 1)
    assert train.boxed_per_caption == 1.0
    assert report.coverages == {}
    assert report.splits["all"].boxed == 4
    assert list(report.splits) == ["train", "val", "fit", "dev", "all"]


def test_usable_data_has_warnings_at_most(data: Path) -> None:
    report = check_dataset(data)
    assert report.is_usable
    assert (report.missing_photos, report.broken_photos, report.boxes_outside) == (0, 0, 1)
    unexpected = "val has 1 phrases with a box where Flickr30k Entities has 14,433"
    assert report.warnings == (unexpected, "image 11: boxes outside it: 1")


def test_coverage_is_counted_by_hand(data: Path, tmp_path: Path) -> None:
    own = [0.0, 0.0, 20.0, 10.0]  # merged box of entity 1
    part = [0.0, 0.0, 10.0, 10.0]  # IoU 0.5 with it, and one of its boxes
    small = [0.0, 0.0, 4.0, 4.0]  # entity 2, and a box of entity 1
    rows = [FAR] * 9 + [small, part] + [FAR] * 30 + [own]
    report = check_dataset(data, write_store(tmp_path / "store", {"10": rows, "11": [FAR]}))
    train, val = report.coverages["train"], report.coverages["val"]
    assert (train.images, train.regions_per_image) == (1, 42)
    assert train.gold_regions == (0, 1, 2)  # hats: small; twice the men: part, own
    assert train.gold_regions_per_phrase == pytest.approx(5 / 3)
    assert train.upper_bounds["merged box"] == pytest.approx({"10": 1 / 3, "36": 1, "50": 1, "100": 1, "all": 1})
    assert train.upper_bounds["any box"] == {"10": 1, "36": 1, "50": 1, "100": 1, "all": 1}
    assert val.gold_regions == (1,)
    assert val.upper_bounds["merged box"]["all"] == 0
    assert report.is_usable


def test_the_first_regions_are_those_of_highest_objectness(data: Path, tmp_path: Path) -> None:
    rows = [FAR] * 10 + [[0.0, 0.0, 20.0, 10.0]]
    store = write_store(tmp_path / "store", {"10": rows, "11": rows}, objectness=[0.5] * 10 + [0.9])
    coverage = check_dataset(data, store).coverages["train"]
    assert coverage.upper_bounds["merged box"]["10"] == pytest.approx(2 / 3)


def test_images_without_regions_stay_in_the_denominator(data: Path, tmp_path: Path) -> None:
    report = check_dataset(data, write_store(tmp_path / "store", {"10": [[0.0, 0.0, 20.0, 10.0]]}))
    coverage = report.coverages["all"]
    assert (coverage.images, coverage.gold_regions) == (1, (2, 2))
    assert coverage.upper_bounds["merged box"]["10"] == 2 / 4
    assert report.problems == (f"image 11: not in the store {tmp_path / 'store'}",)


def test_regions_of_another_image_size_are_a_problem(data: Path, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"10": [FAR], "11": [FAR]})
    path = data / "Annotations" / "11.xml"
    path.write_text(path.read_text().replace("<width>100", "<width>200"))
    assert any("100×80 in the store" in problem for problem in check_dataset(data, store).problems)


def test_a_damaged_shard_is_a_problem(data: Path, tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"10": [FAR], "11": [FAR]})
    shard = store / "shard-000000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    (problem,) = check_dataset(data, store).problems
    assert problem.startswith(f"{shard}: the checksum is wrong")


def test_an_image_in_two_splits_is_a_warning(data: Path) -> None:
    (data / "test.txt").write_text("11\n")
    assert "val and test have 1 images in common, such as 11" in check_dataset(data).warnings


def test_photos_stand_in_the_way_only_without_features(data: Path, tmp_path: Path) -> None:
    (data / "images" / "10.jpg").unlink()
    Image.new("RGB", (10, 10)).save(data / "images" / "11.jpg")
    report = check_dataset(data)
    assert (report.missing_photos, report.broken_photos) == (1, 1)
    photo = data / "images" / "11.jpg"
    messages = ("image 10: no photo", f"{photo}: 10×10 pixels, but annotated as 100×80")
    assert report.problems == messages
    with_features = check_dataset(data, write_store(tmp_path / "store", {"10": [FAR], "11": [FAR]}))
    assert with_features.is_usable
    assert set(messages) < set(with_features.warnings)


def test_what_is_broken_is_named(data: Path) -> None:
    (data / "Sentences" / "10.txt").write_text("[/EN#1/people A man\n")
    (data / "images" / "11.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (data / "val.txt").write_text("11\n12\n")
    report = check_dataset(data)
    for part in (
        "10.txt:1: a '[' is never closed",
        "10.txt: contains no caption",
        "val.txt:2: 12 is listed",
        "11.jpg: ",
    ):
        assert any(part in problem for problem in report.problems), part


def test_warnings_of_the_decoder_are_no_problem(data: Path) -> None:
    for image in ("10", "11"):  # an orientation that is announced but not there
        Image.new("RGB", (100, 80)).save(data / "images" / f"{image}.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0")
    assert check_dataset(data).is_usable


def test_data_without_boxes_is_not_usable(tmp_path: Path) -> None:
    write_image(tmp_path / "data", "10", "[/EN#1/people A man] .\n", photo=(100, 80))
    assert "no phrase has a box" in check_dataset(tmp_path / "data").problems[0]


def printed(report: CheckReport) -> str:
    file = TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)
    print_check(report, Console(file=file, width=80))
    return file.buffer.getvalue().decode()  # type: ignore[attr-defined]


def test_the_table_fits_a_terminal_and_hides_nothing(data: Path, tmp_path: Path) -> None:
    text = printed(check_dataset(data, write_store(tmp_path / "store", {"10": [FAR], "11": [FAR]})))
    assert "…" not in text
    rows = [line.split() for line in text.splitlines()]
    assert ["with", "a", "box", "3", "1", "3", "0", "4"] in rows
    assert ["K=10", "0.00", "0.00", "0.00", "0.00", "0.00"] in rows
    assert text.rstrip().endswith("data: usable")


def test_odd_names_are_printed_escaped(data: Path) -> None:
    (data / "val.txt").write_bytes(b"[red]\xff\n")
    text = printed(check_dataset(data))
    assert "[red]\\xff is listed" in text
    assert "not usable (problems: 1)" in text


def test_the_command_says_by_its_status_whether_the_data_can_be_used(data: Path, tmp_path: Path) -> None:
    figure, figures = tmp_path / "figure.png", tmp_path / "figures.json"
    good = CliRunner().invoke(app, ["check", str(data), "--figure", str(figure), "--json", str(figures)])
    assert good.exit_code == 0, good.output
    with Image.open(figure) as image:
        assert image.format == "PNG"
        assert image.width == 900  # one histogram: no store, no gold regions
    values = json.loads(figures.read_text())
    assert values["usable"] is True
    assert values["splits"]["train"]["boxed"] == 3
    (data / "Annotations" / "10.xml").unlink()
    assert CliRunner().invoke(app, ["check", str(data)]).exit_code == 1
    with pytest.raises(DataError, match="no such file or folder"):
        CliRunner().invoke(app, ["check", str(tmp_path / "none")], catch_exceptions=False)


def test_the_figure_has_both_histograms_with_a_store(data: Path, tmp_path: Path) -> None:
    report = check_dataset(
        data, write_store(tmp_path / "store", {"10": [FAR] * 30, "11": [[90.0, 70.0, 100.0, 80.0]] * 30})
    )
    with Image.open(BytesIO(draw_figure(report.splits, report.coverages))) as image:
        assert image.width == 1800
    json.dumps(check_dict(report))


def test_own_data_is_checked_the_same_way(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    phrase = {"start": 0, "end": 3, "boxes": [[0, 0, 40, 5]], "categories": ["animals"]}
    lines = [{"image": "a.png", "captions": [{"text": "Cat", "phrases": [phrase]}], "split": "test"}]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    report = check_dataset(tmp_path / "own.jsonl")
    assert report.is_usable
    assert report.splits["test"].categories == {"animals": Category(1, 1)}
    assert report.boxes_outside == 1
