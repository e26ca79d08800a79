"""Tables of tiny runs: figures against the predictions they come from, and nothing is done twice."""

from pathlib import Path
from statistics import mean, stdev

import pytest
import torch

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.settings import with_texts
from phrasechain.data.dataset import load_examples
from phrasechain.data.photos import ShardNumber
from phrasechain.evaluation.evaluate import Section, evaluate_file
from phrasechain.evaluation.gold import Gold, collect_gold, match_predictions
from phrasechain.evaluation.metrics import Mean
from phrasechain.evaluation.predict import InferenceOptions, predictions_file
from phrasechain.evaluation.predictions import read_predictions
from phrasechain.evaluation.report import report_dict
from phrasechain.training.compare.plan import Job
from phrasechain.training.compare.runner import compare
from phrasechain.training.compare.tables import Line, accuracy
from tiny_comparison import BASE, QUICK, ROWS_HERE, Compared

MODELS, REGRESSION = "Table 1: models", "Without box regression"


def runs(compared: Compared, row: str) -> list[Path]:
    return sorted((compared.out / "runs").glob(f"{row}_seed-*"))


def line_of(compared: Compared, table: str, label: str) -> Line:
    (line,) = (line for line in compared.tables.tables[table] if line.label == label)
    return line


def test_tables_are_there_after_each_run(compared: Compared) -> None:
    """Every row once, then the models' other seeds: who stops early has something of everything."""
    lines = [{line.row: line.seeds for each in one.tables.values() for line in each} for one in compared.noted]
    assert lines[:3] == [{"HL": 1}, {"HL": 1, "SL": 1}, {"HL": 1, "SL": 1, "SL-CCRF": 1}]
    assert lines[3] == dict.fromkeys(ROWS_HERE, 1)
    assert lines[4] == lines[3] | {"HL": 2}
    assert lines[6] == lines[3] | {"HL": 2, "SL": 2, "SL-CCRF": 2}
    assert lines[7] == lines[6]  # what is handed over in the end


def test_it_says_what_it_does_and_how_long_that_takes(compared: Compared) -> None:
    first, *others = compared.said[:15]
    assert first == "7 runs, 0 of them ready"
    assert others[0] == "1 of 7: HL seed 0"  # nothing is known of the time yet
    assert others[1].startswith("1 of 7: HL seed 0 took ")
    assert others[2].startswith("2 of 7: SL seed 0; about ")
    assert others[2].endswith(" left")
    assert others[-1].startswith("7 of 7: SL-CCRF seed 1 took ")


def accuracies(compared: Compared, file: Path) -> list[float]:
    report = evaluate_file(file, compared.data, "train", QUICK)
    return [accuracy(section).value for section in report.sections]


def test_figures_are_those_of_the_runs(compared: Compared) -> None:
    """The mean of the seeds, each by the evaluator, and their standard deviation."""
    line = line_of(compared, MODELS, "SL-CCRF")
    files = [predictions_file(run, "train", InferenceOptions()) for run in runs(compared, "SL-CCRF")]
    assert len(files) == line.seeds == 2
    wanted = [accuracies(compared, file) for file in files]
    for place, section in enumerate(line.sections):
        assert line.accuracies[section.name] == pytest.approx([each[place] for each in wanted])
        assert accuracy(section).value == pytest.approx(mean(each[place] for each in wanted))
        assert line.spread(section.name) == pytest.approx(stdev(each[place] for each in wanted))
        assert accuracy(section).low <= accuracy(section).value <= accuracy(section).high
    assert line.minutes > 0
    assert line.milliseconds is not None
    assert line.milliseconds > 0
    assert line.published == 74.69


def test_breakdowns_do_not_mix_seeds(compared: Compared) -> None:
    """Rivals are sought within a caption of one seed: their number is that of one seed, twice."""
    line = line_of(compared, MODELS, "SL")
    file = predictions_file(runs(compared, "SL")[0], "train", InferenceOptions())
    (one,) = evaluate_file(file, compared.data, "train", QUICK).sections[1:]
    for row in one.rows:
        if row.table in ("rivals in the caption", "category", "phrases in the caption"):
            assert line.sections[1].figure(row.table, row.name).total == 2 * row.mean.total


def rival_accuracy(section: Section) -> Mean:
    return section.figure("rivals in the caption", "with a rival")


def test_tests_are_paired_by_seed(compared: Compared) -> None:
    """The difference is that of the means, and who is right alone is counted for each seed."""
    (test,) = (test for test in compared.tables.tests if (test.first, test.second) == ("SL-CCRF", "SL"))
    lines = {line.label: line for line in compared.tables.tables[MODELS]}
    gold = collect_gold(load_examples(compared.data, "train"), "gold")
    assert test.seeds == 2
    for place, name in enumerate(("caption 0", "all captions")):
        mine, theirs = (lines[row].sections[place] for row in ("SL-CCRF", "SL"))
        assert rival_accuracy(mine).total > 0
        assert test.gains[name].difference.value == pytest.approx(accuracy(mine).value - accuracy(theirs).value)
        rival_gain = rival_accuracy(mine).value - rival_accuracy(theirs).value
        assert test.gains[f"{name}, with a rival"].difference.value == pytest.approx(rival_gain)
        only = 0
        for run, other in zip(runs(compared, "SL-CCRF"), runs(compared, "SL"), strict=True):
            right = [_right(gold, predictions_file(each, "train", InferenceOptions())) for each in (run, other)]
            scope = gold.caption_index == 0 if name == "caption 0" else torch.ones(len(gold)).bool()
            only += int((right[0] & ~right[1] & scope).sum())
        assert test.gains[name].first_only == only


