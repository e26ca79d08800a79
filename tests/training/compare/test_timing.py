"""Times are measured at the sizes that they are said to be of, and noted once."""

import shutil
from pathlib import Path

import pytest

from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.store.reader import FeatureStore
from phrasechain.training.compare.timing import (
    FILE,
    inference_milliseconds,
    note_training,
    three_phrase_batches,
    time_inference,
    training_seconds,
)
from phrasechain.training.log import read_metrics
from tiny_comparison import Compared


def test_batches_are_of_three_phrases_and_a_hundred_regions(compared: Compared) -> None:
    examples, store = load_examples(compared.data, "train"), FeatureStore.open(compared.store)
    batches = list(three_phrase_batches(examples, store))
    assert batches
    for batch in batches:
        assert batch.boxes.shape == (1, 100, 4)
        assert bool(batch.region_mask.all())
        assert batch.lengths.tolist() == [3]
        assert (batch.boxes[0, 6:12] == batch.boxes[0, :6]).all()  # its six regions, again and again


def test_training_is_at_least_its_steps(compared: Compared) -> None:
    run = compared.out / "runs" / "SL-CCRF_seed-0"
    steps = sum(line.get("seconds", 0) for line in read_metrics(run))
    assert training_seconds(run) > steps > 0


def test_what_is_noted_stays(compared: Compared, tmp_path: Path) -> None:
    note_training(tmp_path, 12.5)
    assert (training_seconds(tmp_path), inference_milliseconds(tmp_path)) == (12.5, {})
    run = compared.out / "runs" / "SL-CCRF_seed-0"
    before = (run / FILE).read_bytes()
    time_inference(run, [], {}, ["viterbi", "consensus"])  # both are noted
    assert (run / FILE).read_bytes() == before
    assert set(inference_milliseconds(run)) == {"viterbi", "smoothing", "independent", "consensus"}


def test_without_a_caption_of_three_phrases_there_is_no_time(compared: Compared, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(compared.out / "runs" / "SL_seed-0", run)
    (run / FILE).unlink()
    time_inference(run, [], {}, ["viterbi"])
    assert inference_milliseconds(run) == {"viterbi": None}


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(DataError, match=f"{FILE}: "):
        training_seconds(tmp_path)
