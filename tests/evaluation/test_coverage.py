"""Regions against gold phrases, by a plain loop."""

from pathlib import Path

import numpy as np
import pytest
import torch

from builders import make_caption, make_example, write_store
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.schema import Box
from phrasechain.evaluation.coverage import region_hits, unfit_regions
from phrasechain.evaluation.gold import collect_gold
from phrasechain.evaluation.metrics import NEVER
from phrasechain.store.reader import FeatureStore


def random_box(generator: np.random.Generator) -> Box:
    x0, y0 = generator.integers(0, 4, 2).tolist()
    width, height = generator.integers(1, 8, 2).tolist()
    return (float(x0), float(y0), float(x0 + width), float(y0 + height))


def first_hit(regions: list[list[float]], box: Box) -> int:
    ious = [float(iou_xyxy(torch.tensor(region), torch.tensor(box))) for region in regions]
    return next((rank for rank, iou in enumerate(ious) if iou >= 0.5), NEVER)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("regime", ["gold", "all"])
def test_hits_are_those_of_a_plain_loop(tmp_path: Path, seed: int, regime: str) -> None:
    generator = np.random.default_rng(seed)
    examples, wanted = [], []
    stored = {str(image): [list(random_box(generator)) for _ in range(15)] for image in (0, 1, 3)}  # 2 has no regions
    objectness = generator.permutation(15).astype(float).tolist()
    for image in map(str, range(4)):
        captions = []
        for index in range(2):
            phrases = []
            for word in ("one", "two", "three"):
                boxes = tuple(random_box(generator) for _ in range(generator.integers(0, 3))) or None
                phrases.append((word, word, ("people",), boxes))
                if boxes is None:
                    continue
                merged = (*np.min(boxes, 0)[:2].tolist(), *np.max(boxes, 0)[2:].tolist())
                order = np.argsort(objectness)[::-1] if image in stored else []
                regions = [stored[image][place] for place in order]
                count = sum(first_hit([region], merged) == 0 for region in regions)
                wanted.append((count, first_hit(regions, merged), min(first_hit(regions, box) for box in boxes)))
            captions.append(make_caption(index, *phrases))
        examples.append(make_example(image, *captions))
    store = FeatureStore.open(write_store(tmp_path / "store", stored, objectness))
    hits = region_hits(collect_gold(examples, regime), store)
    got = zip(hits.counts.tolist(), hits.ranks["merged box"].tolist(), hits.ranks["any box"].tolist(), strict=True)
    assert list(got) == wanted
    assert any(NEVER > merged > 0 for _, merged, _ in wanted)


def test_regions_that_do_not_fit_are_named(tmp_path: Path) -> None:
    store = FeatureStore.open(write_store(tmp_path / "store", {"a": [[0, 0, 1, 1]], "b": [[0, 0, 1, 1]]}))
    examples = [make_example("a"), make_example("b", width=50), make_example("c")]
    assert list(unfit_regions(examples, store)) == [
        f"image b: 100×80 in the store {store.path}, but annotated as 50×80",
        f"image c: not in the store {store.path}",
    ]
