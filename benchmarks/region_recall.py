"""How often a phrase's merged box is among the first K regions of its image: a table, per category, and a curve.

python benchmarks/region_recall.py DATA STORE --split val --figure recall.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.data.dataset import load_examples
from phrasechain.evaluation.coverage import region_hits
from phrasechain.evaluation.gold import collect_gold
from phrasechain.store.reader import FeatureStore

COUNTS = (10, 20, 36, 50, 100)
RESAMPLES = 1000


def interval(hits: Tensor, image: Tensor) -> tuple[float, float]:
    """95 % bootstrap interval of the mean, images resampled."""
    _, owner = image.unique(return_inverse=True)
    number = int(owner.max()) + 1
    right = torch.zeros(number, dtype=torch.float64).index_add(0, owner, hits.double())
    count = torch.zeros(number, dtype=torch.float64).index_add(0, owner, torch.ones(len(owner), dtype=torch.float64))
    draw = torch.randint(number, (RESAMPLES, number), generator=torch.Generator().manual_seed(0))
    means = (right[draw].sum(1) / count[draw].sum(1)).sort().values
    return float(means[int(0.025 * RESAMPLES)]), float(means[int(0.975 * RESAMPLES) - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    gold = collect_gold(load_examples(args.data, args.split), "gold")
    store = FeatureStore.open(args.store)
    first = gold.caption_index == 0
    curves = {}
    for threshold in (0.5, 0.7):
        ranks = region_hits(gold, store, threshold).ranks["merged box"]
        for name, chosen in (("caption 0", first), ("all captions", torch.ones_like(first))):
            mine = ranks[chosen]
            curves[f"{name}, IoU {threshold}"] = [float((mine < k).double().mean()) for k in range(1, 101)]
            row: dict[str, object] = {"captions": name, "IoU": threshold, "phrases": len(mine)}
            for k in COUNTS:
                low, high = interval(mine < k, gold.image[chosen])
                row[f"@{k}"] = f"{100 * float((mine < k).double().mean()):.2f} [{100 * low:.1f}, {100 * high:.1f}]"
            print(json.dumps(row))
            for column, category in enumerate(gold.category_names):
                part = ranks[chosen & gold.categories[:, column]]
                if len(part):
                    shares = {f"@{k}": round(100 * float((part < k).double().mean()), 1) for k in COUNTS}
                    print(
                        json.dumps(
                            {"captions": name, "IoU": threshold, "category": category, "phrases": len(part), **shares}
                        )
                    )
    if args.figure:
        draw(curves, args.figure, args.split)


def draw(curves: dict[str, list[float]], path: Path, split: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(range(1, 101), [100 * value for value in values], label=name, ls="--" if "0.7" in name else "-")
    axes.set(xlabel="regions of an image (K)", ylabel=f"phrases with a fitting region, {split}, %", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
