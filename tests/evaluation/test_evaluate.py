"""Every figure against a plain loop over phrases, and the command against files on disk."""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import make_caption, make_example, write_store
from official_layout import write_image
from phrasechain import cli
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Box, Example
from phrasechain.data.dataset import load_examples
from phrasechain.data.regimes import chain_phrases
from phrasechain.evaluation.evaluate import Protocol, Section, evaluate_file, score
from phrasechain.evaluation.gold import collect_gold, match_predictions
from phrasechain.evaluation.predictions import Prediction, write_predictions

NAMES = ("people", "clothing", "animals")


def random_box(generator: np.random.Generator) -> Box:
    x0, x1 = sorted(generator.choice(20, 2, replace=False).tolist())
    y0, y1 = sorted(generator.choice(20, 2, replace=False).tolist())
    return (float(x0), float(y0), float(x1), float(y1))


def random_example(image: int, generator: np.random.Generator) -> Example:
    entities = {
        str(entity): (
            tuple(generator.choice(NAMES, generator.integers(1, 3), replace=False).tolist()),
            tuple(random_box(generator) for _ in range(generator.integers(0, 4))) or None,
        )
        for entity in range(4)
    }
    captions = []
    for index in range(3):
        chosen = generator.choice(4, generator.integers(1, 5)).astype(str).tolist()
        captions.append(make_caption(index, *[(f"thing {entity}", entity, *entities[entity]) for entity in chosen]))
    return make_example(str(image), *captions)


def random_predictions(examples: list[Example], generator: np.random.Generator) -> list[Prediction]:
    """Half of them near a box of the caption, some missing, with zero to twelve regions."""
    made = []
    for example in examples:
        for caption in example.captions:
            gold = [box for phrase in caption.phrases for box in phrase.boxes or ()]
            for phrase in caption.phrases:
                box = (
                    gold[generator.integers(len(gold))] if gold and generator.random() < 0.6 else random_box(generator)
                )
                regions = np.array([random_box(generator) for _ in range(generator.integers(0, 13))]).reshape(-1, 4)
                key = (example.image, caption.index, phrase.start, phrase.end)
                if generator.random() < 0.9:
                    made.append(Prediction(*key, box, regions, np.full(len(regions), 0.1)))
    return made


def iou(a: Box, b: Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(0, width) * max(0, height)
    return overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap)


def merge(boxes: tuple[Box, ...]) -> Box:
    x0s, y0s, x1s, y1s = zip(*boxes, strict=True)
    return min(x0s), min(y0s), max(x1s), max(y1s)


def inside(gold: Box, box: Box) -> bool:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return gold[0] <= x < gold[2] and gold[1] <= y < gold[3]


def plain_loop(
    examples: list[Example], predictions: list[Prediction], keep: Callable[[int], bool]
) -> dict[tuple[str, str], list[float]]:
    """All figures as the protocol's words say them: (table, name) to the list of values that are averaged."""
    by_key = {prediction.key: prediction for prediction in predictions}
    listed = max(len(prediction.region_boxes) for prediction in predictions)
    figures: dict[tuple[str, str], list[float]] = defaultdict(list)
    for example in examples:
        for caption in filter(lambda caption: keep(caption.index), example.captions):
            scored = [phrase for phrase in caption.phrases if phrase.boxes]
            for phrase in scored:
                assert phrase.boxes
                prediction = by_key.get((example.image, caption.index, phrase.start, phrase.end))
                targets = {"merged box": (merge(phrase.boxes),), "any box": phrase.boxes}
                for name, golds in targets.items():
                    best = max(iou(prediction.box, box) for box in golds) if prediction else 0.0
                    for threshold in (0.3, 0.5):
                        figures[f"accuracy at IoU {threshold}", name].append(best >= threshold)
                    figures["mean IoU", name].append(best)
                    figures["pointing game: centre inside", name].append(
                        prediction is not None and any(inside(box, prediction.box) for box in golds)
                    )
                    regions = prediction.region_boxes.tolist() if prediction else []
                    hits = [any(iou(region, box) >= 0.5 for box in golds) for region in regions]
                    for k in (1, 5, 10):
                        figures[f"ranked regions, {name}", f"R@{k}"].append(any(hits[:k]))
                    figures[f"ranked regions, {name}", f"upper bound, {listed} listed"].append(any(hits))
                right = prediction is not None and iou(prediction.box, merge(phrase.boxes)) >= 0.5
                others = [other for other in scored if other.entity != phrase.entity]
                rivals = [other for other in others if set(other.categories) & set(phrase.categories)]
                for category in phrase.categories:
                    figures["category", category].append(right)
                figures["rivals in the caption", "with a rival" if rivals else "alone in its category"].append(right)
                figures["phrases in the caption", str(len(scored))].append(right)
                if not right:
                    took = [prediction is not None and iou(prediction.box, merge(o.boxes or ())) >= 0.5 for o in others]
                    same = any(t for t, other in zip(took, others, strict=True) if other in rivals)
                    kinds = {
                        "took another of the same category": same,
                        "took another of another category": any(took) and not same,
                        "other": not any(took),
                    }
                    for name, kind in kinds.items():
                        figures["errors", name].append(kind)
    return figures


