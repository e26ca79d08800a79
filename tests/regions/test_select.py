import torch
from torch import Tensor, nn

from phrasechain.regions.select import SelectedBoxes, best_boxes


class Select(nn.Module):
    def forward(self, score: Tensor, boxes: Tensor) -> SelectedBoxes:
        return best_boxes(score, boxes, candidates=40, overlap=0.5, count=15)


def scored_boxes(B: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(B, 60, 2, generator=generator) * 0.6
    boxes = torch.cat((low, low + 0.05 + torch.rand(B, 60, 2, generator=generator) * 0.5), -1)
    return torch.randn(B, 60, generator=generator), boxes


def test_the_best_come_first_and_the_suppressed_fill_up() -> None:
    boxes = torch.tensor([[[0.0, 0, 0.5, 0.5], [0.0, 0, 0.5, 0.49], [0.5, 0.5, 1.2, 1.0], [0.2, 0.8, 0.3, 0.9]]])
    selected = best_boxes(torch.tensor([[0.1, 0.9, 0.3, 0.2]]), boxes, candidates=4, overlap=0.5, count=4)
    assert selected.indices.tolist() == [[1, 2, 3, 0]]
    assert selected.kept.tolist() == [[True, True, True, False]]
    assert torch.equal(selected.boxes[0, 1], torch.tensor([0.5, 0.5, 1.0, 1.0]))  # cut at the border


def test_only_the_candidates_are_looked_at() -> None:
    score, boxes = scored_boxes(2, 0)
    selected = best_boxes(score, boxes, candidates=5, overlap=1.0, count=100)
    assert torch.equal(selected.indices, score.topk(5).indices)


def test_exports_with_an_open_batch() -> None:
    batch = torch.export.Dim("B", min=2)
    program = torch.export.export(Select(), scored_boxes(3, 0), dynamic_shapes=({0: batch}, {0: batch}))
    for seed in range(3):
        inputs = scored_boxes(5, seed)
        for found, expected in zip(program.module()(*inputs), Select()(*inputs), strict=True):
            assert torch.equal(found, expected)
