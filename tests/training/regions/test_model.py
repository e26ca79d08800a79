import torch

from phrasechain.regions.network import RegionNetwork
from phrasechain.training.regions.model import LOSS_WEIGHTS, RegionTrainingModel, stack_targets
from phrasechain.training.regions.vocabulary import RegionTargets

ONE = RegionTargets(
    torch.tensor([[0.1, 0.1, 0.4, 0.4], [0.6, 0.6, 0.9, 0.9]]), ((0, 2), (1,)), ((0, (2,)), (1, (1, 3)))
)
TWO = RegionTargets(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), ((3,),), ((0, ()), (0, (3,))))
NONE = RegionTargets(torch.zeros(0, 4), (), ())


def make_training_model() -> RegionTrainingModel:
    torch.manual_seed(0)
    return RegionTrainingModel(RegionNetwork(8, torch.tensor([[[0.3, 0.3]], [[0.9, 0.9]]]), 64), 4)


def test_targets_are_padded_and_their_phrases_packed() -> None:
    batch = stack_targets([ONE, TWO, NONE], 4)
    assert batch.named.tolist()[1] == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert batch.words[0].tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]
    assert batch.phrase_image.tolist() == [0, 0, 1]  # the phrase without a known word is left out
    assert batch.phrase_box.tolist() == [0, 1, 0]
    assert batch.phrase_words.tolist() == [2, 1, 3, 3]
    assert batch.phrase_starts.tolist() == [0, 1, 3]


def test_every_loss_reaches_the_trunk_and_learning_lowers_them() -> None:
    model = make_training_model()
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    targets = stack_targets([ONE, TWO], 4)
    first = model.network.trunk.stem.weight
    for name, loss in model(model.network.trunk(pixels), targets).items():
        (gradient,) = torch.autograd.grad(loss, first, retain_graph=True)
        assert gradient.abs().max() > 0, name
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    totals = []
    for _ in range(30):
        total = sum(LOSS_WEIGHTS[name] * loss for name, loss in model(model.network.trunk(pixels), targets).items())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(float(total.detach()))
    assert totals[-1] < 0.7 * totals[0]


def test_photos_that_teach_nothing_are_no_error() -> None:
    model = make_training_model()
    losses = model(model.network.trunk(torch.zeros(1, 3, 64, 64)), stack_targets([NONE], 4))
    assert all(loss.isfinite() for loss in losses.values())


def test_every_weight_is_one_part_of_the_model() -> None:
    model = make_training_model()
    parts = [id(weight) for part in model.parts() for weight in part]
    assert sorted(parts) == sorted(id(weight) for weight in model.parameters())


PARTIAL = RegionTargets(torch.tensor([[0.1, 0.1, 0.4, 0.4]]), ((0,),), ((0, (0,)),), ((3,),))


def test_partial_targets_say_which_words_are_open_and_how_much_they_count() -> None:
    batch = stack_targets([ONE, PARTIAL], 4, partial_weight=0.25)
    assert batch.supervision.weight.tolist() == [1.0, 0.25]
    assert batch.supervision.is_partial.tolist() == [False, True]
    assert batch.unknown is not None
    assert batch.unknown.tolist() == [[[False] * 4] * 2, [[False, True, True, False], [False] * 4]]
    assert stack_targets([ONE, TWO], 4).unknown is None


def test_a_phrase_of_partial_targets_competes_with_marked_things_alone() -> None:
    model, batch = make_training_model(), stack_targets([ONE, PARTIAL], 4)
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.35], [0.5, 0.5, 0.9, 0.9], [0.0, 0.0, 0.0, 0.0]]).expand(2, 3, 4)
    assert model._rivals(boxes, batch).tolist() == [[True, True, False], [True, False, False]]
    model.unmarked_rivals = True
    assert model._rivals(boxes, batch).tolist() == [[True, True, False], [True, True, False]]


def test_what_is_not_marked_in_partial_targets_teaches_nothing() -> None:
    """No score, no quality and no phrase gets a gradient where no box is near."""
    model = make_training_model()
    pixels = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1
    empty = RegionTargets(torch.zeros(0, 4), (), (), ())
    losses = model(model.network.trunk(pixels), stack_targets([empty], 4))
    assert all(float(loss.detach()) == 0 for loss in losses.values())