@pytest.mark.parametrize("seed", range(4))
def test_every_figure_is_that_of_a_plain_loop(seed: int) -> None:
    generator = np.random.default_rng(seed)
    examples = [random_example(image, generator) for image in range(25)]
    predictions = random_predictions(examples, generator)
    gold = collect_gold(examples, "gold")
    protocol = Protocol(thresholds=(0.3,), resamples=50)
    sections = list(score(gold, match_predictions(gold, predictions), protocol=protocol))
    assert [section.name for section in sections] == ["caption 0", "all captions"]
    for section, keep in zip(sections, (lambda index: index == 0, lambda _: True), strict=True):
        expected = plain_loop(examples, predictions, keep)
        found = {(row.table, row.name): row.mean for row in section.rows if row.mean.total}
        assert found.keys() == expected.keys()
        for key, values in expected.items():
            assert (found[key].total, found[key].sum) == (len(values), pytest.approx(sum(values))), key
            assert found[key].value == pytest.approx(np.mean(values))
            assert found[key].low <= found[key].high
        assert section.phrases == len(expected["mean IoU", "any box"])


ONE = make_example(
    "x",
    make_caption(0, ("a man", "1", ("people",), ((0.0, 0.0, 4.0, 4.0),)), ("a hat", "2", ("clothing",), None)),
    make_caption(1, ("a guy", "1", ("people",), ((0.0, 0.0, 4.0, 4.0),))),
)


def one_figure(box: Box, convention: str) -> float:
    gold = collect_gold([ONE], "gold")
    matched = match_predictions(gold, [Prediction("x", 0, 0, 5, box)])
    section = next(score(gold, matched, protocol=Protocol(convention=convention)))
    return section.figure("mean IoU", "merged box").value


def test_the_convention_reaches_the_figures() -> None:
    assert one_figure((1, 1, 4, 3), "half_open") == 6 / 16
    assert one_figure((1, 1, 4, 3), "plus_one") == 12 / 16
    assert one_figure((1, 1, 4, 3), "raw") == 6 / 9


@pytest.mark.parametrize("convention", ["half_open", "plus_one", "raw"])
def test_a_phrase_without_a_prediction_is_wrong_everywhere(convention: str) -> None:
    """Even where the gold box is the one pixel that an empty box at the origin would become."""
    pixel = ((0.0, 0.0, 1.0, 1.0),)
    example = make_example("x", make_caption(0, ("a dot", "1", ("other",), pixel), ("a spot", "2", ("other",), pixel)))
    gold = collect_gold([example], "gold")
    matched = match_predictions(gold, [Prediction("x", 0, 10, 16, (50, 50, 60, 60))])
    section = next(score(gold, matched, protocol=Protocol(convention=convention)))
    assert section.missing == 1
    assert section.figure("accuracy at IoU 0.5", "merged box").total == 2
    for row in section.rows:
        if row.table != "errors" and row.mean.total:
            assert row.mean.sum == 0, row
    assert section.figure("errors", "other").sum == 2


def test_captions_without_a_scored_phrase_give_an_empty_section() -> None:
    example = make_example("x", *ONE.captions[1:])
    gold = collect_gold([example], "gold")
    matched = match_predictions(gold, [Prediction("x", 1, 0, 5, (0, 0, 4, 4))])
    first, every = score(gold, matched, matched, protocol=Protocol())
    assert (first.phrases, first.images, first.comparisons) == (0, 0, ())
    assert {row.mean.total for row in first.rows} == {0}
    assert every.figure("accuracy at IoU 0.5", "any box").value == 1.0
    assert [comparison.test.p_value for comparison in every.comparisons] == [1.0, 1.0]


