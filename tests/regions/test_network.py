import pytest
import torch
from torch import Tensor

from phrasechain.regions.network import CELLS, FeatureMaps, Layer, RegionNetwork, shift, without_norms
from phrasechain.regions.roi_align import roi_align

SIZE = 64


@pytest.fixture(scope="module")
def network() -> RegionNetwork:
    torch.manual_seed(0)
    return RegionNetwork(8, torch.tensor([[[0.1, 0.1], [0.2, 0.3]], [[0.5, 0.5], [0.9, 0.7]]]), SIZE).eval()


def pixels(B: int, seed: int = 0) -> Tensor:
    return torch.rand(B, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def boxes(B: int, K: int) -> Tensor:
    low = torch.rand(B, K, 2, generator=torch.Generator().manual_seed(K)) * 0.5
    return torch.cat((low, low + 0.3), -1)


@torch.no_grad()
def test_photos_of_a_batch_do_not_meet(network: RegionNetwork) -> None:
    together = pixels(3)
    maps, dense = network(together)
    outputs = network.region_head(maps, boxes(3, 5))
    for i in range(3):
        one_maps, one_dense = network(together[i : i + 1])
        alone = network.region_head(one_maps, boxes(3, 5)[i : i + 1])
        for many, one in zip((*dense, *outputs), (*one_dense, *alone), strict=True):
            torch.testing.assert_close(many[i : i + 1], one, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_norms_folded_away_change_nothing(network: RegionNetwork) -> None:
    learnt = RegionNetwork(8, network.sides, SIZE).double()
    rng = torch.Generator().manual_seed(3)
    for layer in learnt.modules():
        if isinstance(layer, Layer):
            for name, tensor in layer.norm.state_dict().items():
                if name != "num_batches_tracked":
                    tensor.copy_(torch.rand(tensor.shape, generator=rng, dtype=torch.float64) + 0.5)
    learnt.eval()
    folded = without_norms(learnt)
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in folded.modules())
    assert any(isinstance(part, torch.nn.BatchNorm2d) for part in learnt.modules())
    for before, after in zip(learnt(pixels(2).double()), folded(pixels(2).double()), strict=True):
        for one, other in zip(before, after, strict=True):
            torch.testing.assert_close(one, other)


@torch.no_grad()
def test_every_anchor_makes_one_candidate_where_it_lies(network: RegionNetwork) -> None:
    """With offsets of nothing, the candidates are the anchors: the fine map's first, row by row."""
    quiet = RegionNetwork(8, network.sides, SIZE).eval()
    for head in quiet.proposal_heads:
        for weight in head.say.parameters():
            weight.zero_()
    _, dense = quiet(pixels(1))
    fine, coarse = (SIZE // 16) ** 2 * 2, (SIZE // 32) ** 2 * 2
    assert dense.boxes.shape == (1, fine + coarse, 4)
    torch.testing.assert_close(dense.boxes[0], quiet.anchors)
    middle = (dense.boxes[0, :, :2] + dense.boxes[0, :, 2:]) / 2
    torch.testing.assert_close(middle[0], torch.tensor([0.125, 0.125]))
    torch.testing.assert_close(middle[fine], torch.tensor([0.25, 0.25]))


@torch.no_grad()
def test_features_are_pooled_from_the_box_alone(network: RegionNetwork) -> None:
    """Changing the maps where a box's samples do not reach leaves its features as they are."""
    maps, _ = network(pixels(1))
    box = torch.tensor([[[0.0, 0.0, 0.4, 0.4]]])
    before = network.region_head(maps, box)
    changed = FeatureMaps(*(each.clone() for each in maps))
    changed.fine[..., 3:, :] = 7
    changed.fine[..., :, 3:] = 7
    assert torch.equal(network.region_head(changed, box).features, before.features)
    changed.fine[..., 0, 0] = 7
    assert not torch.equal(network.region_head(changed, box).features, before.features)
    assert roi_align(maps.fine, box, CELLS).shape == (1, 1, CELLS, CELLS, maps.fine.shape[1])


def test_offsets_move_and_stretch() -> None:
    box = torch.tensor([0.2, 0.2, 0.4, 0.6])
    torch.testing.assert_close(shift(torch.zeros(4), box), box)
    moved = shift(torch.tensor([0.5, -0.25, torch.tensor(2.0).log(), 0.0]), box)
    torch.testing.assert_close(moved, torch.tensor([0.2, 0.1, 0.6, 0.5]))
    assert shift(torch.full((4,), 1e3), box).isfinite().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@torch.no_grad()
def test_exports_with_open_batch_and_regions(network: RegionNetwork) -> None:
    batch, count = torch.export.Dim("B", min=2), torch.export.Dim("K", min=2)
    looking = torch.export.export(network, (pixels(3),), dynamic_shapes=({0: batch},))
    maps, dense = looking.module()(pixels(2, seed=1))
    expected_maps, expected = network(pixels(2, seed=1))
    for found, wanted in zip((*maps, *dense), (*expected_maps, *expected), strict=True):
        torch.testing.assert_close(found, wanted)
    open_maps = FeatureMaps(*({0: batch} for _ in maps))
    shapes = (open_maps, {0: batch, 1: count})
    telling = torch.export.export(network.region_head, (FeatureMaps(*maps), boxes(2, 4)), dynamic_shapes=shapes)
    for found, wanted in zip(
        telling.module()(FeatureMaps(*maps), boxes(2, 7)),
        network.region_head(FeatureMaps(*maps), boxes(2, 7)),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)
