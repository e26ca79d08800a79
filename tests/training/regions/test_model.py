import torch

from phrasechain.regions.network import RegionNetwork
from phrasechain.training.regions.model import WEIGHTS, RegionTrainingModel, stack_targets
from phrasechain.training.regions.vocabulary import RegionTargets
from published import random_weights

ONE = RegionTargets(
    torch.tensor([[0.1, 0.1, 0.4, 0.4], [0.6, 0.6, 0.9, 0.9]]), ((0, 2), (1,)), ((0, (2,)), (1, (1, 3)))
)
TWO = RegionTargets(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), ((3,),), ((0, ()), (0, (3,))))
NONE = RegionTargets(torch.zeros(0, 4), (), ())


def make_training_model() -> RegionTrainingModel:
    torch.manual_seed(0)
    return RegionTrainingModel(RegionNetwork(8, torch.tensor([[[0.3, 0.3]], [[0.9, 0.9]]]), 64), 4)


def test_lessons_are_padded_and_their_phrases_packed() -> None:
    batch = stack_targets([ONE, TWO, NONE], 4)
    assert batch.named.tolist()[1] == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert batch.words[0].tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]
    assert batch.phrase_image.tolist() == [0, 0, 1]  # the phrase without a known word is left out
    assert batch.phrase_box.tolist() == [0, 1, 0]
    assert batch.phrase_words.tolist() == [2, 1, 3, 3]
    assert batch.phrase_starts.tolist() == [0, 1, 3]


def test_every_loss_reaches_the_trunk_and_learning_lowers_them() -> None:
    teacher = make_training_model()
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    lessons = stack_targets([ONE, TWO], 4)
    first = teacher.network.trunk.stem.weight
    for name, loss in teacher(teacher.network.trunk(pixels), lessons).items():
        (gradient,) = torch.autograd.grad(loss, first, retain_graph=True)
        assert gradient.abs().max() > 0, name
    optimizer = torch.optim.Adam(teacher.parameters(), 1e-3)
    totals = []
    for _ in range(30):
        total = sum(WEIGHTS[name] * loss for name, loss in teacher(teacher.network.trunk(pixels), lessons).items())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(float(total.detach()))
    assert totals[-1] < 0.7 * totals[0]


def test_photos_that_teach_nothing_are_no_error() -> None:
    teacher = make_training_model()
    losses = teacher(teacher.network.trunk(torch.zeros(1, 3, 64, 64)), stack_targets([NONE], 4))
    assert all(loss.isfinite() for loss in losses.values())


def test_published_weights_fill_the_trunk_and_the_layer_after_it() -> None:
    teacher, weights = make_training_model(), random_weights()
    teacher.load_published(weights)
    scale = weights["_bn1.weight"] / (weights["_bn1.running_var"] + 1e-3).sqrt()
    torch.testing.assert_close(
        teacher.network.widen.weight, torch.nn.Parameter(weights["_conv_head.weight"] * scale[:, None, None, None])
    )


def test_the_region_head_learns_from_proposals_further_down_too() -> None:
    """Those that are best without them, and others that differ from step to step."""
    few, many = make_training_model(), make_training_model()
    many.deeper = 16
    rng = torch.Generator().manual_seed(0)
    corner = torch.rand(2, 900, 2, generator=rng) * 0.9
    boxes = torch.cat((corner, corner + 0.02 + 0.08 * torch.rand(2, 900, 2, generator=rng)), -1)
    score = torch.randn(2, 900, generator=rng)
    best, found, again = few._proposals(score, boxes), many._proposals(score, boxes), many._proposals(score, boxes)
    assert found.shape == (2, 64 + 16, 4)
    assert torch.equal(found[:, :64], best)
    assert not torch.equal(found[:, 64:], again[:, 64:])
    assert len(found[0].unique(dim=0)) == 80


def test_every_weight_is_one_part_of_the_teacher() -> None:
    teacher = make_training_model()
    parts = [id(weight) for part in teacher.parts() for weight in part]
    assert sorted(parts) == sorted(id(weight) for weight in teacher.parameters())
