"""DDPN's target, normalisation and offsets against their definitions."""

import math

import torch

from baseline_cases import encoder
from phrasechain.baselines.ddpn import DDPN
from phrasechain.baselines.pairs import region_rows
from phrasechain.core.boxes import decode_offsets_xyxy, encode_offsets_xyxy
from tiny_batches import tiny_batch, tiny_example

SCALE = torch.tensor([0.1, 0.1, 0.2, 0.2])


def make_ddpn() -> DDPN:
    torch.manual_seed(0)
    ddpn = DDPN(encoder(), 4, lstm=5, hidden=7).eval()
    torch.nn.init.normal_(ddpn.pairs.heads.weight.detach())
    return ddpn


def test_features_and_phrases_have_length_one_and_places_follow() -> None:
    batch, ddpn = tiny_batch(1), make_ddpn()
    rows = region_rows(batch, normalise=True)
    mask = batch.region_mask
    features = batch.features[mask].float()
    torch.testing.assert_close(rows[:, :4], features / features.norm(dim=1, keepdim=True))
    torch.testing.assert_close(rows[:, 4:], batch.spatial[mask])
    phrases = ddpn.phrase_vectors(batch)
    torch.testing.assert_close(phrases.norm(dim=1), torch.ones(len(phrases)))


def test_a_phrase_is_read_alone() -> None:
    batch, ddpn = tiny_batch(1), make_ddpn()
    vectors = ddpn.phrase_vectors(batch)
    for number, caption in enumerate(batch.phrase_caption.tolist()):
        first, end = batch.token_spans[number].tolist()
        state = ddpn.lstm(ddpn.encoder([batch.tokens[caption][first:end]]))[0][0, -1]
        torch.testing.assert_close(vectors[number], state / state.norm())


def test_the_losses_by_their_definitions() -> None:
    batch, targets = tiny_example(3, unlabelled=0.3, unknown=0.2, captions=8)
    ddpn = make_ddpn()
    terms, scores = ddpn.loss(batch, targets), ddpn(batch)
    assert scores.offsets is not None
    kl = boxes = 0.0
    pairs = phrases = 0
    for number, image in enumerate(batch.phrase_image.tolist()):
        regions = batch.region_mask[image].nonzero()[:, 0].tolist()
        kept = {k: float(targets.iou[number, k]) for k in regions if float(targets.iou[number, k]) >= 0.5}
        if not kept:
            continue  # masked out
        phrases += 1
        total = sum(math.exp(scores.emissions[number, k].item()) for k in regions)
        for k, overlap in kept.items():
            q = overlap / sum(kept.values())
            kl += q * math.log(q / (math.exp(scores.emissions[number, k].item()) / total))
            wanted = encode_offsets_xyxy(targets.gold[number], batch.boxes[image, k]) / SCALE
            for error in (scores.offsets[number, k] / SCALE - wanted).abs().tolist():
                boxes += error**2 / 2 if error < 1 else error - 0.5
            pairs += 1
    assert pairs > phrases > 0
    assert math.isclose(terms.grounding.item(), kl, rel_tol=1e-4)
    assert math.isclose(terms.boxes.item(), boxes, rel_tol=1e-4)
    assert (int(terms.count), int(terms.pairs)) == (phrases, pairs)
    assert ddpn.loss_counts(batch, targets).tolist() == [phrases, pairs, phrases]


def test_offsets_are_scaled_back_for_the_boxes() -> None:
    batch, ddpn = tiny_batch(2), make_ddpn()
    raw = ddpn.pairs(ddpn.phrase_vectors(batch), region_rows(batch, normalise=True), batch)[1]
    scores = ddpn(batch)
    assert scores.offsets is not None
    torch.testing.assert_close(scores.offsets, raw * SCALE)
    decoded = ddpn.decode(scores, batch)
    rows = torch.arange(len(decoded.region))
    boxes = batch.boxes[batch.phrase_image, decoded.region]
    moved = decode_offsets_xyxy(raw[rows, decoded.region] * SCALE, boxes)
    sizes = batch.sizes[batch.phrase_image]
    torch.testing.assert_close(decoded.boxes, torch.minimum(moved.clamp(min=0), torch.cat([sizes, sizes], 1)))
