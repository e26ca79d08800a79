"""The trunk's maps of photos and of their mirror images, on disk: made once, as long as the trunk does not learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from phrasechain.core.files import write_atomically
from phrasechain.core.progress import track
from phrasechain.regions.extractor import as_input
from phrasechain.regions.pixels import read_photo

_TOGETHER = 16  # photos in a file
_NAMES = ("c3", "c4", "c5")


@torch.inference_mode()
def keep_maps(folder: Path, trunk: Callable[[Tensor], tuple[Tensor, ...]], photos: Sequence[Path], size: int) -> None:
    """Write the maps of all photos, in files of a few that are there wholly or not at all; what is there stays."""
    folder.mkdir(exist_ok=True)
    missing = [start for start in range(0, len(photos), _TOGETHER) if not _file(folder, start).exists()]
    for start in track(missing, len(missing), "looking at the photos once"):
        tensors: dict[str, list[Tensor]] = {name: [] for name in _NAMES}
        for path in photos[start : start + _TOGETHER]:
            pixels = as_input(torch.from_numpy(read_photo(path, size).pixels)[None])
            for view in (pixels, pixels.flip(3)):
                for name, level in zip(_NAMES, trunk(view), strict=True):
                    tensors[name].append(level.permute(0, 2, 3, 1).half())  # (1, S, S, C)
        write_atomically(_file(folder, start), save({name: torch.cat(maps) for name, maps in tensors.items()}))


def kept_maps(folder: Path, views: Sequence[tuple[int, bool]]) -> tuple[Tensor, ...]:
    """The maps of a batch of photos, by their number and whether they are mirrored: (B, C, S, S) each, float16."""
    batch = []
    for name in _NAMES:
        rows = []
        for number, mirrored in views:
            start = number - number % _TOGETHER
            rows.append(_open(_file(folder, start)).get_slice(name)[2 * (number - start) + mirrored])
        batch.append(torch.stack(rows).permute(0, 3, 1, 2))
    return tuple(batch)


@cache
def _open(path: Path) -> Any:
    return safe_open(path, "pt").__enter__()  # type: ignore[no-untyped-call]


def _file(folder: Path, start: int) -> Path:
    return folder / f"{start:07d}.safetensors"
