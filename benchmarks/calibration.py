"""Whether a grounder's probabilities can be believed: calibration error, AUROC and a reliability diagram.

python benchmarks/calibration.py FOLDER DATA STORE --split val --figure docs/reliability.png

Phrases of caption 0, each chain holding the phrases with a box (gold) or all visual ones (all). AUROC: the mean
probability of a caption's phrases on its own image against that of a seeded other image's caption on it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from phrasechain.data.dataset import load_examples
from phrasechain.grounding.calibrate import collect, measure
from phrasechain.grounding.pretrained import CALIBRATION_FILE, read_calibrations
from phrasechain.model.checkpoint import load_checkpoint, require_same_regions
from phrasechain.model.confidence import BINS, Calibration, reliability_bins
from phrasechain.store.reader import FeatureStore

Diagram = list[tuple[int, float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--decode", help="by default the grounder's own")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    checkpoint, store = load_checkpoint(args.folder), FeatureStore.open(args.store)
    require_same_regions(checkpoint.card, store, checkpoint.folder)
    calibrations = read_calibrations(checkpoint.folder / CALIBRATION_FILE)
    examples, method = load_examples(args.data, args.split), args.decode or checkpoint.card.decode
    diagrams: dict[str, Diagram] = {}
    for regime in ("gold", "all"):
        real = collect(checkpoint.model, examples, store, regime)[method]
        absent = collect(checkpoint.model, examples, store, absent=True)[method]  # whose phrases have no box
        for name, calibration in (
            ("mass alone", Calibration()),
            ("calibrated", calibrations.get(method, Calibration())),
        ):
            found = measure(calibration, real, absent)
            row = {"regime": regime, "decode": method, "probability": name, "phrases": found.phrases}
            figures = {"accuracy": found.accuracy, "calibration error": found.error, "AUROC": found.auroc}
            print(json.dumps(row | {key: round(value, 4) for key, value in figures.items()}))
            if regime == "gold":
                chosen = real.has_box
                diagrams[name] = reliability_bins(calibration(real.evidence[chosen]), real.right[chosen])
    for name, diagram in diagrams.items():
        print(json.dumps({name: [[count, round(mean, 3), round(share, 3)] for count, mean, share in diagram]}))
    if args.figure:
        draw(diagrams, args.figure, args.split)


def draw(diagrams: dict[str, Diagram], path: Path, split: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5.5), layout="constrained")
    lines, counts = figure.subplots(2, height_ratios=(4, 1), sharex=True)
    lines.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--", label="perfect")
    for (name, diagram), colour in zip(diagrams.items(), ("0.45", "#0072B2"), strict=True):
        full = [(mean, share) for count, mean, share in diagram if count]
        lines.plot(*zip(*full, strict=True), marker="o", color=colour, label=name)
    last = [count for count, _, _ in diagrams["calibrated"]]
    counts.bar([(place + 0.5) / BINS for place in range(BINS)], last, 0.9 / BINS, color="#0072B2")
    lines.set(ylabel=f"phrases that are right, {split}", xlim=(0, 1), ylim=(0, 1))
    counts.set(xlabel="probability", ylabel="phrases")
    lines.grid(alpha=0.3)
    lines.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
