"""QRC Net: REINFORCE against the exact gradient, rewards and losses against their definitions."""

import math

import pytest
import torch
from torch import Tensor

from baseline_cases import encoder
from phrasechain.baselines.pairs import region_rows
from phrasechain.baselines.qrc import QRCNet, reinforce, rewards
from phrasechain.core.boxes import encode_offsets_xyxy
from phrasechain.core.errors import DataError
from tiny_batches import tiny_batch, tiny_example


def make_qrc(policy: str = "reinforce") -> QRCNet:
    torch.manual_seed(0)
    qrc = QRCNet(encoder(), 4, lstm=5, hidden=7, policy=policy)
    torch.nn.init.normal_(qrc.pairs.heads.weight.detach())
    return qrc


@pytest.mark.parametrize("baseline", [0.0, 0.4])
def test_reinforce_is_unbiased(baseline: float) -> None:
    torch.manual_seed(1)
    logits = torch.tensor([[0.3, -1.0, 0.8, 0.1], [2.0, 0.0, -0.5, 0.4]], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([[1.0, 0.2, 0.0, 0.0], [0.0, 0.2, 1.0, 0.0]], dtype=torch.float64)
    (exact,) = torch.autograd.grad(-(logits.softmax(-1) * reward).sum(), logits)
    log_p = logits.log_softmax(-1)
    count = 200_000
    draws = torch.multinomial(log_p.exp(), count, replacement=True)
    mean = reinforce(log_p, draws, reward, torch.full((2,), baseline, dtype=torch.float64))
    (found,) = torch.autograd.grad(mean.sum(), logits)
    # each draw's gradient is bounded by 1, so five standard errors of the mean are 5 / sqrt(count)
    assert (found - exact).abs().max().item() < 5 / math.sqrt(count)


def test_every_draw_weighed_by_its_probability_gives_the_exact_gradient() -> None:
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    reward, b = torch.rand(3, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    log_p = logits.log_softmax(-1)

    def expected(k: int) -> Tensor:
        return log_p[:, k].exp().detach() * reinforce(log_p, torch.full((3, 1), k), reward, b)

    (found,) = torch.autograd.grad(torch.stack([expected(k) for k in range(5)]).sum(), logits)
    (exact,) = torch.autograd.grad(-(logits.softmax(-1) * reward).sum(), logits)
    torch.testing.assert_close(found, exact)


def test_rewards_by_their_definition() -> None:
    batch, targets = tiny_example(6, captions=8, most_phrases=4, unlabelled=0.2)
    found = rewards(batch, targets)
    positive = targets.iou >= 0.5
    seen = set()
    for number, caption in enumerate(batch.phrase_caption.tolist()):
        others = [o for o, c in enumerate(batch.phrase_caption.tolist()) if c == caption and o != number]
        for k in range(found.shape[1]):
            wanted = 1.0 if positive[number, k] else 0.2 if any(positive[o, k] for o in others) else 0.0
            assert float(found[number, k]) == pytest.approx(wanted)
            seen.add(wanted)
    assert seen == {0.0, 0.2, 1.0}


@pytest.mark.parametrize("policy", ["reinforce", "supervised"])
def test_the_supervised_losses_by_their_definitions(policy: str) -> None:
    batch, targets = tiny_example(3, unlabelled=0.3, unknown=0.2, captions=8)
    qrc = make_qrc(policy).eval()
    scores, terms = qrc(batch), qrc.loss(batch, targets)
    assert scores.offsets is not None
    entropy = boxes = 0.0
    for number, image in enumerate(batch.phrase_image.tolist()):
        regions = batch.region_mask[image].nonzero()[:, 0].tolist()
        overlaps = targets.iou[number]
        if float(overlaps.max()) < 0.5:
            continue
        entropy -= scores.emissions[number, regions].log_softmax(-1)[int(overlaps.argmax())].item()
        for k in regions:
            if float(overlaps[k]) >= 0.5:
                wanted = encode_offsets_xyxy(targets.gold[number], batch.boxes[image, k])
                for error in (scores.offsets[number, k] - wanted).abs().tolist():
                    boxes += error**2 / 2 if error < 1 else error - 0.5
    error = terms.grounding.item() - entropy  # what is left is ½ (b − R̄)², at most one half a phrase
    assert 0 < error < int(terms.count) / 2
    assert terms.boxes.item() == pytest.approx(boxes, rel=1e-4)
    assert int(terms.count) == int(targets.labelled.sum())


def test_the_supervised_policy_is_the_gradient_of_the_last_layer_scaled() -> None:
    batch, targets = tiny_example(3, captions=8)
    gradients = {}
    for policy in ("none", "supervised"):
        qrc = make_qrc("supervised").eval()
        terms = qrc.loss(batch, targets)
        if policy == "none":  # the two losses without the policy, from the scores
            scores = qrc(batch)
            mask = batch.region_mask[batch.phrase_image]
            log_p = scores.emissions.masked_fill(~mask, -1e9).log_softmax(-1)
            loss = -log_p.gather(1, targets.iou.argmax(1, keepdim=True)).sum()
        else:
            loss = terms.grounding
        loss.backward()
        gradients[policy] = [qrc.pairs.heads.weight.grad[0], qrc.pairs.text.weight.grad]
    (plain, below), (more, same) = gradients["none"], gradients["supervised"]
    torch.testing.assert_close(below, same)
    ratio = (more / plain)[plain.abs() > 1e-6]
    assert ratio.std().item() < 1e-4
    assert 1.0 < ratio.mean().item() < 1.01  # 1 + 0.01 × a reward between 0 and 1


def test_padding_leaves_no_trace_in_the_statistics() -> None:
    batch = tiny_batch(5, regions=(2, 6))
    qrc = make_qrc().train()
    qrc.region_rows(batch)
    rows = region_rows(batch)
    assert len(rows) < batch.region_mask.numel()
    torch.testing.assert_close(qrc.region_norm.running_mean, 0.1 * rows.mean(0))


def test_one_phrase_alone_can_be_trained() -> None:
    batch, targets = tiny_example(0, images=1, captions=1, most_phrases=1)
    terms = make_qrc().train().loss(batch, targets)
    assert math.isfinite(terms.grounding.item())


def test_an_unknown_policy_is_one_line() -> None:
    with pytest.raises(DataError, match="no context policy named 'reinforced'"):
        make_qrc("reinforced")
