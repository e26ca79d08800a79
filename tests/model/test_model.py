"""The whole model: what depends on what, its first weights, and that it can learn."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from phrasechain.core.errors import DataError
from phrasechain.model.batch import Batch, keep_phrases
from phrasechain.model.decode import decode
from phrasechain.model.losses import training_loss
from phrasechain.model.model import GroundingModel
from phrasechain.model.targets import Targets
from phrasechain.model.transitions import TRANSITIONS, PaperTransition
from phrasechain.text.words import WordEncoder
from tiny_batches import NOUNS, terms_of, tiny_batch, tiny_example

WORDS = sorted({word for noun in NOUNS for word in noun.split()} | {"and"})


def make_model(**values: Any) -> GroundingModel:
    torch.manual_seed(0)
    sizes = {"lstm": 5, "rank": 6, "joint": 7, "transition_hidden": 3, "dropout": 0.0}
    return GroundingModel(WordEncoder(WORDS, 8), 4, **(sizes | values))


@pytest.mark.parametrize("transition", ["paper", "geometric"])
@pytest.mark.parametrize("context", ["none", "M", "M+LR", "M+LR+G"])
def test_a_caption_has_the_same_scores_alone_and_among_others(transition: str, context: str) -> None:
    batch = tiny_batch(1)
    model = make_model(transition=transition, context=context)
    if transition == "geometric":
        torch.nn.init.ones_(model.transition.strength)  # type: ignore[union-attr, arg-type]
    scores = model(batch)
    assert scores.offsets is not None
    assert scores.transitions is not None
    for caption in range(len(batch.lengths)):
        rows = batch.phrase_caption == caption
        alone = model(keep_phrases(batch, rows))
        mask, steps = batch.label_mask[caption], int(batch.lengths[caption]) - 1
        torch.testing.assert_close(alone.emissions[:, mask], scores.emissions[rows][:, mask])
        torch.testing.assert_close(alone.offsets[:, mask], scores.offsets[rows][:, mask])
        first, second = (
            found[:steps, mask][:, :, mask] for found in (alone.transitions[0], scores.transitions[caption])
        )
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("transition", ["paper", "geometric"])
@pytest.mark.parametrize("context", ["none", "M"])
def test_skips_are_those_of_the_caption_alone(transition: str, context: str) -> None:
    batch = tiny_batch(1)
    model = make_model(transition=transition, context=context, second_order=True, ensemble=2)
    for part in (model.skip, model.others[0].skip):
        if transition == "geometric":
            torch.nn.init.ones_(part.strength)  # type: ignore[union-attr, arg-type]
    scores = model(batch)
    assert scores.skips is not None
    for caption, length in enumerate(batch.lengths.tolist()):
        alone = model(keep_phrases(batch, batch.phrase_caption == caption)).skips
        if length < 3:
            assert alone is None
            continue
        mask = batch.label_mask[caption]
        first, second = (found[: length - 2, mask][:, :, mask] for found in (alone[0], scores.skips[caption]))
        torch.testing.assert_close(first, second)
        assert first.abs().max() > 0
    assert batch.lengths.max() >= 3


def test_a_transition_of_neighbours_alone_is_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    class Neighbours(torch.nn.Module):
        def __init__(self, *sizes: int) -> None:
            super().__init__()

        def forward(self, regions: Tensor, phrases: Tensor, context: Tensor, batch: Batch) -> Tensor:
            raise AssertionError

    monkeypatch.setitem(TRANSITIONS, "neighbours", Neighbours)
    with pytest.raises(DataError, match=r"'neighbours' scores neighbours alone; leave model\.second_order false"):
        make_model(transition="neighbours", second_order=True)


def test_a_batch_of_images_that_share_nothing_else() -> None:
    """What the padding of an image holds, or its neighbours in the batch, is never seen."""
    batch = tiny_batch(2)
    model = make_model(normalise="standardise")
    model.region_input.fit([batch.features[batch.region_mask]])
    junk = batch.features.masked_fill(~batch.region_mask[..., None], torch.nan)
    first, second = model(batch), model(replace(batch, features=junk))
    assert torch.equal(first.emissions, second.emissions)
    assert torch.equal(first.transitions, second.transitions)


def test_the_bag_of_words_is_added_to_the_emissions_alone() -> None:
    batch = tiny_batch(1)
    model = make_model(bag_of_words=0.3)
    chain, bag = model.member_scores(batch)
    assert (bag.offsets, bag.transitions) == (None, None)
    both = model(batch)
    torch.testing.assert_close(both.emissions, chain.emissions + 0.3 * bag.emissions)
    assert torch.equal(both.offsets, chain.offsets)
    assert torch.equal(both.transitions, chain.transitions)
    assert len(make_model().member_scores(batch)) == 1


def test_an_ensemble_is_averaged_and_shares_words_alone() -> None:
    batch, targets = tiny_example(1)
    model = make_model(bag_of_words=0.3, ensemble=3)
    *members, bag = model.member_scores(batch)
    assert len(members) == 3
    assert not torch.equal(members[0].emissions, members[1].emissions)
    both = model(batch)
    mean = (members[0].emissions + members[1].emissions + members[2].emissions) / 3
    torch.testing.assert_close(both.emissions, mean + 0.3 * bag.emissions)
    for name in ("offsets", "transitions"):
        parts = [getattr(member, name).double() for member in members]
        torch.testing.assert_close(getattr(both, name).double(), sum(parts) / 3, atol=1e-6, rtol=1e-5)
    terms = terms_of(members[2], batch, targets)
    (terms.grounding + terms.boxes).backward()  # type: ignore[no-untyped-call]
    learns = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert {name.split(".")[0] for name in learns} == {"text", "others"}
    assert all(name.startswith(("text.encoder.", "others.1.")) for name in learns)


def test_every_member_of_an_ensemble_learns_boxes() -> None:
    batch, targets = tiny_example(1)
    first, second = make_model(ensemble=2).member_scores(batch)
    alone = [terms_of(each, batch, targets) for each in (first, second)]
    both = terms_of([first, second], batch, targets)
    torch.testing.assert_close(both.boxes, alone[0].boxes + alone[1].boxes)
    torch.testing.assert_close(both.grounding, alone[0].grounding + alone[1].grounding)
    assert int(both.pairs) == int(alone[0].pairs)


def test_the_bag_of_words_learns_from_its_own_loss() -> None:
    batch, targets = tiny_example(1)
    model = make_model(bag_of_words=0.3)
    _, bag = model.member_scores(batch)
    terms_of(bag, batch, targets).grounding.backward()  # type: ignore[no-untyped-call]
    learns = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert {"bag.ask.weight", "bag.words.attention.weight"} <= learns
    assert not any(name.startswith(("pairs.", "transition.", "text.lstm.")) for name in learns)


def test_independent_models_have_no_transitions_and_may_have_no_offsets() -> None:
    model = make_model(chain=False, box_regression=False)
    scores = model(tiny_batch(0))
    assert (scores.offsets, scores.transitions, model.transition) == (None, None, None)
    assert not [name for name, _ in model.named_parameters() if name.startswith("transition")]


def test_unpacked_reads_the_padding() -> None:
    batch = tiny_batch(1)
    shortest = min(range(5), key=lambda caption: len(batch.tokens[caption]))
    alone = keep_phrases(batch, batch.phrase_caption == shortest)
    for packed in (True, False):
        model = make_model(packed=packed, init="default")  # without biases, padding of zeros changes nothing
        rows = model(batch).emissions[batch.phrase_caption == shortest]
        mask = batch.label_mask[shortest]
        assert torch.allclose(rows[:, mask], model(alone).emissions[:, mask], atol=1e-5) == packed


def test_xavier_is_within_its_bounds_and_default_is_torchs() -> None:
    model = make_model(lstm=20, rank=30, joint=40)
    bounds: dict[str, tuple[Tensor, int, int]] = {
        "u": (model.pairs.u.weight, 40, 30),
        "v": (model.pairs.v.weight, 9, 30),
        "p": (model.pairs.p.weight, 30, 40),
        "input gate": (model.text.lstm.weight_ih_l0[:20], 8, 20),
        "state gate": (model.text.lstm.weight_hh_l0_reverse[60:], 20, 20),
    }
    for name, (weight, inputs, outputs) in bounds.items():
        bound = (6 / (inputs + outputs)) ** 0.5
        assert 0.9 * bound < weight.abs().max() <= bound, name
    assert all((bias == 0).all() for name, bias in model.named_parameters() if "bias" in name)
    default = make_model(init="default")
    assert default.pairs.p.bias.abs().max() > 0
    assert default.pairs.p.weight.abs().max() <= 6**-0.5  # uniform within 1 / √inputs


@pytest.mark.parametrize("context", ["none", "M", "M+LR"])
@pytest.mark.parametrize("transition", ["paper", "geometric"])
def test_the_paper_has_one_bound_for_the_first_layer_of_transitions(transition: str, context: str) -> None:
    """Xavier of a layer on [r ; r' ; ctx] is by all its inputs, and not by those of each part."""
    model = make_model(lstm=20, transition=transition, transition_hidden=50, context=context, init="paper", ensemble=2)
    parts = {"none": 0, "M": 1, "M+LR": 3}[context]
    bound = (6 / (2 * 9 + parts * 40 + 50)) ** 0.5
    found = [part for part in model.modules() if isinstance(part, PaperTransition)]
    assert len(found) == 2
    for one in found:
        layers = [one.a, one.b, *([] if one.c is None else [one.c])]
        assert len(layers) == (3 if parts else 2)
        for layer in layers:
            assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert (one.a.bias == 0).all()


@pytest.mark.parametrize("transition", ["paper", "geometric"])
def test_every_weight_has_a_gradient_even_where_no_phrase_has_a_neighbour(transition: str) -> None:
    batch, targets = tiny_example(3, most_phrases=1)
    model = make_model(transition=transition)
    terms = training_loss(model.member_scores, batch, targets)
    (terms.grounding + terms.boxes).backward()
    absent = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert [name for name in absent if not name.startswith("text.encoder")] == []


@pytest.mark.parametrize(
    "values", [{"chain": False}, {"transition": "paper"}, {"transition": "geometric"}, {"second_order": True}], ids=str
)
def test_a_few_steps_learn_a_few_captions(values: dict[str, Any]) -> None:
    batch, targets = tiny_example(4, captions=4)
    model = make_model(lstm=16, rank=24, joint=24, dropout=0.1, **values)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        terms = training_loss(model.member_scores, batch, targets)
        loss = terms.grounding / terms.count + terms.boxes / terms.pairs
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    decoded = decode(model.eval()(batch), batch)
    assert right(targets, decoded.region)
    assert loss.item() < 0.5


def right(targets: Targets, region: Tensor) -> bool:
    return bool((targets.iou.gather(1, region[:, None]) >= 0.5).all())


@pytest.mark.parametrize("transition", ["paper", "geometric"])
def test_autocast_gives_scores_in_float32_near_those_without(transition: str) -> None:
    batch, targets = tiny_example(1)
    model = make_model(transition=transition)
    if transition == "geometric":
        torch.nn.init.ones_(model.transition.strength)  # type: ignore[union-attr, arg-type]
    scores = model(batch)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = model(batch)
    assert coarse.emissions.dtype == coarse.transitions.dtype == torch.float32
    torch.testing.assert_close(coarse.emissions, scores.emissions, rtol=0.1, atol=0.1)
    torch.testing.assert_close(coarse.transitions, scores.transitions, rtol=0.1, atol=0.1)
    terms_of(coarse, batch, targets).grounding.backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in model.parameters())


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match="no transition named 'papre'; there are: paper, geometric"):
        make_model(transition="papre")
    with pytest.raises(DataError, match="no initialisation named 'he'; there are: xavier, default"):
        make_model(init="he")
    with pytest.raises(DataError, match="no context named 'LR'"):
        make_model(context="LR")
