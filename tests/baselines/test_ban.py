"""BAN against the triple sum, the caption read by hand, and its loss by its definition."""

import math

import torch

from baseline_cases import encoder, two_boxes
from phrasechain.baselines.ban import BAN
from phrasechain.model.targets import make_targets
from tiny_batches import tiny_batch, tiny_example


def make_ban(dimension: int = 4) -> BAN:
    torch.manual_seed(0)
    return BAN(encoder(), dimension, hidden=5, joint=7).eval()


def test_the_logit_is_the_triple_sum() -> None:
    batch, ban = tiny_batch(1), make_ban()
    found = ban(batch)
    assert found.offsets is None
    assert found.transitions is None
    queries = ban.phrase(ban.phrase_states(batch)).tolist()
    h, b = ban.map.weight[0].tolist(), ban.map.bias.item()
    for number, image in enumerate(batch.phrase_image.tolist()):
        for region in batch.region_mask[image].nonzero()[:, 0].tolist():
            v = ban.region(batch.features[image, region].float()).tolist()
            wanted = sum(h[m] * v[m] * queries[number][m] for m in range(7)) + b
            assert math.isclose(found.emissions[number, region].item(), wanted, rel_tol=1e-4, abs_tol=1e-5)


def test_a_phrase_is_the_state_at_its_last_word_with_the_caption_before_it() -> None:
    batch, ban = tiny_batch(2), make_ban()
    states = ban.phrase_states(batch)
    for number, caption in enumerate(batch.phrase_caption.tolist()):
        end = int(batch.token_spans[number, 1])
        read = ban.encoder([batch.tokens[caption][:end]])  # nothing of what comes after the phrase
        torch.testing.assert_close(states[number], ban.gru(read)[0][0, -1])


def test_weights_have_one_length_each() -> None:
    ban = make_ban()
    for layer in (ban.region[1], ban.phrase[1], ban.map):
        length = layer.parametrizations.weight.original0
        assert length.numel() == 1
        torch.testing.assert_close(layer.weight.norm(), length.squeeze())


def test_the_loss_is_the_cross_entropy_with_any_box() -> None:
    batch, phrases = two_boxes()
    ban = make_ban(3)
    terms = ban.loss(batch, ban.targets(batch, phrases))
    p = ban(batch).emissions[0].sigmoid().tolist()
    target = [1, 1, 0, 0]  # the region around both women is not right
    wanted = -sum(math.log(p[k] if target[k] else 1 - p[k]) for k in range(4))
    assert math.isclose(terms.grounding.item(), wanted, rel_tol=1e-5)
    assert (int(terms.count), int(terms.pairs), terms.boxes.item()) == (1, 0, 0.0)
    assert ban.loss(batch, make_targets(batch, phrases)).grounding.item() != terms.grounding.item()


def test_regions_that_an_image_lacks_and_unknown_boxes_teach_nothing() -> None:
    batch, targets = tiny_example(3, unknown=0.4, unlabelled=0.2)
    ban = make_ban()
    terms = ban.loss(batch, targets)
    assert int(terms.count) == len({int(c) for c in batch.phrase_caption[targets.has_box]})
    alone = sum(
        -math.log(p if targets.iou[number, k] >= 0.5 else 1 - p)
        for number, row in enumerate(ban(batch).emissions.sigmoid().tolist())
        for k, p in enumerate(row)
        if targets.has_box[number] and batch.region_mask[batch.phrase_image[number], k]
    )
    assert math.isclose(terms.grounding.item(), alone, rel_tol=1e-4)
