"""The training loop, one for every task.

What a step does follows from the seed and the step's number alone: its batch, its random numbers, its learning rates.
So a run that was killed resumes from its last checkpoint and ends as if it had not been, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from phrasechain.core.distributed import Processes, sum_gradients
from phrasechain.core.errors import DataError, one_line
from phrasechain.core.progress import step_progress
from phrasechain.training.log import draw_curves, open_log
from phrasechain.training.run_folder import Checkpoints
from phrasechain.training.task import Part, Plan, Task


def _adam(kind: type[torch.optim.Adam], groups: list[dict[str, Any]], plan: Plan) -> torch.optim.Optimizer:
    return kind(groups, lr=0.0, betas=plan.betas, weight_decay=plan.weight_decay, fused=True)


def _adamax(groups: list[dict[str, Any]], plan: Plan) -> torch.optim.Optimizer:
    return torch.optim.Adamax(groups, lr=0.0, betas=plan.betas, weight_decay=plan.weight_decay)


def _sgd(groups: list[dict[str, Any]], plan: Plan) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.0, momentum=plan.betas[0], weight_decay=plan.weight_decay)


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], Plan], torch.optim.Optimizer]] = {
    "adam": partial(_adam, torch.optim.Adam),
    "adamw": partial(_adam, torch.optim.AdamW),
    "adamax": _adamax,
    "sgd": _sgd,
}
#: What they keep of each weight, in tensors.
_MOMENTS = ("step", "exp_avg", "exp_avg_sq", "exp_inf", "momentum_buffer")
#: Ways to clip gradients, and the norm that is compared with the limit.
CLIPS = {"norm": math.inf, "value": math.inf, "l2": 2.0}


def clip_gradients(gradients: Sequence[Tensor], limit: float, by: str) -> float:
    """Clip gradients in place, and return their norm before that.

    ``norm`` and ``l2`` scale the whole gradient by its ∞-norm (the paper) or 2-norm, ``value`` clamps each element (the
    authors' code). ``limit`` 0 is none.
    """
    norm = float(nn.utils.get_total_norm(gradients, CLIPS[by]))
    if 0 < limit < norm:
        for gradient in gradients:
            gradient.clamp_(-limit, limit) if by == "value" else gradient.mul_(limit / norm)
    return norm


class Trainer(Generic[Part]):
    """A model in training: its weights, the optimiser's moments, their EMA and the number of steps taken."""

    def __init__(self, task: Task[Part], plan: Plan, processes: Processes) -> None:
        self.task, self.plan, self.processes, self.step = task, plan, processes, 0
        groups: list[dict[str, Any]] = [
            {"params": list(group.weights), "rate": group.rate, "start": group.start}
            for group in task.groups()
            if group.weights
        ]
        self.optimizer = OPTIMIZERS[plan.optimizer](groups, plan)
        self.trained = _Trained(task.model, [weight for group in groups for weight in group["params"]])
        self.ema: AveragedModel | None = None
        if (decay := plan.ema) is not None:
            self.ema = AveragedModel(self.trained, avg_fn=_ema_update(decay), use_buffers=True)
            self.ema.update_parameters(self.trained)  # the first one only copies

    def take_step(self, parts: Sequence[Part]) -> dict[str, float]:
        """One step on this process's parts of it; returns losses and counts of the whole step, by name."""
        seed = np.random.SeedSequence([self.plan.seed, self.step, self.processes.process_index])
        torch.manual_seed(int(seed.generate_state(1)[0]))
        weights = self._set_rates()
        counts = self.processes.reduce(self.task.counts(parts).to(self.processes.device), "sum")
        figures = torch.zeros(len(self.task.losses), device=self.processes.device)
        self.optimizer.zero_grad()
        for part in parts:
            losses = self.task.loss(part, counts)
            losses[0].backward()  # type: ignore[no-untyped-call]
            figures += losses.detach()
        figures = sum_gradients(weights, figures, self.processes)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        norm = clip_gradients(gradients, self.plan.clip, self.plan.clip_by)
        if not (math.isfinite(norm) and bool(figures.isfinite().all())):
            self.task.check(parts)
            raise DataError(f"step {self.step + 1}: the loss is not finite; lower train.rate, or look at the data")
        self.optimizer.step()
        self.step += 1
        if self.ema is not None:
            self.ema.update_parameters(self.trained)
        names = (*self.task.losses, *self.task.counted)
        return dict(zip(names, [*figures.tolist(), *counts.tolist()], strict=True))

    def _set_rates(self) -> list[nn.Parameter]:
        """Set the step's learning rates; returns the weights that learn in it."""
        weights: list[nn.Parameter] = []
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"](self.step)
            for weight in group["params"]:
                weight.requires_grad_(self.step >= group["start"])
            weights += group["params"] if self.step >= group["start"] else []
        return weights

    @property
    def rate(self) -> float:
        """The learning rate of the last step, of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the model is as it is evaluated and kept: in evaluation mode, with EMA weights if there are any."""
        own = {name: value.clone() for name, value in self.trained.state_dict().items()} if self.ema else {}
        if self.ema is not None:
            self.trained.load_state_dict(self.ema.module.state_dict())
        self.task.model.eval()
        self.task.reset()
        try:
            yield
        finally:
            self.task.reset()
            self.task.model.train()
            if own:
                self.trained.load_state_dict(own)

    def state(self) -> dict[str, Tensor]:
        """All tensors that a step depends on, but for weights that do not learn."""
        tensors = {f"model.{name}": value for name, value in self.trained.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": value for name, value in self.ema.state_dict().items()}
        for name, weight in self.trained.named_parameters():
            tensors |= {f"{kind}.{name}": value for kind, value in self.optimizer.state.get(weight, {}).items()}
        return tensors

    def resume(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Take up the state after ``step`` steps."""
        self.step = step
        try:
            self.trained.load_state_dict(_part_of(tensors, "model."))
            if self.ema is not None:
                self.ema.load_state_dict(_part_of(tensors, "ema."))
            moments = {kind: _part_of(tensors, f"{kind}.") for kind in _MOMENTS}
            for name, weight in self.trained.named_parameters():
                found = {kind: _laid_out(values[name], weight) for kind, values in moments.items() if name in values}
                if found:
                    self.optimizer.state[weight] = found
        except (KeyError, RuntimeError) as error:
            raise DataError(f"step {step}: broken checkpoint: {one_line(error)}; remove the run to restart") from None


def train(task: Task[Any], plan: Plan, folder: Path, processes: Processes, tensorboard: bool = False) -> None:
    """Train a task to the end, from its last checkpoint if there is one, in a run folder that is held.

    A model without weights to train is scored and kept as it is.
    """
    is_main = processes.is_main_process
    if not any(group.weights for group in task.groups()):
        _keep(task, folder, processes, tensorboard)
        return
    trainer = Trainer(task, plan, processes)
    checkpoints = Checkpoints(folder, is_main)
    if (found := checkpoints.read()) is not None:
        trainer.resume(*found)
    loader = DataLoader(
        task.batches,
        batch_size=None,
        sampler=range(trainer.step, plan.steps),
        num_workers=plan.workers,
        pin_memory=processes.device.type == "cuda",
    )
    with (
        open_log(folder, trainer.step, processes, tensorboard) as log,
        step_progress(plan.steps, trainer.step, is_main) as show,
    ):
        start = time.perf_counter()
        for parts in loader:
            if 0 < plan.patience <= checkpoints.stale:
                break
            if isinstance(parts, DataError):  # raised here, where no trace of a worker comes with it
                raise parts
            figures = trainer.take_step(parts)
            step, seconds = trainer.step, time.perf_counter() - start
            log({"step": step, **figures, "rate": trainer.rate, "seconds": seconds})
            loss, best = figures[task.losses[0]], "–" if checkpoints.best is None else f"{checkpoints.best:.3f}"
            show(step, f"loss {loss:.3f}, best {best}, {1 / seconds:.1f} steps/s")

            is_last = step == plan.steps
            is_evaluated = is_last or step % plan.evaluate_every == 0
            if is_evaluated or step % plan.save_every == 0:
                with trainer.averaged():
                    scores = task.evaluate(is_last) if is_evaluated else {}
                    score = scores.get(task.best_by)
                    files = task.files(step, score) if is_main else {}
                if scores:
                    log({"step": step, **scores})
                if scores and is_main:
                    draw_curves(folder, task.losses, task.scores)
                checkpoints.write(step, score, files, trainer.state())
            start = time.perf_counter()
    if is_main:
        with trainer.averaged():
            task.finish(folder)
        checkpoints.finish()


def _keep(task: Task[Any], folder: Path, processes: Processes, tensorboard: bool) -> None:
    """Score and write a model that is finished before the first step."""
    checkpoints = Checkpoints(folder, processes.is_main_process)
    task.model.eval()
    scores = task.evaluate(is_last=True)
    with open_log(folder, 0, processes, tensorboard) as log:
        log({"step": 0, **scores})
    if processes.is_main_process:
        score = scores.get(task.best_by)
        checkpoints.write(0, score, task.files(0, score), {})
        task.finish(folder)
        checkpoints.finish()


class _Trained(nn.Module):
    """What training changes of a model: its trained weights, and buffers such as the statistics of batch norms."""

    def __init__(self, model: nn.Module, weights: Sequence[nn.Parameter]) -> None:
        super().__init__()
        known = {id(weight) for weight in weights}
        for name, weight in model.named_parameters():
            if id(weight) in known:
                self.register_parameter(name.replace(".", "/"), weight)
        for name, buffer in model.named_buffers():
            self.register_buffer(name.replace(".", "/"), buffer)


def _ema_update(decay: Callable[[int], float]) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    def update(average: Tensor, value: Tensor, steps: Tensor | int) -> Tensor:
        return average.lerp(value, 1 - decay(int(steps))) if value.is_floating_point() else value

    return update


def _laid_out(value: Tensor, weight: nn.Parameter) -> Tensor:
    """A moment in its weight's own layout in memory, which the fused step relies on; its step count as it is."""
    return torch.empty_like(weight.detach()).copy_(value) if value.dim() else value.to(weight.device)


def _part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
