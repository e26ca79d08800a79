"""One step of training: losses of all processes' captions, their gradient, and what the optimiser makes of it.

A learner's state is its weights, the optimiser's moments and the number of steps done. What rng decides in a step
(dropout) follows from the seed, the step and the process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from phrasechain.core.distributed import sum_gradients
from phrasechain.core.errors import DataError
from phrasechain.model.batch import Batch, require_finite
from phrasechain.model.config import Loss, Train
from phrasechain.model.losses import loss_counts, training_loss
from phrasechain.model.model import GroundingModel
from phrasechain.model.scores import Scores
from phrasechain.model.targets import Targets
from phrasechain.text.cache import CachedEncoder
from phrasechain.training.grounder.steps import BatchPart

if TYPE_CHECKING:
    from accelerate import Accelerator

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
PRECISIONS = ("float32", "bf16")
_MOMENTS = ("exp_avg", "exp_avg_sq")


def one_cycle(done: float, warm_up: float) -> float:
    """Up in a straight line during the share ``warm_up`` of the steps, then down to 0 along a cosine."""
    if done < warm_up:
        return done / warm_up
    return (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up))) / 2 if warm_up < 1 else 1.0


def constant(done: float, warm_up: float) -> float:
    return 1.0


#: The rate as a share of its peak, from the share of the steps that is done.
SCHEDULES: dict[str, Callable[[float, float], float]] = {"one_cycle": one_cycle, "constant": constant}


def clip_norm(gradients: Sequence[Tensor], most: float, largest: float) -> None:
    """Scale the whole gradient so that no element is larger than ``most`` (the paper: by its ∞-norm)."""
    for gradient in gradients:
        gradient.mul_(most / largest)


def clip_value(gradients: Sequence[Tensor], most: float, largest: float) -> None:
    """Cut each element of the gradient by itself (the authors' code)."""
    for gradient in gradients:
        gradient.clamp_(-most, most)


#: What is done to gradients whose ``largest`` element is larger than ``most``.
CLIPS: dict[str, Callable[[Sequence[Tensor], float, float], None]] = {"norm": clip_norm, "value": clip_value}


class Learner:
    """A model in training."""

    def __init__(self, model: GroundingModel, how: Train, loss: Loss, steps: int, processes: Accelerator) -> None:
        self.model, self.how, self.loss, self.steps, self.processes = model, how, loss, steps, processes
        self.named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.weights = list(self.named.values())
        self.optimizer = self._optimizer()
        self.averaged = {name: weight.detach().clone() for name, weight in self.named.items()} if how.average else None
        self.step = 0

    def _optimizer(self) -> torch.optim.Adam:
        how = self.how
        text = {id(weight) for weight in self.model.text.encoder.parameters()}
        groups: list[dict[str, Any]] = [
            {"params": [weight for weight in self.weights if (id(weight) in text) == is_text], "share": share}
            for is_text, share in ((False, 1.0), (True, how.encoder_rate))
        ]
        return OPTIMIZERS[how.optimizer](
            [group for group in groups if group["params"]],
            lr=how.rate,
            betas=(how.beta1, how.beta2),
            weight_decay=how.weight_decay,
            fused=True,
        )

    def learn(self, parts: Sequence[BatchPart]) -> dict[str, float]:
        """One step on this process's parts of it; returns the losses of all processes together, by name.

        Each loss is a sum over phrases or pairs divided by their number in the whole step, over all processes and
        parts. The number is known before the first gradient is taken, so gradients only need to be added up.
        """
        self._seed()
        rate = self._set_rate()
        counts = torch.zeros(3, dtype=torch.int64) + sum(self._counts(*part) for part in parts)
        counts = self.processes.reduce(counts.to(self.processes.device), "sum")
        divisors, phrases = counts[:2].clamp(min=1), int(counts[2])
        self.optimizer.zero_grad()
        sums = torch.zeros(2, device=self.processes.device)
        for batch, targets in parts:
            sums += self._backward(batch.to(self.processes.device), targets.to(self.processes.device), divisors)
        sums = sum_gradients(self.weights, sums, self.processes)
        self._clip(sums, [batch for batch, _ in parts])
        self.optimizer.step()
        self.step += 1
        self._follow()
        grounding, boxes = (sums / divisors).tolist()
        loss = grounding + self.loss.gamma * boxes
        return {"loss": loss, "grounding": grounding, "boxes": boxes, "rate": rate, "phrases": phrases}

    def _seed(self) -> None:
        words = np.random.SeedSequence([self.how.seed, self.step, self.processes.process_index])
        torch.manual_seed(int(words.generate_state(1)[0]))

    def _set_rate(self) -> float:
        """The learning rate is a function of the step's number alone."""
        rate = self.how.rate * SCHEDULES[self.how.schedule]((self.step + 0.5) / self.steps, self.how.warm_up)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        return rate

    def _counts(self, batch: Batch, targets: Targets) -> Tensor:
        loss = self.loss
        return loss_counts(batch, targets, unlabelled=loss.unlabelled, divide=loss.divide, regress=loss.regress)

    def _member_scores(self, batch: Batch) -> list[Scores]:
        with torch.autocast(self.processes.device.type, torch.bfloat16, enabled=self.how.precision == "bf16"):
            return self.model.member_scores(batch)

    def _backward(self, batch: Batch, targets: Targets, divisors: Tensor) -> Tensor:
        """Add the gradient of one part's losses; returns their sums, (2,)."""
        loss = self.loss
        terms = training_loss(
            self._member_scores,
            batch,
            targets,
            kind=loss.targets,
            unlabelled=loss.unlabelled,
            divide=loss.divide,
            regress=loss.regress,
            offsets=loss.offsets,
            least_side=loss.least_side,
        )
        total = terms.grounding / divisors[0] + loss.gamma * terms.boxes / divisors[1]
        total.backward()  # type: ignore[no-untyped-call]
        return torch.stack([terms.grounding.detach(), terms.boxes.detach()])

    def _clip(self, sums: Tensor, batches: Sequence[Batch]) -> None:
        """Clip what is too large, and stop before a step that would ruin the weights."""
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        largest = float(nn.utils.get_total_norm(gradients, math.inf))
        if not (math.isfinite(largest) and bool(sums.isfinite().all())):
            require_finite(batches)
            raise DataError(f"step {self.step + 1}: the loss is not finite; lower train.rate, or look at the features")
        if 0 < self.how.clip < largest:
            CLIPS[self.how.clip_by](gradients, self.how.clip, largest)

    def _follow(self) -> None:
        """Let the averaged weights follow, closely at first."""
        if self.averaged is not None:
            keep = min(self.how.average, (1 + self.step) / (10 + self.step))
            with torch.no_grad():
                for average, weight in zip(self.averaged.values(), self.weights, strict=True):
                    average.lerp_(weight, 1 - keep)

    def kept_weights(self) -> dict[str, Tensor]:
        """The state of the model to keep and to score: with averaged weights, where there are such."""
        return dict(self.model.state_dict()) | (self.averaged or {})

    def forget(self) -> None:
        """Let a text encoder that carries its state from batch to batch begin anew, as it would after a pause."""
        if callable(reset := getattr(self.model.text.encoder, "reset", None)):
            reset()

    def keep_text(self) -> None:
        """Write the vectors of captions that a cache has gathered, so that no run computes them again."""
        if isinstance(cache := self.model.text.encoder, CachedEncoder):
            cache.flush()

    @contextmanager
    def scored_model(self) -> Iterator[GroundingModel]:
        """The model as it would be kept, for inference; back to training afterwards."""
        trained = {name: weight.detach().clone() for name, weight in self.named.items()} if self.averaged else {}
        self._put(self.averaged or {})
        self.model.eval()
        self.forget()
        try:
            yield self.model
        finally:
            self.forget()
            self.model.train()
            self._put(trained)

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self.named[name].copy_(value)

    def state(self) -> dict[str, Tensor]:
        """The tensors to go on from, besides ``kept_weights``."""
        tensors: dict[str, Tensor] = {}
        if self.averaged:
            tensors = {f"weight.{name}": weight for name, weight in self.named.items()}
        for name, weight in self.named.items():
            moments = self.optimizer.state.get(weight, {})
            tensors |= {f"{kind}.{name}": moments[kind] for kind in _MOMENTS if kind in moments}
        return tensors

    def go_on(self, step: int, kept: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """Take up the state after ``step`` steps."""
        self.step = step
        self.model.load_state_dict(kept)
        if self.averaged is not None:
            self.averaged = {name: kept[name].to(weight) for name, weight in self.named.items()}
            self._put({name: state[f"weight.{name}"] for name in self.named})
        for name, weight in self.named.items():
            moments = {kind: state[f"{kind}.{name}"].to(weight) for kind in _MOMENTS}
            self.optimizer.state[weight] = {"step": torch.tensor(float(step), device=weight.device), **moments}
