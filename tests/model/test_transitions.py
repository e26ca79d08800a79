"""Transitions against loops over pairs of regions in float64, their gradients, and the geometry of pairs by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from phrasechain.model import transitions
from phrasechain.model.batch import Batch, keep_phrases
from phrasechain.model.scores import RegionInput
from phrasechain.model.transitions import (
    TRANSITIONS,
    Edges,
    GeometricTransition,
    PaperTransition,
    pair_features_xyxy,
)
from tiny_batches import tiny_batch

TEXT = 6


@pytest.fixture
def batch() -> Batch:
    return tiny_batch(1)


def inputs(batch: Batch, context: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Regions (N, 9), phrases (P, 6) and contexts (B, T-1, c)."""
    torch.manual_seed(1)
    phrases = torch.randn(len(batch.spans), TEXT).double()
    hints = torch.randn(len(batch.lengths), batch.steps - 1, context).double() if context else None
    return RegionInput(4)(batch).double(), phrases, hints


def edges_of(batch: Batch) -> list[tuple[int, int, int, int]]:
    """Caption, step, image and place of the left phrase of every edge, by loops."""
    found, place = [], 0
    for caption, length in enumerate(batch.lengths.tolist()):
        found += [(caption, step, int(batch.caption_image[caption]), place + step) for step in range(length - 1)]
        place += length
    return found


def region_vectors(batch: Batch, image: int) -> Tensor:
    return torch.cat([batch.features[image].float(), batch.spatial[image]], -1)[batch.region_mask[image]].double()


def two_layers(module: PaperTransition, first: Tensor, second: Tensor, hint: Tensor | None) -> Tensor:
    """The paper's network on the concatenation [r_k ; r_k' ; ctx]."""
    parts = [first, second] + ([] if hint is None else [hint])
    weights = [module.a.weight, module.b.weight] + ([] if module.c is None else [module.c.weight])
    hidden = torch.cat(weights, 1) @ torch.cat(parts) + module.a.bias
    return (module.out.weight @ hidden.clamp(min=0) + module.out.bias)[0]


def test_edges_are_the_neighbouring_phrases(batch: Batch) -> None:
    edges = Edges.of(batch)
    found = zip(edges.caption.tolist(), edges.step.tolist(), edges.image.tolist(), edges.left.tolist(), strict=True)
    assert list(found) == edges_of(batch)
    assert len(edges.left) == len(batch.spans) - len(batch.lengths)
    rows = torch.arange(1.0, len(edges.left) + 1)
    chains = edges.to_chains(rows, batch)
    assert chains.shape == (5, batch.steps - 1)
    assert [chains[caption, step].item() for caption, step, _, _ in edges_of(batch)] == rows.tolist()
    assert (chains != 0).sum() == len(rows)


def test_edges_reach_over_a_phrase(batch: Batch) -> None:
    edges = Edges.of(batch, distance=2)
    ends = {(caption, step) for caption, step, _, _ in edges_of(batch)}
    expected = [each for each in edges_of(batch) if (each[0], each[1] + 1) in ends]
    found = zip(edges.caption.tolist(), edges.step.tolist(), edges.image.tolist(), edges.left.tolist(), strict=True)
    assert expected
    assert list(found) == expected
    assert torch.equal(edges.right, edges.left + 2)
    assert edges.to_chains(torch.ones(len(edges.left)), batch).shape == (5, batch.steps - 2)


@pytest.mark.parametrize("name", ["paper", "geometric"])
def test_a_skip_is_the_transition_of_captions_without_the_phrases_between(batch: Batch, name: str) -> None:
    """The same module on a caption of phrases t-2 and t alone gives the same scores."""
    torch.manual_seed(0)
    module = TRANSITIONS[name](9, TEXT, 3, 2).double()
    for weight in module.parameters():
        nn.init.normal_(weight)
    regions, phrases, _ = inputs(batch, 3)
    edges = Edges.of(batch, distance=2)
    hints = torch.randn(len(batch.lengths), batch.steps - 2, 3).double()
    found = module(regions, phrases, hints, batch, edges=edges)
    for row, (left, right) in enumerate(zip(edges.left.tolist(), edges.right.tolist(), strict=True)):
        keep = torch.zeros(len(phrases), dtype=torch.bool)
        keep[[left, right]] = True
        pair = keep_phrases(batch, keep)
        caption, step = int(edges.caption[row]), int(edges.step[row])
        scored = module(regions, phrases[keep], hints[[caption], step, None], pair)
        K = pair.region_mask.shape[1]
        torch.testing.assert_close(scored[0, 0], found[caption, step, :K, :K])


