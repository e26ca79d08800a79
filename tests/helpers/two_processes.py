"""Run by torchrun: trains and predicts in two processes, and notes what each of them saw.

    torchrun --nproc-per-node 2 tests/helpers/two_processes.py PLAN.json

The plan is a list of runs: data, features, out and settings. Each process writes ``seen-RANK.json`` into a run's
folder: how many processes there are, and the captions of each of its steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from phrasechain.evaluation.predict import predict_run
from phrasechain.model.checkpoint import read_run_state
from phrasechain.training.grounder.steps import BatchPart
from phrasechain.training.grounder.task import train
from phrasechain.training.loop import Trainer
from tiny_grounding import tiny_config

seen: list[list[tuple[str, int]]] = []
processes: list[int] = []
take_step = Trainer.take_step


def watched(self: Trainer[BatchPart], parts: Sequence[BatchPart]) -> dict[str, float]:
    processes[:] = [self.processes.num_processes, self.processes.process_index]
    step = [
        (batch.images[image], caption)
        for batch, _ in parts
        for image, caption in zip(batch.caption_image.tolist(), batch.captions, strict=True)
    ]
    seen.append(step)
    return take_step(self, parts)


def main() -> None:
    Trainer.take_step = watched  # type: ignore[method-assign]
    for run in json.loads(Path(sys.argv[1]).read_text()):
        seen.clear()
        out = train(Path(run["data"]), Path(run["features"]), Path(run["out"]), tiny_config(*run["settings"]))
        state = read_run_state(out)
        assert state is not None
        assert state.is_finished  # in the other process too, although the first has the writing to do
        count, rank = processes
        (out / f"seen-{rank}.json").write_text(json.dumps({"processes": count, "steps": seen}))
        predict_run(out, Path(run["data"]), Path(run["features"]), "train", regime="all")


if __name__ == "__main__":
    main()