def _right(gold: Gold, file: Path) -> torch.Tensor:
    matched = match_predictions(gold, read_predictions(file))
    return iou_xyxy(matched.boxes, gold.merged) >= 0.5


def test_what_is_tested(compared: Compared) -> None:
    """Models against each other, other rows and ways of inference against the reference."""
    assert [(test.first, test.second) for test in compared.tables.tests] == [
        ("SL", "HL"),
        ("SL-CCRF", "SL"),
        ("SL-CCRF no regression", "SL-CCRF"),
        ("SL-CCRF by smoothing", "SL-CCRF"),
        ("SL-CCRF by independent", "SL-CCRF"),
        ("SL-CCRF by consensus", "SL-CCRF"),
        ("SL-CCRF not moved", "SL-CCRF"),
    ]


def test_only_what_was_asked_for_is_shown(compared: Compared) -> None:
    tables = compared.tables.tables
    assert [line.label for line in tables[MODELS]] == ["HL", "SL", "SL-CCRF"]
    assert set(tables) == {MODELS, "Table 3: decoders", REGRESSION, "Both regimes: phrases in the chain"}
    assert {line.label for line in tables[REGRESSION]} == {
        *(f"{name}{moved}" for name in ("HL", "SL", "SL-CCRF") for moved in ("", " not moved")),
        "SL-CCRF trained without",
    }
    assert {line.options.regime for line in tables["Both regimes: phrases in the chain"]} == {"gold", "all"}


def contents(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_nothing_is_done_twice(compared: Compared) -> None:
    before, tables, noted, said = contents(compared.out), compared.tables, len(compared.noted), len(compared.said)
    again = compared.run()
    assert again is not None
    assert len(compared.noted) == noted + 1
    assert compared.said[said:] == ["7 runs, 7 of them ready"]
    assert report_dict(again) == report_dict(tables)
    assert contents(compared.out) == before
    with pytest.raises(DataError, match=r"a run with another train\.epochs; choose another folder"):
        compare(
            compared.data,
            compared.store,
            compared.out,
            with_texts(BASE, ["train.epochs=3"]),
            rows=["HL"],
            seeds=1,
            split="train",
        )


def test_shards_make_the_whole(compared: Compared, tmp_path: Path) -> None:
    """Two parts train all runs between them, none twice, and gather nothing; then there is nothing left to train."""
    other = Compared(compared.data, compared.store, tmp_path / "out")
    other.options |= {"rows": ("HL", "SL"), "seeds": 2}
    assert other.run(part=ShardNumber(1, 2)) is None
    assert sorted(path.name for path in (other.out / "runs").iterdir()) == ["HL_seed-0", "HL_seed-1"]
    before = contents(other.out)
    assert other.run(part=ShardNumber(2, 2)) is None
    assert before.items() <= contents(other.out).items()
    assert other.noted == []
    before = contents(other.out)
    found = other.run()
    assert found is not None
    added = contents(other.out).items() - before.items()
    assert [path.name for path, _ in added] == ["inference.json"]
    for mine, theirs in zip(found.tables[MODELS], compared.tables.tables[MODELS], strict=False):
        assert (mine.label, mine.sections) == (theirs.label, theirs.sections)


def test_a_row_alone_is_shown(compared: Compared) -> None:
    """Without the models there is still a table, and there are no tests."""
    found = compare(
        compared.data,
        compared.store,
        compared.out,
        BASE,
        rows=["SL-CCRF no regression"] * 2,
        other_seeds=1,
        split="train",
        protocol=QUICK,
    )
    assert found is not None
    assert {title: [line.label for line in lines] for title, lines in found.tables.items()} == {
        REGRESSION: ["SL-CCRF trained without"]
    }
    assert found.tests == ()


def test_folders_have_plain_names(compared: Compared) -> None:
    assert compared.runners[0].folder(Job("HL (GloVe)", 1)).name == "HL-GloVe_seed-1"
    assert compared.runners[0].folder(Job("SL-CCRF M+LR+G", 0)).name == "SL-CCRF-M+LR+G_seed-0"


def test_what_cannot_be_compared(compared: Compared, tmp_path: Path) -> None:
    world = compared.data, compared.store
    with pytest.raises(DataError, match=r"no row named 'LS'; there are: Structured Matching"):
        compare(*world, tmp_path, BASE, rows=["LS"])
    with pytest.raises(DataError, match="no split named 'test'"):
        compare(*world, tmp_path, BASE)
    assert list(tmp_path.iterdir()) == []
