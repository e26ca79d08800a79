"""A step against the same step written out with plain autograd and torch's own optimiser."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.distributed import start_processes
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.model.batch import make_groups
from phrasechain.model.build import build_model
from phrasechain.model.config import Config
from phrasechain.model.losses import training_loss
from phrasechain.store.reader import FeatureStore
from phrasechain.training.grounder.learner import CLIPS, SCHEDULES, Learner
from phrasechain.training.grounder.steps import BatchPart, ProcessBatches, Steps
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


def learner_of(share: ProcessBatches, *settings: str, steps: int = 10) -> Learner:
    config: Config = tiny_config(*EXACT, *settings)
    torch.manual_seed(0)
    examples = [group[0][0] for group in share.steps.groups]
    assert isinstance(share.regions, FeatureStore)
    model = build_model(config, examples, share.regions).train()
    return Learner(model, config.train, config.loss, steps, start_processes("cpu"))


def by_hand(share: ProcessBatches, steps: int, clip: float, *settings: str) -> dict[str, torch.Tensor]:
    """The weights after some steps of one process on whole batches."""
    learner = learner_of(share, *settings)
    optimizer = torch.optim.AdamW(learner.weights, lr=0.01, weight_decay=0.01)
    for step in range(steps):
        ((batch, targets),) = parts_of(share, step)
        terms = training_loss(learner.model.member_scores, batch, targets)
        loss = terms.grounding / terms.count + 10 * terms.boxes / terms.pairs
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        largest = max(float(weight.grad.abs().max()) for weight in learner.weights if weight.grad is not None)
        for weight in learner.weights:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad * min(1, clip / largest)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * SCHEDULES["one_cycle"]((step + 0.5) / 10, 0.1)
        optimizer.step()
    return {name: weight.detach() for name, weight in learner.named.items()}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("clip", [10.0, 0.05])
def test_steps_are_those_of_the_formula(share: ProcessBatches, parts: int, clip: float) -> None:
    learner = learner_of(share, f"train.clip={clip}")
    for step in range(3):
        learner.learn(parts_of(share, step, parts))
    wanted = by_hand(share, 3, clip)
    for name, weight in learner.named.items():
        if name not in ("pairs.heads.bias", "transition.out.bias"):  # see assert_close of tiny_grounding
            torch.testing.assert_close(weight.detach(), wanted[name], rtol=0, atol=1e-5)


def test_figures_are_those_of_the_whole_step(share: ProcessBatches) -> None:
    """Sums over all parts divided by all counts, whatever the parts."""
    whole, parts = (learner_of(share).learn(parts_of(share, 0, parts)) for parts in (1, 4))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert whole["loss"] == pytest.approx(whole["grounding"] + 10 * whole["boxes"])
    assert whole["phrases"] == sum(len(batch.spans) for batch, _ in parts_of(share, 0))


def test_both_opinions_learn_each_from_its_own_loss(share: ProcessBatches) -> None:
    learner = learner_of(share, "model.bag=0.3")
    ((batch, targets),) = parts_of(share, 0)
    chain, bag = learner.model.member_scores(batch)
    first, second = (terms_of(scores, batch, targets) for scores in (chain, bag))
    expected = (first.grounding + second.grounding) / first.count
    before = {name: weight.detach().clone() for name, weight in learner.named.items()}
    assert learner.learn([*parts_of(share, 0)])["grounding"] == pytest.approx(expected.item(), rel=1e-5)
    moved = {name for name, weight in learner.named.items() if not torch.equal(weight, before[name])}
    assert {"bag.ask.weight", "bag.words.attention.weight", "pairs.u.weight"} <= moved


def test_an_empty_share_is_a_step_without_gradient(share: ProcessBatches) -> None:
    learner = learner_of(share, "train.weight_decay=0")
    before = {name: weight.detach().clone() for name, weight in learner.named.items()}
    assert learner.learn([])["loss"] == 0
    assert learner.step == 1
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named.items())


def test_chance_follows_from_seed_and_step(share: ProcessBatches) -> None:
    def losses(seed: int, start: int) -> list[float]:
        learner = learner_of(share, "model.dropout=0.5", "train.rate=0", f"train.seed={seed}")
        learner.step = start
        torch.rand(start + 1)  # what was drawn before does not matter
        return [learner.learn(parts_of(share, 0))["loss"] for _ in range(2)]

    assert losses(0, 0) == losses(0, 0)
    assert losses(0, 0)[1] == losses(0, 1)[0]
    assert len({*losses(0, 0), *losses(1, 0)}) == 4


def test_averaged_weights_follow(share: ProcessBatches) -> None:
    learner = learner_of(share, "train.average=0.3")
    wanted = {name: weight.detach().clone() for name, weight in learner.named.items()}
    for step in range(1, 5):
        learner.learn(parts_of(share, step))
        keep = min(0.3, (1 + step) / (10 + step))
        wanted = {name: keep * wanted[name] + (1 - keep) * weight.detach() for name, weight in learner.named.items()}
    trained = {name: weight.detach().clone() for name, weight in learner.named.items()}
    kept = learner.kept_weights()
    with learner.scored_model() as model:
        assert not model.training
        for name, weight in model.named_parameters():
            torch.testing.assert_close(weight.detach(), wanted[name], rtol=0, atol=1e-6)
            assert torch.equal(weight, kept[name])
    assert learner.model.training
    assert all(torch.equal(weight, trained[name]) for name, weight in learner.named.items())


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_a_state_is_all_there_is(share: ProcessBatches, average: float) -> None:
    first = learner_of(share, f"train.average={average}", "model.dropout=0.2")
    for step in range(3):
        first.learn(parts_of(share, step))
    second = learner_of(share, f"train.average={average}", "model.dropout=0.2")
    copies = [{name: value.clone() for name, value in found.items()} for found in (first.kept_weights(), first.state())]
    second.go_on(3, *copies)
    for learner in (first, second):
        learner.learn(parts_of(share, 3))
    assert all(torch.equal(weight, second.named[name]) for name, weight in first.named.items())
    assert all(torch.equal(value, second.state()[name]) for name, value in first.state().items())


def test_a_step_that_would_ruin_the_weights_is_not_taken(share: ProcessBatches) -> None:
    learner = learner_of(share)
    ((batch, targets),) = parts_of(share, 0)
    before = {name: weight.detach().clone() for name, weight in learner.named.items()}
    broken = replace(targets, gold=torch.full_like(targets.gold, math.nan))
    with pytest.raises(DataError, match="step 1: the loss is not finite"):
        learner.learn([(batch, broken)])
    assert all(torch.equal(weight, before[name]) for name, weight in learner.named.items())
    assert learner.step == 0


def test_the_text_encoder_has_a_rate_of_its_own(share: ProcessBatches) -> None:
    learner = learner_of(share, "train.encoder_rate=0", "train.weight_decay=0")
    before = {name: weight.detach().clone() for name, weight in learner.named.items()}
    learner.learn(parts_of(share, 0))
    changed = {name for name, weight in learner.named.items() if not torch.equal(weight, before[name])}
    assert changed
    assert not any(name.startswith("text.encoder.") for name in changed)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=6), st.floats(0.1, 10))
def test_clips(values: list[float], most: float) -> None:
    largest = max(map(abs, values))
    if largest > most:
        by_norm, by_value = (torch.tensor(values).split([1, len(values) - 1]) for _ in range(2))
        CLIPS["norm"](by_norm, most, largest)
        CLIPS["value"](by_value, most, largest)
        torch.testing.assert_close(torch.cat(by_norm), torch.tensor(values) * most / largest)
        assert torch.cat(by_value).tolist() == pytest.approx([max(-most, min(most, value)) for value in values])


def test_rates() -> None:
    """Of 1,000 steps, 100 up and the rest down."""
    rates = [SCHEDULES["one_cycle"]((step + 0.5) / 1000, 0.1) for step in range(1000)]
    peak = rates.index(max(rates))
    assert peak in (99, 100)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] == pytest.approx(0.005)
    assert rates[549] == pytest.approx(0.5, abs=2e-3)
    assert 0 < rates[-1] < 1e-5
    assert {SCHEDULES["constant"](done, 0.1) for done in (0.0, 0.05, 1.0)} == {1.0}
