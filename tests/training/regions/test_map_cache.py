"""Kept maps against the trunk itself, and files that are there already."""

from pathlib import Path

import pytest
import torch

from phrasechain.regions.extractor import as_input
from phrasechain.regions.pixels import read_photo
from phrasechain.regions.trunk import Trunk
from phrasechain.training.regions.map_cache import keep_maps, kept_maps
from tiny_regions import SIZE, write_photo


@pytest.fixture(scope="module")
def trunk() -> Trunk:
    torch.manual_seed(0)
    return Trunk().eval()


@torch.no_grad()
def test_what_is_kept_is_what_the_trunk_makes_in_half_precision(trunk: Trunk, tmp_path: Path) -> None:
    """Of 18 photos, in two files, and of their mirror images."""
    photos = [write_photo(tmp_path / f"{number}.png", number) for number in range(18)]
    keep_maps(tmp_path / "maps", trunk, photos, SIZE)
    views = [(17, False), (3, True), (3, False)]
    found = kept_maps(tmp_path / "maps", views)
    for row, (number, mirrored) in enumerate(views):
        pixels = as_input(torch.from_numpy(read_photo(photos[number], SIZE).pixels)[None])
        for level, expected in zip(found, trunk(pixels.flip(3) if mirrored else pixels), strict=True):
            torch.testing.assert_close(level[row].float(), expected[0], atol=1e-3, rtol=1e-3)


def test_files_that_are_there_stay_and_missing_ones_are_made(trunk: Trunk, tmp_path: Path) -> None:
    photos = [write_photo(tmp_path / f"{number}.png", number) for number in range(18)]
    keep_maps(tmp_path / "maps", trunk, photos, SIZE)
    first, second = sorted((tmp_path / "maps").iterdir())
    before, content = first.stat().st_mtime_ns, second.read_bytes()
    second.unlink()
    keep_maps(tmp_path / "maps", trunk, photos, SIZE)
    assert first.stat().st_mtime_ns == before
    assert second.read_bytes() == content
