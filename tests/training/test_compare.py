"""Tables of tiny runs: figures against the predictions they come from, and nothing is done twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from phrasechain.core.errors import DataError
from phrasechain.core.settings import with_texts
from phrasechain.data.dataset import load_examples
from phrasechain.evaluation.evaluate import Protocol, evaluate_file
from phrasechain.evaluation.gold import collect_gold, match_predictions
from phrasechain.evaluation.metrics import Mean
from phrasechain.evaluation.predict import InferenceOptions, predictions_file
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.evaluation.report import report_dict
from phrasechain.training import compare as comparing
from phrasechain.training.compare import Tables, compare, headline
from phrasechain.training.compare_report import markdown, picture, write_comparison
from phrasechain.training.compare_rows import REFERENCE, ROWS, TABLES
from tiny_grounding import tiny_config, write_world

BASE = tiny_config("train.epochs=2")
QUICK = Protocol(resamples=50)
World = tuple[Path, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(root / "cache"))
        yield write_world(root, images=12)


ROWS_HERE = ("HL", "SL", "SL-CCRF", "SL-CCRF, no regression")
HOW: dict[str, Any] = {
    "rows": ROWS_HERE,
    "seeds": 2,
    "split": "train",
    "settings": ["preset small"],
    "protocol": QUICK,
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "tables"


@pytest.fixture(scope="module")
def noted() -> list[Tables]:
    """What there was after each run."""
    return []


@pytest.fixture(scope="module")
def tables(world: World, out: Path, noted: list[Tables]) -> Tables:
    return compare(*world, out, BASE, **HOW, note=noted.append)


def test_tables_are_there_after_each_run(tables: Tables, noted: list[Tables]) -> None:
    """Every row once, then the models' other seeds: who stops early has something of everything."""
    lines = [{line.row: line.seeds for each in one.tables.values() for line in each} for one in noted]
    assert lines[:3] == [{"HL": 1}, {"HL": 1, "SL": 1}, {"HL": 1, "SL": 1, "SL-CCRF": 1}]
    assert lines[3] == dict.fromkeys(ROWS_HERE, 1)
    assert lines[4] == lines[3] | {"HL": 2}
    assert lines[6] == lines[3] | {"HL": 2, "SL": 2, "SL-CCRF": 2}
    assert report_dict(noted[-1]) == report_dict(tables)
    text = markdown(noted[4])
    assert "| SL-CCRF (1 seed) |" in text
    assert "| SL against HL (1 seed) |" in text


def runs(out: Path, row: str) -> list[Path]:
    return sorted((out / "runs").glob(f"{row}_seed-*"))


def accuracies(world: World, file: Path) -> list[float]:
    report = evaluate_file(file, world[0], "train", QUICK)
    return [headline(section).value for section in report.sections]


def test_figures_are_those_of_the_runs(world: World, out: Path, tables: Tables) -> None:
    """The mean of the seeds, each by the evaluator, and their standard deviation."""
    (line,) = (line for line in tables.tables["models"] if line.label == "SL-CCRF")
    files = [predictions_file(run, "train", InferenceOptions()) for run in runs(out, "SL-CCRF")]
    assert len(files) == line.seeds == 2
    wanted = [accuracies(world, file) for file in files]
    for place, section in enumerate(line.sections):
        assert line.accuracies[section.name] == pytest.approx([each[place] for each in wanted])
        assert headline(section).value == pytest.approx(mean(each[place] for each in wanted))
        assert line.spread(section.name) == pytest.approx(stdev(each[place] for each in wanted))
        assert headline(section).low <= headline(section).value <= headline(section).high
    assert line.minutes > 0


def test_breakdowns_do_not_mix_seeds(world: World, out: Path, tables: Tables) -> None:
    """Rivals are sought within a caption of one seed: their number is that of one seed, twice."""
    (line,) = (line for line in tables.tables["models"] if line.label == "SL")
    (one,) = evaluate_file(
        predictions_file(runs(out, "SL")[0], "train", InferenceOptions()), world[0], "train", QUICK
    ).sections[1:]
    for row in one.rows:
        if row.table in ("rivals in the caption", "category", "phrases in the caption"):
            assert line.sections[1].figure(row.table, row.name).total == 2 * row.mean.total


def test_tests_are_paired_by_seed(world: World, out: Path, tables: Tables) -> None:
    """The difference is that of the means, and who is right alone is counted for each seed."""
    (test,) = (test for test in tables.tests if (test.first, test.second) == ("SL-CCRF", "SL"))
    lines = {line.label: line for line in tables.tables["models"]}
    gold = collect_gold(load_examples(world[0], "train"), "gold")
    assert test.seeds == 2
    for place, name in enumerate(("caption 0", "all captions")):
        gain, rival_gain = (
            minus(*(figure(lines[row].sections[place]) for row in ("SL-CCRF", "SL")))
            for figure in (headline, lambda section: section.figure("rivals in the caption", "with a rival"))
        )
        assert test.gains[name].difference.value == pytest.approx(gain)
        assert test.gains[f"{name}, with a rival"].difference.value == pytest.approx(rival_gain)
        only = 0
        for run, other in zip(runs(out, "SL-CCRF"), runs(out, "SL"), strict=True):
            right = [_right(gold, predictions_file(each, "train", InferenceOptions())) for each in (run, other)]
            scope = gold.caption_index == 0 if name == "caption 0" else torch.ones(len(gold)).bool()
            only += int((right[0] & ~right[1] & scope).sum())
        assert test.gains[name].first_only == only


