"""A step against the same step written out with plain autograd and torch's own optimiser."""

import math
from dataclasses import replace

import pytest
import torch

from phrasechain.core.distributed import start_processes
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.model.batch import make_groups
from phrasechain.model.config import Config
from phrasechain.model.losses import training_loss
from phrasechain.store.reader import FeatureStore
from phrasechain.training.grounder.steps import BatchPart, ProcessBatches, Steps
from phrasechain.training.grounder.task import SCHEDULES, GroundingTask, _build
from phrasechain.training.loop import Trainer
from phrasechain.training.task import one_cycle
from tiny_batches import terms_of
from tiny_grounding import tiny_config, write_world

EXACT = ("model.dropout=0", "text.word_dropout=0", "train.rate=0.01")


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> ProcessBatches:
    data, features = write_world(tmp_path_factory.mktemp("world"), images=12)
    examples = load_examples(data, "train", cache=False)
    return ProcessBatches(Steps(make_groups(examples), by="image", batch=4), FeatureStore.open(features))


def parts_of(share: ProcessBatches, step: int, parts: int = 1) -> list[BatchPart]:
    found = ProcessBatches(share.steps, share.regions, parts=parts)[step]
    assert isinstance(found, list)
    return found


def trainer_of(share: ProcessBatches, *settings: str) -> Trainer[BatchPart]:
    config: Config = tiny_config(*EXACT, "train.steps=10", *settings)
    examples = [group[0][0] for group in share.steps.groups]
    assert isinstance(share.regions, FeatureStore)
    processes = start_processes("cpu")
    return Trainer(*_build(config, config.loss, examples, (), (), share.regions, processes), processes)


def weights_of(trainer: Trainer[BatchPart]) -> dict[str, torch.Tensor]:
    return {
        name: weight.detach().clone() for name, weight in trainer.task.model.named_parameters() if weight.requires_grad
    }


def by_hand(share: ProcessBatches, steps: int, clip: float) -> dict[str, torch.Tensor]:
    """The weights after some steps of one process on whole batches."""
    task = trainer_of(share).task
    assert isinstance(task, GroundingTask)
    weights = [weight for weight in task.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.01, weight_decay=0.01)
    for step in range(steps):
        ((batch, targets),) = parts_of(share, step)
        terms = training_loss(task.model.member_scores, batch, targets)
        loss = terms.grounding / terms.count + 10 * terms.boxes / terms.pairs
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        largest = max(float(weight.grad.abs().max()) for weight in weights if weight.grad is not None)
        for weight in weights:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad * min(1, clip / largest)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * one_cycle((step + 0.5) / 10, 0.1)
        optimizer.step()
    return {name: weight.detach() for name, weight in task.model.named_parameters()}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("clip", [10.0, 0.05])
def test_steps_are_those_of_the_formula(share: ProcessBatches, parts: int, clip: float) -> None:
    trainer = trainer_of(share, f"train.clip={clip}")
    for step in range(3):
        trainer.take_step(parts_of(share, step, parts))
    wanted = by_hand(share, 3, clip)
    for name, weight in weights_of(trainer).items():
        if name not in ("pairs.heads.bias", "transition.out.bias"):  # see assert_close of tiny_grounding
            torch.testing.assert_close(weight, wanted[name], rtol=0, atol=1e-5)


def test_figures_are_those_of_the_whole_step(share: ProcessBatches) -> None:
    """Sums over all parts divided by all counts, whatever the parts."""
    whole, parts = (trainer_of(share).take_step(parts_of(share, 0, parts)) for parts in (1, 4))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert whole["loss"] == pytest.approx(whole["grounding"] + 10 * whole["boxes"])
    assert whole["phrases"] == sum(len(batch.spans) for batch, _ in parts_of(share, 0))


def test_all_scores_learn_each_from_its_own_loss(share: ProcessBatches) -> None:
    trainer = trainer_of(share, "model.bag_of_words=0.3")
    assert isinstance(trainer.task, GroundingTask)
    ((batch, targets),) = parts_of(share, 0)
    chain, bag = trainer.task.model.member_scores(batch)
    first, second = (terms_of(scores, batch, targets) for scores in (chain, bag))
    expected = (first.grounding + second.grounding) / first.count
    before = weights_of(trainer)
    assert trainer.take_step(parts_of(share, 0))["grounding"] == pytest.approx(expected.item(), rel=1e-5)
    moved = {name for name, weight in weights_of(trainer).items() if not torch.equal(weight, before[name])}
    assert {"bag.ask.weight", "bag.words.attention.weight", "pairs.u.weight"} <= moved


def test_an_empty_share_is_a_step_without_gradient(share: ProcessBatches) -> None:
    trainer = trainer_of(share, "train.weight_decay=0")
    before = weights_of(trainer)
    assert trainer.take_step([])["loss"] == 0
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(trainer).items())


def test_a_step_that_would_ruin_the_weights_is_not_taken(share: ProcessBatches) -> None:
    """The error names an image whose features are to blame."""
    trainer = trainer_of(share)
    ((batch, targets),) = parts_of(share, 0)
    before = weights_of(trainer)
    with pytest.raises(DataError, match="step 1: the loss is not finite"):
        trainer.take_step([(batch, replace(targets, gold=torch.full_like(targets.gold, math.nan)))])
    with pytest.raises(DataError, match=f"image {batch.images[0]}: its region features are not finite"):
        trainer.take_step([(replace(batch, features=torch.full_like(batch.features, math.nan)), targets)])
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(trainer).items())


def test_the_text_encoder_has_a_rate_of_its_own(share: ProcessBatches) -> None:
    trainer = trainer_of(share, "train.encoder_rate=0", "train.weight_decay=0")
    before = weights_of(trainer)
    trainer.take_step(parts_of(share, 0))
    changed = {name for name, weight in weights_of(trainer).items() if not torch.equal(weight, before[name])}
    assert changed
    assert not any(name.startswith("text.encoder.") for name in changed)


def test_a_constant_rate() -> None:
    assert {SCHEDULES["constant"](done, 0.1) for done in (0.0, 0.05, 1.0)} == {1.0}
