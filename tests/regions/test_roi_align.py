"""Pooling against torch's own bilinear sampling, and against integrals that are known."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from phrasechain.regions.roi_align import SAMPLES, roi_align


def sampled(maps: Tensor, box: Tensor, cells: int) -> Tensor:
    """The same by ``grid_sample``: (C, H, W) and (4,) to (cells, cells, C)."""
    count = cells * SAMPLES
    steps = (torch.arange(count, dtype=box.dtype) + 0.5) / count
    x, y = box[0] + (box[2] - box[0]) * steps, box[1] + (box[3] - box[1]) * steps
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1) * 2 - 1
    values = F.grid_sample(maps[None], grid[None], "bilinear", "border", align_corners=False)
    return F.avg_pool2d(values, SAMPLES)[0].permute(1, 2, 0)


share = st.floats(0, 1, width=32)


@given(st.lists(st.tuples(share, share, share, share), min_size=1, max_size=4), st.sampled_from([1, 2, 5]))
def test_equals_bilinear_sampling(corners: list[tuple[float, ...]], cells: int) -> None:
    maps = torch.randn(2, 3, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    boxes = torch.tensor(corners, dtype=torch.float64).view(1, -1, 2, 2).sort(2).values.flatten(2)
    boxes = boxes.expand(2, -1, -1)
    pooled = roi_align(maps, boxes, cells)
    for image in range(2):
        for place in range(boxes.shape[1]):
            torch.testing.assert_close(pooled[image, place], sampled(maps[image], boxes[image, place], cells))


def test_a_slope_is_pooled_to_its_value_at_the_centres() -> None:
    """On a map that rises along x, a cell away from the border holds the value at its middle."""
    slope = (torch.arange(8.0) + 0.5).div(8).expand(1, 1, 8, 8)
    pooled = roi_align(slope, torch.tensor([[[0.25, 0.1, 0.75, 0.9]]]), 2)
    torch.testing.assert_close(pooled[0, 0, :, :, 0], torch.tensor([[0.375, 0.625], [0.375, 0.625]]))


def test_gradients_reach_map_and_boxes() -> None:
    maps = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[[0.13, 0.21, 0.71, 0.83]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, b: roi_align(m, b, 2), (maps, boxes))
