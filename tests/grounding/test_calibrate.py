"""The logistic that makes probabilities: against known truths and plain counts."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from builders import make_caption, make_example
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.grounding.calibrate import (
    Collected,
    area_under_curve,
    bins,
    calibrate,
    calibration_error,
    collect,
    fit_logistic,
    measure,
)
from phrasechain.model.confidence import Calibration
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
    return Collected(evidence, torch.arange(count) // 3, torch.arange(count) % 5 > 0, right & (not absent))


def test_the_truth_is_found() -> None:
    data = synthetic(40_000, 0)
    slopes, constant = fit_logistic(data.evidence, data.right.double(), torch.ones(40_000, dtype=torch.float64))
    torch.testing.assert_close(slopes, torch.tensor([1.2, 0.6, 0.0], dtype=torch.float64), atol=0.06, rtol=0)
    assert float(constant) == pytest.approx(-0.3, abs=0.05)


def test_counts_are_repetitions() -> None:
    data, counts = synthetic(50, 1), torch.arange(50) % 3
    rows, targets = data.evidence, data.right.double()
    once = fit_logistic(
        rows.repeat_interleave(counts, 0), targets.repeat_interleave(counts), torch.ones(counts.sum()).double()
    )
    weighed = fit_logistic(rows[counts > 0], targets[counts > 0], counts[counts > 0].double())
    points = torch.randn(20, 3, dtype=torch.float64)
    predicted = [(points @ slopes + constant).sigmoid() for slopes, constant in (once, weighed)]
    torch.testing.assert_close(*predicted, atol=2e-3, rtol=0)  # the penalty is on differently scaled rows


def test_all_told_apart_stays_finite() -> None:
    rows = torch.tensor([[-1.0], [-0.5], [0.5], [1.0]], dtype=torch.float64)
    slopes, constant = fit_logistic(rows, (rows[:, 0] > 0).double(), torch.ones(4, dtype=torch.float64))
    assert slopes.isfinite().all()
    assert constant.isfinite()
    slopes, constant = fit_logistic(rows, torch.ones(4).double(), torch.ones(4, dtype=torch.float64))
    assert float(constant) > 3


def test_both_ends_are_served() -> None:
    """Real phrases are calibrated although the weights look at absent ones, on data that were not fitted."""
    found = calibrate(synthetic(6000, 2), synthetic(6000, 3, absent=True))
    real, absent = synthetic(6000, 4), synthetic(6000, 5, absent=True)
    fresh, plain = measure(found.calibration, real, absent), measure(Calibration(), real, absent)
    assert fresh.error < 0.04 < plain.error
    assert fresh.apart > plain.apart + 0.05
    assert fresh.phrases == int(real.has_box.sum())
    assert fresh.accuracy == pytest.approx(float(real.right[real.has_box].double().mean()))


def test_the_error_by_hand() -> None:
    probability = torch.tensor([0.05, 0.15, 0.12, 1.0, 0.95], dtype=torch.float64)
    right = torch.tensor([False, True, False, True, False])
    assert [count for count, _, _ in bins(probability, right)] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    wanted = (1 * 0.05 + 2 * abs(0.135 - 0.5) + 2 * abs(0.975 - 0.5)) / 5
    assert calibration_error(probability, right) == pytest.approx(wanted)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_the_area_is_a_count_of_pairs(positive: list[int], negative: list[int]) -> None:
    pairs = list(itertools.product(positive, negative))
    wanted = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert area_under_curve(torch.tensor(positive), torch.tensor(negative)) == pytest.approx(wanted)


def test_means_by_caption() -> None:
    data = Collected(torch.zeros(4, 3), torch.tensor([0, 0, 2, 3]), torch.ones(4) > 0, torch.ones(4) > 0)
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
    for how in DECODERS:
        counts = [2 + place % 3 for place in range(9)]
        assert real[how].caption.bincount().tolist() == counts
        assert sorted(absent[how].caption.bincount().tolist()) == sorted(counts)
        assert int(real[how].has_box.sum()) == sum(counts) - 9
        assert not real[how].right[~real[how].has_box].any()
        assert not torch.equal(real[how].evidence, absent[how].evidence)
    with pytest.raises(DataError, match="no caption with a phrase"):
        collect(make_model(), [make_example("i0", make_caption(0))], store)
