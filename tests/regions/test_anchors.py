import torch

from phrasechain.regions.anchors import anchor_grid, cluster_sides


def test_anchors_lie_around_the_centres_row_by_row() -> None:
    grid = anchor_grid(torch.tensor([[0.5, 0.5], [1.0, 0.25]]), 2)
    assert grid.shape == (8, 4)
    torch.testing.assert_close(grid[0], torch.tensor([0.0, 0.0, 0.5, 0.5]))
    torch.testing.assert_close(grid[3], torch.tensor([0.25, 0.125, 1.25, 0.375]))  # the second anchor, one to the right
    torch.testing.assert_close(grid[4], torch.tensor([0.0, 0.5, 0.5, 1.0]))  # the next row


def test_clusters_find_well_separated_shapes() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = torch.tensor([[0.05, 0.05], [0.1, 0.6], [0.6, 0.1], [0.9, 0.9]])
    sides = torch.cat([shape * (1 + 0.05 * torch.randn(200, 2, generator=generator)) for shape in shapes])
    found = cluster_sides(sides[torch.randperm(800, generator=generator)], 4)
    for shape in shapes:
        assert (found - shape).abs().sum(-1).min() < 0.02


def test_clusters_come_small_first_and_need_no_random_numbers() -> None:
    sides = torch.rand(500, 2, generator=torch.Generator().manual_seed(1)).clamp_min(0.01)
    found = cluster_sides(sides, 6)
    assert torch.equal(found, cluster_sides(sides, 6))
    assert torch.equal(found.prod(-1), found.prod(-1).sort().values)


def test_clusters_beat_even_squares() -> None:
    """The mean overlap of a box with its best anchor is what k-means raises."""
    generator = torch.Generator().manual_seed(2)
    sides = torch.rand(1000, 2, generator=generator) ** 2 + 0.02

    def mean_overlap(anchors: torch.Tensor) -> float:
        common = torch.minimum(sides[:, None], anchors).prod(-1)
        return float((common / (sides.prod(-1)[:, None] + anchors.prod(-1) - common)).max(-1).values.mean())

    squares = torch.linspace(0.1, 1, 9)[:, None].expand(-1, 2)
    assert mean_overlap(cluster_sides(sides, 9)) > mean_overlap(squares) + 0.05
