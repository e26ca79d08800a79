"""Ema of a module's weights while it learns: they often generalise better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """A copy of a module's state that follows it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.values = _copied(module)

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Let what the module holds now count ``share`` of the averages, and what they were the rest."""
        for name, value in self.module.state_dict().items():
            average = self.values[name]
            average.copy_(average.lerp(value, share) if value.is_floating_point() else value)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the module holds the averages; afterwards its own state again."""
        learnt = _copied(self.module)
        self.module.load_state_dict(self.values)
        try:
            yield
        finally:
            self.module.load_state_dict(learnt)

    def load(self, values: Mapping[str, Tensor]) -> None:
        """Take up averages that were kept."""
        for name, value in self.values.items():
            value.copy_(values[name])


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
