"""Collecting evidence and fitting a calibration to it."""

from dataclasses import replace

import pytest
import torch

from builders import make_caption, make_example
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.grounding.calibrate import (
    FOUND_SHARE,
    Collected,
    calibrate,
    calibrate_presence,
    collect,
    measure,
    presence_auroc,
)
from phrasechain.model.confidence import Calibration, auroc, calibration_error
from phrasechain.model.decode import DECODERS
from tiny_batches import _regions
from tiny_grounder import make_model


def synthetic(count: int, seed: int, absent: bool = False) -> Collected:
    """Right with a probability that the evidence tells exactly; emissions are lower where the caption is another's."""
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    if absent:
        evidence[:, 1] -= 1.5
    rng = (1.2 * evidence[:, 0] + 0.6 * evidence[:, 1] - 0.3).sigmoid()
    right = torch.rand(count, generator=generator, dtype=torch.float64) < rng
    return Collected(
        evidence,
        torch.arange(count) // 3,
        torch.arange(count) % 5 > 0,
        right & (not absent),
        torch.full((count,), absent),
    )


def test_both_ends_are_served() -> None:
    """Real phrases are calibrated although the weights look at absent ones, on data that were not fitted."""
    found = calibrate(synthetic(6000, 2), synthetic(6000, 3, absent=True))
    real, absent = synthetic(6000, 4), synthetic(6000, 5, absent=True)
    fresh, plain = measure(found.calibration, real, absent), measure(Calibration(), real, absent)
    assert fresh.error < 0.04 < plain.error
    assert fresh.auroc > plain.auroc + 0.05
    assert fresh.phrases == int(real.has_box.sum())
    assert fresh.accuracy == pytest.approx(float(real.right[real.has_box].double().mean()))


def with_presence(count: int, seed: int, absent: bool = False) -> Collected:
    """The same with a fourth kind of evidence, which tells absent phrases from real ones."""
    data = synthetic(count, seed, absent)
    generator = torch.Generator().manual_seed(100 + seed)
    logit = torch.randn(count, 1, generator=generator, dtype=torch.float64) + (-1.5 if absent else 1.5)
    return replace(data, evidence=torch.cat([data.evidence, logit], 1), has_box=data.has_box & (not absent))


def test_presence_and_probability_are_calibrated_with_a_share_of_absent_phrases() -> None:
    data = (with_presence(6000, 2), with_presence(6000, 3, absent=True))
    found = calibrate_presence(*data, with_presence(3000, 6), with_presence(3000, 7, absent=True))
    real, absent = with_presence(6000, 4), with_presence(6000, 5, absent=True)
    calibration = found.calibration
    assert measure(calibration, real, absent).error < 0.04
    presence = calibration.presence(real.evidence[real.has_box])
    assert float((presence >= calibration.threshold).double().mean()) == pytest.approx(FOUND_SHARE, abs=0.02)
    others = calibration.presence(absent.evidence)
    count = len(presence) // 4  # a fifth of them all
    mixed = torch.cat([presence, others[:count]])
    is_there = torch.cat([torch.ones(len(presence)), torch.zeros(count)]) > 0
    assert calibration_error(mixed, is_there) < 0.03
    assert found.presence_auroc is not None
    assert min(found.presence_auroc) > 0.95
    assert presence_auroc(calibration.presence, real, absent) == pytest.approx(auroc(presence, others))


def test_means_by_caption() -> None:
    data = Collected(torch.zeros(4, 3), torch.tensor([0, 0, 2, 3]), *(torch.ones(4) > 0,) * 3)
    assert data.mean_by_caption(torch.tensor([0.2, 0.4, 0.5, 1.0])).tolist() == pytest.approx([0.3, 0.5, 1.0])


def test_collecting() -> None:
    """Phrases of caption 0 alone; absent ones are those of other images on this image's regions."""
    import random

    draw = random.Random(0)
    store: dict[str, Regions] = {f"i{n}": _regions(f"i{n}", draw, 5, 8) for n in range(9)}
    boxes = {image: tuple(float(end) for end in each.boxes[0]) for image, each in store.items()}
    examples = [
        make_example(
            image,
            make_caption(0, *(("a man", str(n), ("people",), (boxes[image],)) for n in range(1 + place % 3)),
                         ("the sky", "9", ("scene",), None)),
            make_caption(1, ("a dog", "3", ("animals",), (boxes[image],))),
        )
        for place, image in enumerate(store)
    ]  # fmt: skip
    real, absent = (collect(make_model(), examples, store, absent=each) for each in (False, True))
    assert set(real) == set(DECODERS)
    for method in DECODERS:
        counts = [2 + place % 3 for place in range(9)]
        assert real[method].caption.bincount().tolist() == counts
        assert sorted(absent[method].caption.bincount().tolist()) == sorted(counts)
        assert int(real[method].has_box.sum()) == sum(counts) - 9
        assert not real[method].right[~real[method].has_box].any()
        assert not torch.equal(real[method].evidence, absent[method].evidence)
        assert not real[method].absent.any()
        assert not absent[method].absent.any()  # they name what its own captions name
    alone = collect(make_model(), examples, store, alone=True)["viterbi"]
    assert alone.caption.bincount().tolist() == [1] * int(real["viterbi"].has_box.sum())
    with pytest.raises(DataError, match="no caption with a phrase"):
        collect(make_model(), [make_example("i0", make_caption(0))], store)
