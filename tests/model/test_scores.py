"""Emissions and offsets against loops over pairs in float64, and the region vectors against numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from phrasechain.core.errors import DataError
from phrasechain.model.batch import Batch
from phrasechain.model.scores import BagOfWordsScores, PairScores, RegionInput, random_mask
from tiny_batches import tiny_batch


@pytest.fixture
def batch() -> Batch:
    return tiny_batch(1)


def real_rows(batch: Batch, padded: Tensor) -> Tensor:
    return torch.cat([rows[mask] for rows, mask in zip(padded, batch.region_mask, strict=True)])


def test_the_batch_has_what_these_tests_are_about(batch: Batch) -> None:
    assert not batch.region_mask.all()
    assert batch.caption_image.tolist() == [0, 1, 2, 0, 1]  # captions of one image are not neighbours
    assert len(set(batch.lengths.tolist())) > 1


def test_region_vectors_are_features_and_place_without_padding(batch: Batch) -> None:
    rows = RegionInput(4)(batch)
    expected = torch.cat([batch.features.float(), batch.spatial], -1)
    assert torch.equal(rows, real_rows(batch, expected))
    assert rows.dtype == torch.float32
    assert RegionInput(4).dimension == 9


def test_standardised_features_have_mean_0_and_deviation_1_over_what_was_fitted(batch: Batch) -> None:
    regions = RegionInput(4, "standardise")
    raw = real_rows(batch, batch.features)
    regions.fit(iter([raw[:2], raw[2:]]))
    found = regions(batch)[:, :4].double().numpy()
    numbers = raw.double().numpy()
    np.testing.assert_allclose(found, (numbers - numbers.mean(0)) / numbers.std(0), atol=1e-5)
    again = RegionInput(4, "standardise")
    again.load_state_dict(regions.state_dict())
    assert torch.equal(again(batch), regions(batch))


def test_a_feature_that_never_changes_stays_finite() -> None:
    regions = RegionInput(2, "standardise")
    regions.fit([torch.tensor([[1.0, 5.0], [3.0, 5.0]])])
    assert regions.scale(torch.tensor([[3.0, 5.0]])).tolist() == [[pytest.approx(1.0), 0.0]]


def test_unknown_names_and_nothing_to_fit_are_refused() -> None:
    with pytest.raises(DataError, match="no normalisation of region features named 'l2'; there are: none, standardise"):
        RegionInput(4, "l2")
    with pytest.raises(DataError, match="no activation named 'gelu'; there are: none, relu"):
        PairScores(2, 2, rank=2, joint=2, activation="gelu")
    with pytest.raises(DataError, match="no region features to standardise with"):
        RegionInput(4, "standardise").fit([])


@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("box_regression", [True, False])
@pytest.mark.parametrize("matches", [True, False])
def test_scores_are_those_of_a_loop_over_pairs(
    batch: Batch, activation: str, box_regression: bool, matches: bool
) -> None:
    torch.manual_seed(0)
    parts = {"box_regression": box_regression, "matches": matches}
    module = PairScores(6, 9, rank=5, joint=7, activation=activation, dropout=0.5, **parts)
    module = module.double().eval()
    phrases, regions = torch.randn(len(batch.spans), 6).double(), RegionInput(4)(batch).double()
    emissions, offsets, found_matches = module(phrases, regions, batch)
    assert emissions.shape == (len(batch.spans), batch.boxes.shape[1])
    padded = torch.cat([batch.features.float(), batch.spatial], -1).double()
    for p, image in enumerate(batch.phrase_image.tolist()):
        for k in batch.region_mask[image].nonzero()[:, 0].tolist():
            f = (
                module.p.weight @ ((module.u.weight @ phrases[p]) * (module.v.weight @ padded[image, k]))
                + module.p.bias
            )
            f = f.clamp(min=0) if activation == "relu" else f
            expected = module.heads.weight @ f + module.heads.bias
            torch.testing.assert_close(emissions[p, k], expected[0])
            if offsets is not None:
                torch.testing.assert_close(offsets[p, k], expected[1:5])
            if found_matches is not None:
                torch.testing.assert_close(found_matches[p, k], expected[-1])
    assert (offsets is not None) == box_regression
    assert (found_matches is not None) == matches


def test_padding_and_other_images_change_nothing(batch: Batch) -> None:
    torch.manual_seed(0)
    module, regions = PairScores(6, 9, rank=5, joint=7), RegionInput(4)
    phrases = torch.randn(len(batch.spans), 6)
    emissions, _, _ = module(phrases, regions(batch), batch)
    junk = replace(batch, features=batch.features.masked_fill(~batch.region_mask[..., None], torch.nan))
    again, _, _ = module(phrases, regions(junk), junk)
    assert torch.equal(emissions, again)
    assert (emissions[~batch.region_mask[batch.phrase_image]] == 0).all()


def test_dropout_keeps_the_mean_of_the_scores_and_changes_them() -> None:
    batch = tiny_batch(2, images=1, captions=1, regions=(40, 40))
    torch.manual_seed(0)
    module, regions = PairScores(6, 9, rank=5, joint=64, dropout=0.25), RegionInput(4)(batch)
    phrases = torch.randn(len(batch.spans), 6)
    with torch.no_grad():
        runs = torch.stack([module(phrases, regions, batch)[0] for _ in range(400)])
        settled, _, _ = module.eval()(phrases, regions, batch)
    spread = runs.std(0)
    assert (spread > 0).all()
    assert ((runs.mean(0) - settled) / (spread / 20)).abs().max() < 5


def test_random_masks_have_their_rate_at_every_place_and_follow_the_seed() -> None:
    torch.manual_seed(0)
    mask = random_mask(torch.Size((400, 1001)), 0.2, torch.device("cpu"))
    for share in (mask.float().mean(1), *(mask.flatten()[place::4].float().mean()[None] for place in range(4))):
        assert (share - 0.2).abs().max() < 0.07
    assert abs(mask.float().mean().item() - 0.2) < 5 * (0.16 / mask.numel()) ** 0.5
    torch.manual_seed(0)
    assert torch.equal(mask, random_mask(torch.Size((400, 1001)), 0.2, torch.device("cpu")))


def test_a_bag_of_words_against_a_loop_over_pairs(batch: Batch) -> None:
    torch.manual_seed(0)
    scores = BagOfWordsScores(6, 9)
    tokens = torch.randn(len(batch.lengths), max(map(len, batch.tokens)), 6)
    rows = RegionInput(4)(batch)
    found = scores(tokens, rows, batch)
    asked = scores.ask(scores.words(tokens, batch.token_spans, batch.phrase_caption)).double()
    counts = batch.region_mask.sum(1).tolist()
    of_image = rows.double().split(counts)  # type: ignore[no-untyped-call]
    for phrase, image in enumerate(batch.phrase_image.tolist()):
        torch.testing.assert_close(found[phrase, : counts[image]].double(), of_image[image] @ asked[phrase])
        assert not found[phrase, counts[image] :].any()
