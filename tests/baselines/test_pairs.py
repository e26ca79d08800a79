"""Scores of pairs against loops over phrases and regions."""

import torch

from phrasechain.baselines.pairs import ConcatScores, inner_products, region_vectors
from tiny_batches import tiny_batch


def test_inner_products_are_with_the_regions_of_the_own_image() -> None:
    batch = tiny_batch(2, captions=7)
    phrases, regions = torch.randn(len(batch.spans), 5), torch.randn(*batch.region_mask.shape, 5)
    found = inner_products(phrases, regions, batch)
    for number, image in enumerate(batch.phrase_image.tolist()):
        torch.testing.assert_close(found[number], regions[image] @ phrases[number])


def test_two_parts_of_a_layer_are_one_layer_on_both_vectors() -> None:
    batch = tiny_batch(3)
    pairs = ConcatScores(4, 3, 6)
    phrases, rows = torch.randn(len(batch.spans), 4), torch.randn(int(batch.region_mask.sum()), 3)
    assert not pairs(phrases, rows, batch)[1].any()  # boxes do not move at first
    torch.nn.init.normal_(pairs.heads.weight.detach())
    scores, offsets = pairs(phrases, rows, batch)
    weight = torch.cat([pairs.text.weight, pairs.region.weight], 1)  # (H, d + D)
    regions = region_vectors(rows, batch)
    for number, image in enumerate(batch.phrase_image.tolist()):
        for region in batch.region_mask[image].nonzero()[:, 0].tolist():
            both = torch.cat([phrases[number], regions[image, region]])
            wanted = pairs.heads((weight @ both + pairs.region.bias).relu())
            torch.testing.assert_close(torch.cat([scores[number, region, None], offsets[number, region]]), wanted)
    bound = (6 / (4 + 3 + 6)) ** 0.5
    assert weight.abs().max().item() <= bound
