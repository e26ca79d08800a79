"""Times are measured at the sizes that they are said to be of, and noted once."""

import json
from pathlib import Path

import pytest

from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.store.reader import FeatureStore
from phrasechain.training.compare import timing
from phrasechain.training.compare.timing import (
    INFERENCE,
    TRAINING,
    milliseconds,
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


def test_all_rows_are_timed_by_all_their_decoders(compared: Compared) -> None:
    noted = json.loads((compared.out / INFERENCE).read_text())
    assert (noted["phrases"], noted["regions"]) == (3, 100)
    assert {row: set(times) for row, times in noted["milliseconds"].items()} == {
        "HL": {"viterbi"},
        "SL": {"viterbi"},
        "SL-CCRF": {"viterbi", "smoothing", "independent", "consensus"},
        "SL-CCRF no regression": {"viterbi"},
    }
    assert all(value > 0 for times in noted["milliseconds"].values() for value in times.values())


def test_rows_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by the clock that the models wind: 100 ms when first used, then 3 and 5."""
    clock, order = [0.0], []

    class Model:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds, self.uses = name, seconds, 0

        def __call__(self, batch: int) -> int:
            return batch

        def decode(self, scores: int, batch: int, method: str) -> None:
            order.append(self.name)
            self.uses += 1
            clock[0] += self.seconds if self.uses > 2 else 0.1

    monkeypatch.setattr(timing, "process_time", lambda: clock[0])
    models = {"a": Model("a", 0.003), "b": Model("b", 0.005)}
    methods = {"a": ["viterbi"], "b": ["viterbi"]}
    found = milliseconds(models, methods, [1, 2])  # type: ignore[arg-type]
    assert {row: times["viterbi"] for row, times in found.items()} == pytest.approx({"a": 3, "b": 5})
    assert order == ["a", "b"] * 2 * timing.ROUNDS


def test_what_is_noted_stays(compared: Compared, tmp_path: Path) -> None:
    note_training(tmp_path, 12.5)
    assert training_seconds(tmp_path) == 12.5
    before = (compared.out / INFERENCE).read_bytes()
    found = time_inference(compared.out, {"SL": Path("absent")}, {"SL": ["viterbi"]}, [], {})
    assert found["SL"]["viterbi"] > 0
    assert (compared.out / INFERENCE).read_bytes() == before


def test_without_a_caption_of_three_phrases_there_is_no_time(tmp_path: Path) -> None:
    assert time_inference(tmp_path, {"SL": Path("absent")}, {"SL": ["viterbi"]}, [], {}) == {}


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / TRAINING).write_text(text)
    with pytest.raises(DataError, match=f"{TRAINING}: "):
        training_seconds(tmp_path)