def minus(first: Mean, second: Mean) -> float:
    assert first.total > 0
    return first.value - second.value


def test_what_is_tested(tables: Tables) -> None:
    """Models against each other, other rows and ways to ask against the reference."""
    assert [(test.first, test.second) for test in tables.tests] == [
        ("SL", "HL"),
        ("SL-CCRF", "SL"),
        ("SL-CCRF, no regression", "SL-CCRF"),
        ("SL-CCRF, smoothing", "SL-CCRF"),
        ("SL-CCRF, independent", "SL-CCRF"),
        ("SL-CCRF, consensus", "SL-CCRF"),
        ("SL-CCRF, not moved", "SL-CCRF"),
    ]


def _right(gold: comparing.Gold, file: Path) -> torch.Tensor:
    matched = match_predictions(gold, read_predictions(file))
    return comparing.iou_xyxy(matched.boxes, gold.merged) >= 0.5


def test_only_what_was_asked_for_is_shown(tables: Tables) -> None:
    assert [line.label for line in tables.tables["models"]] == ["HL", "SL", "SL-CCRF"]
    assert "words" not in tables.tables  # no vectors were given
    assert "context of the transitions" not in tables.tables  # one line is no table
    regression = {line.label: line for line in tables.tables["box regression"]}
    assert set(regression) == {
        *(f"{name}, {moved}" for name in ("HL", "SL", "SL-CCRF") for moved in ("moved", "not moved")),
        "SL-CCRF, trained without",
    }
    assert {line.options.regime for line in tables.tables["phrases in the chain"]} == {"gold", "all"}


def test_another_row_gets_all_seeds_where_one_does_not_tell(out: Path, tables: Tables) -> None:
    lines = {line.label: line for line in tables.tables["box regression"]}
    interval = headline(lines["SL-CCRF, moved"].sections[0])
    own = lines["SL-CCRF, trained without"]
    first = own.accuracies["caption 0"][0]
    assert own.seeds == len(runs(out, "SL-CCRF_no-regression")) == (2 if interval.low <= first <= interval.high else 1)


def test_nothing_is_done_twice(world: World, out: Path, tables: Tables) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    noted: list[Tables] = []
    again = compare(*world, out, BASE, **HOW, note=noted.append)
    assert noted == []
    assert report_dict(again) == report_dict(tables)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before
    with pytest.raises(DataError, match=r"a run with another train\.epochs; choose another folder"):
        compare(*world, out, with_texts(BASE, ["train.epochs=3"]), rows=["HL"], seeds=1, split="train")


def test_the_report(tables: Tables, tmp_path: Path) -> None:
    text = markdown(tables)
    (line,) = (line for line in tables.tables["models"] if line.label == "SL-CCRF")
    figure, spread = headline(line.sections[0]), line.spread("caption 0")
    assert spread is not None
    cell = f"{100 * figure.value:.1f} ± {100 * spread:.1f} ({100 * figure.low:.1f} – {100 * figure.high:.1f})"
    assert f"| SL-CCRF | {cell} |" in text
    for heading in ("Models", "Box regression", "Decoding", "Categories, all captions", "Paired tests"):
        assert f"\n## {heading}\n" in text
    assert "`preset small`" in text
    for block in text.split("\n\n"):
        assert len({row.count("|") for row in block.splitlines() if row.startswith("|")}) <= 1
    files = write_comparison(tables, tmp_path)
    assert [file.name for file in files] == ["compare.md", "compare.json", "compare.png"]
    assert json.loads(files[1].read_text())["tables"]["models"][0]["label"] == "HL"
    assert picture(tables).startswith(b"\x89PNG")


def test_rows_and_tables_fit_together() -> None:
    """Every line has its row, every row a line, and every setting a key."""
    assert {asked.row for lines in TABLES.values() for asked in lines} == set(ROWS)
    for settings in ROWS.values():
        with_texts(BASE, settings)
    assert with_texts(BASE, ROWS[REFERENCE]).model == BASE.model


def test_a_row_alone_is_shown(world: World, out: Path, tables: Tables) -> None:
    """Without the models there is still a table, and there are no tests."""
    (name,) = ("SL-CCRF, no regression",)
    found = compare(*world, out, BASE, **HOW | {"rows": [name, name]})
    assert {title: [line.label for line in lines] for title, lines in found.tables.items()} == {
        "box regression": ["SL-CCRF, trained without"]
    }
    assert f"| {name} |" in markdown(found)
    assert found.tests == ()


def test_what_cannot_be_compared(world: World, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"learned words'.* would be the row 'SL-CCRF' again; set text\.vectors"):
        compare(*world, tmp_path, BASE, rows=["HL", "SL-CCRF, learned words"])
    with pytest.raises(DataError, match=r"no row named 'LS'; there are: HL, SL"):
        compare(*world, tmp_path, BASE, rows=["LS"])
    with pytest.raises(DataError, match="no split named 'test'"):
        compare(*world, tmp_path, BASE)
    assert list(tmp_path.iterdir()) == []
