"""What a finished run is told to its user: its score, and how to evaluate it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import join

from phrasechain.data.dataset import open_dataset
from phrasechain.model.checkpoint import find_checkpoint, read_model_info
from phrasechain.model.config import Data
from phrasechain.training.log import read_metrics


def describe_result(run: Path, dev: str) -> str:
    """The accuracy of the best checkpoint of a run on the split that chose it."""
    card = read_model_info(find_checkpoint(run))
    scores = next((line for line in read_metrics(run) if line["step"] == card.step and "dev" in line), {})
    first = f", {100 * scores['dev, caption 0']:.2f} % of caption 0" if scores else ""
    score = "not scored" if card.score is None else f"{100 * card.score:.2f} % of the phrases right{first}"
    return f"best on {dev}: {score} (step {card.step:,})"


def evaluate_command(
    run: Path, data: Path, features: Path, read: Data, missing: str = "refuse", plugins: Sequence[str] = ()
) -> str:
    """The command that evaluates a run as it was trained, on the split to score, or on the one that chose it."""
    dataset = open_dataset(data)
    split = dataset.split_to_score()
    words = ["phrasechain", "evaluate", str(run), "--data", str(data), "--features", str(features)]
    words += ["--split", split if split in dataset.splits else read.dev]
    words += [] if read.reading == "corrected" else ["--reading", read.reading]
    words += [] if missing == "refuse" else ["--missing", missing]
    return join([*words, *(word for name in plugins for word in ("--plugin", name))])