@pytest.mark.parametrize("context", [0, 3])
def test_the_papers_transition_is_its_network_on_the_concatenation(batch: Batch, context: int) -> None:
    torch.manual_seed(0)
    module = PaperTransition(9, TEXT, context, hidden=5).double()
    regions, phrases, hints = inputs(batch, context)
    found = module(regions, phrases, hints, batch)
    K = batch.region_mask.shape[1]
    assert found.shape == (5, batch.steps - 1 if context else 1, K, K)
    for caption, step, image, _ in edges_of(batch):
        rows, scores = region_vectors(batch, image), found[caption, step if context else 0]
        hint = None if hints is None else hints[caption, step]
        for k, first in enumerate(rows):
            for other, second in enumerate(rows):
                torch.testing.assert_close(scores[k, other], two_layers(module, first, second, hint))


def test_the_geometric_transition_adds_gated_shapes_and_contents(batch: Batch) -> None:
    torch.manual_seed(0)
    module = GeometricTransition(9, TEXT, 3, hidden=2).double()
    regions, phrases, hints = inputs(batch, 3)
    assert hints is not None
    before = module(regions, phrases, hints, batch)
    assert torch.equal(before, module.paper(regions, phrases, hints, batch))  # what training sets out from
    nn.init.constant_(module.strength, 0.7)
    found = module(regions, phrases, hints, batch)
    for caption, step, image, left in edges_of(batch):
        gates = module.gates(torch.cat([phrases[left], phrases[left + 1], hints[caption, step]]))
        rows = region_vectors(batch, image)
        shapes = pair_features_xyxy(batch.boxes, batch.sizes)[image].double()
        for k, first in enumerate(rows):
            for other, second in enumerate(rows):
                of_shape = gates[:4] @ (module.shapes.weight @ shapes[k, other] + module.shapes.bias).clamp(min=0)
                of_content = (gates[4:] * module.before(first) * module.after(second)).sum()
                expected = before[caption, step, k, other] + 0.7 * (of_shape + of_content)
                torch.testing.assert_close(found[caption, step, k, other], expected)


@pytest.mark.parametrize("context", [0, 3])
@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_batch_of_single_phrases_has_no_edges_but_gradients(name: str, context: int) -> None:
    batch = tiny_batch(3, most_phrases=1)
    assert batch.steps == 1
    module = TRANSITIONS[name](9, TEXT, context).double()
    found = module(*inputs(batch, context), batch)
    found.sum().backward()
    assert all(each.grad is not None for each in module.parameters())


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that is made within it."""

    numel = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        self.numel = max([self.numel, *(each.numel() for each in tree_leaves(result) if isinstance(each, Tensor))])
        return result


@pytest.mark.parametrize("name", TRANSITIONS)
def test_nothing_larger_than_the_result_is_made(name: str) -> None:
    batch = tiny_batch(1, captions=12, regions=(30, 30))
    module = TRANSITIONS[name](9, TEXT, 3, hidden=16).double()
    given = inputs(batch, 3)
    with Largest() as largest:
        found = module(*given, batch)
        found.sum().backward()
    assert largest.numel <= found.numel()  # (B, T-1, K, K): the hidden units would take 16 times as much


def test_the_geometry_of_a_pair_by_hand() -> None:
    boxes = torch.tensor([[[0.0, 0, 10, 20], [5.0, 10, 25, 20]]])
    features = pair_features_xyxy(boxes, torch.tensor([[100.0, 50.0]]))
    assert features.shape == (1, 2, 2, transitions.PAIR_FEATURES)
    assert features[0, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    way = [math.asinh(1.0), math.asinh(0.25), 0.1, 0.1]  # 10 to the right, 5 down
    shares = [50 / 350, 50 / 200, 50 / 200]
    assert features[0, 0, 1].tolist() == pytest.approx([*way, math.log(2), math.log(0.5), *shares, 0], rel=1e-5)
    back = [math.asinh(-0.5), math.asinh(-0.5), -0.1, -0.1]
    assert features[0, 1, 0].tolist() == pytest.approx([*back, math.log(0.5), math.log(2), *shares, 0], rel=1e-5)


def test_the_geometry_of_padding_is_finite() -> None:
    features = pair_features_xyxy(torch.tensor([[[0.0, 0, 10, 20], [0.0, 0, 0, 0]]]), torch.tensor([[100.0, 50.0]]))
    assert features.isfinite().all()