def test_without_regions_there_are_no_recall_figures() -> None:
    gold = collect_gold([ONE], "gold")
    section = next(score(gold, match_predictions(gold, [Prediction("x", 0, 0, 5, (0, 0, 4, 4))]), protocol=Protocol()))
    assert not [row for row in section.rows if row.table.startswith("ranked regions")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": (0.5, 1.5)}, "thresholds are above 0 and at most 1, not 0.5, 1.5"),
        ({"thresholds": (float("nan"),)}, "thresholds are above 0"),
        ({"resamples": 0}, "resamples are 1 to"),
        ({"seed": -1}, "a seed is 0 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Protocol(**options)


def write_data(path: Path) -> Path:
    """Two images of one's own: a man with a hat (its box unknown) and a dog."""
    phrases = [
        {"start": 0, "end": 5, "boxes": [[0, 0, 40, 40]], "categories": ["people"], "entity": "1"},
        {"start": 10, "end": 15, "boxes": None, "categories": ["clothing"]},
    ]
    second = [{"start": 0, "end": 5, "boxes": [[10, 10, 20, 20]], "categories": ["animals"], "entity": "2"}]
    lines = [
        {"image": "x.jpg", "width": 100, "height": 80, "split": "test"}
        | {"captions": [{"text": "A man and a hat .", "phrases": phrases}]},
        {"image": "y.jpg", "width": 100, "height": 80, "split": "test"}
        | {"captions": [{"text": "A dog .", "phrases": second}]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


MAN, HAT, DOG = ("x", 0, 0, 5), ("x", 0, 10, 15), ("y", 0, 0, 5)
RIGHT_MAN, WRONG_MAN = Prediction(*MAN, (0, 0, 40, 30)), Prediction(*MAN, (60, 0, 99, 30))
RIGHT_DOG = Prediction(*DOG, (10, 10, 20, 20))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path / "data.jsonl")
    write_predictions(tmp_path / "ours.jsonl", [RIGHT_MAN, RIGHT_DOG])
    write_predictions(tmp_path / "theirs.jsonl", [WRONG_MAN, RIGHT_DOG])
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["phrasechain", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_prints_and_writes_the_figures(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", folder / "data.jsonl", "--thresholds", "0.7,0.9", "--against", folder / "theirs.jsonl"]
    outputs = ["--json", folder / "out.json", "--html", folder / "out.html"]
    assert run(monkeypatch, "evaluate", folder / "ours.jsonl", *options, *outputs) == 0
    printed = capsys.readouterr().out
    report = json.loads((folder / "out.json").read_text())
    page = (folder / "out.html").read_text()
    assert [section["name"] for section in report["sections"]] == ["caption 0", "all captions"]
    figures = {(row["table"], row["name"]): row["mean"] for row in report["sections"][1]["rows"]}
    assert (
        figures["accuracy at IoU 0.9", "merged box"]["sum"],
        figures["accuracy at IoU 0.9", "any box"]["total"],
    ) == (1, 2)
    assert figures["rivals in the caption", "with a rival"]["value"] is None
    (merged, *_) = report["sections"][1]["comparisons"]
    assert (merged["test"]["difference"]["value"], merged["test"]["p_value"]) == (0.5, 1.0)
    for text in (printed, page):
        assert "caption 0: 2 phrases, 2 captions, 2 images" in text
        assert "2 / 2" in text
        assert "+50.00 points" in text


def test_a_missing_prediction_is_wrong_and_reported(folder: Path) -> None:
    write_predictions(folder / "half.jsonl", [RIGHT_DOG, Prediction("z", 0, 0, 5, (0, 0, 1, 1))])
    report = evaluate_file(folder / "half.jsonl", folder / "data.jsonl", "test", Protocol())
    figure = report.sections[1].figure("accuracy at IoU 0.5", "merged box")
    assert (figure.sum, figure.total) == (1, 2)
    assert [warning.split(": ", 1)[1] for warning in report.warnings] == [
        "1 of 2 phrases have no prediction: they count as wrong",
        "1 predictions are for phrases that this split does not have, the first on line 2 "
        "(image 'z', caption 0, characters 0 to 5): they are left out",
    ]


def test_a_file_of_another_regime_is_noticed(folder: Path) -> None:
    write_predictions(folder / "all.jsonl", [RIGHT_MAN, RIGHT_DOG, Prediction(*HAT, (0, 0, 9, 9))])
    cases = {("ours", "gold"): "", ("ours", "all"): "regime gold?", ("all", "gold"): "regime all?", ("all", "all"): ""}
    for (name, regime), expected in cases.items():
        file = folder / f"{name}.jsonl"
        report = evaluate_file(file, folder / "data.jsonl", "test", Protocol(regime=regime))
        assert report.sections[1].phrases == 2
        assert "".join(report.warnings).endswith(expected)
        assert len(report.warnings) == bool(expected)
        lengths = {row.name for row in report.sections[1].rows if row.table == "phrases in the caption"}
        assert lengths == ({"1"} if regime == "gold" else {"1", "2"})


@pytest.mark.parametrize("convention", ["half_open", "plus_one"])
def test_a_store_bounds_what_its_regions_allow(folder: Path, convention: str) -> None:
    far = [60.0, 60.0, 70.0, 70.0]
    store = write_store(folder / "store", {"x": [far] * 36 + [[0.0, 0.0, 40.0, 20.0]]})  # IoU 0.5 as half-open boxes
    protocol = Protocol(convention=convention)
    report = evaluate_file(folder / "ours.jsonl", folder / "data.jsonl", "test", protocol, features=store)
    for name in ("merged box", "any box"):
        bounds = [report.sections[1].figure(f"regions of the store, {name}", f"upper bound, K={k}") for k in (36, 50)]
        assert [(bound.sum, bound.total) for bound in bounds] == [(0, 2), (1, 2)]
    assert report.warnings == (f"image y: not in the store {store}",)


def test_an_unexpected_count_of_a_known_split_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "data"
    write_image(data, "10", "[/EN#1/people A man] .\n", [(["1"], [(1, 1, 10, 10)], {})])
    (data / "test.txt").write_text("10\n")
    write_predictions(tmp_path / "ours.jsonl", [Prediction("10", 0, 0, 5, (0, 0, 10, 10))])
    (warning,) = evaluate_file(tmp_path / "ours.jsonl", data, "test", Protocol()).warnings
    assert warning == f"{data}: test has 1 phrases with a box where Flickr30k Entities has 14,481"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "tset"], "no split named 'tset'; there are: test, all (did you mean 'test'?)"),
        (["--convention", "halfopen"], "no pixel convention named 'halfopen'"),
        (["--regime", "golden"], "no regime named 'golden'; there are: gold, all"),
        (["--thresholds", "0.5;0.7"], "--thresholds takes numbers with commas between them"),
        (["--against", "."], "is a folder; give a predictions file"),
        (["--json", "none/out.json"], "none/out.json: cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert run(monkeypatch, "evaluate", "ours.jsonl", "--data", "data.jsonl", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_path_that_is_no_text_is_shown_with_escapes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = folder / os.fsdecode(b"\xff.jsonl")
    odd.write_bytes((folder / "ours.jsonl").read_bytes())
    assert run(monkeypatch, "evaluate", odd, "--data", folder / "data.jsonl", "--html", folder / "out.html") == 0
    assert "\\udcff.jsonl on test" in capsys.readouterr().out
    assert "\\udcff.jsonl" in (folder / "out.html").read_text(encoding="utf-8")


def test_text_from_files_is_not_taken_for_markup(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (folder / "data.jsonl").read_text().replace("people", "[bold]<b>&")
    (folder / "[red]<i>.jsonl").write_text(data)
    arguments = ["--data", folder / "[red]<i>.jsonl", "--html", folder / "out.html"]
    assert run(monkeypatch, "evaluate", folder / "ours.jsonl", *arguments) == 0
    assert "[bold]<b>&" in capsys.readouterr().out
    page = (folder / "out.html").read_text()
    assert "[bold]&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "<i>" not in page


def whole_image_sections(folder: Path, tmp_path: Path, regime: str) -> tuple[Section, ...]:
    predictions = (
        Prediction(example.image, caption.index, phrase.start, phrase.end, (0, 0, example.width, example.height))
        for example in load_examples(folder, "val")
        for caption in example.captions
        for phrase in chain_phrases(caption, regime)
    )
    write_predictions(tmp_path / "whole.jsonl", predictions)
    report = evaluate_file(tmp_path / "whole.jsonl", folder, "val", Protocol(regime=regime, resamples=1))
    assert not report.warnings
    return report.sections


@pytest.mark.parametrize("regime", ["gold", "all"])
def test_the_whole_image_scores_what_is_known(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regime: str
) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    sections = whole_image_sections(shared_folder / "flickr8k-entities", tmp_path, regime)
    figures = [section.figure("accuracy at IoU 0.5", "merged box") for section in sections]
    assert [figure.total for figure in figures] == [3397, 10576]
    assert [round(100 * figure.value, 1) for figure in figures] == [20.7, 23.4]
    assert [section.images for section in sections] == [1000, 1000]
