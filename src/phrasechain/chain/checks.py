"""Validation of the chain's arguments: a ValueError names the argument, what was expected and what it got.

Shapes, dtypes and devices are always checked. Values are checked with ``validate``, by one cheap pass; the offending
element is searched for only after that pass fails.
"""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import Tensor

from phrasechain.chain import kernel
from phrasechain.chain.operators import uses_kernel
from phrasechain.chain.recursion import ChainScores


def refuse(argument: str, expected: str, got: object) -> NoReturn:
    raise ValueError(f"{argument}: expected {expected}, got {got}")


def _shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}"


def _tensor(argument: str, tensor: object, expected: str) -> None:
    if not isinstance(tensor, Tensor):
        refuse(argument, f"a tensor ({expected})", type(tensor).__name__)
    if tensor.layout != torch.strided:
        refuse(argument, "a dense tensor", tensor.layout)


def emissions_shape(emissions: Tensor) -> None:
    _tensor("emissions", emissions, "(B, T, K) of floats")
    if emissions.dim() != 3 or 0 in emissions.shape:
        refuse("emissions", "shape (B, T, K) with B, T and K at least 1", _shape(emissions))
    floats("emissions", emissions)


def transitions_shape(transitions: Tensor, emissions: Tensor) -> None:
    _links_shape("transitions", transitions, emissions, 1)


def skips_shape(skips: Tensor, emissions: Tensor) -> None:
    _links_shape("skips", skips, emissions, 2)


def _links_shape(name: str, links: Tensor, emissions: Tensor, distance: int) -> None:
    B, T, K = emissions.shape
    _tensor(name, links, f"(K, K) or (B, T-{distance}, K, K) of floats")
    if links.dim() == 3:
        hint = f"write {name}.unsqueeze(1) for one (K, K) per sequence, .unsqueeze(0) for one per step"
        refuse(name, f"(K, K) or 4 dimensions ({hint})", _shape(links))
    if links.dim() not in (2, 4) or links.shape[-2:] != (K, K):
        refuse(name, f"(K, K) or (B or 1, T-{distance} or 1, K, K) with K = {K}", _shape(links))
    if links.dim() == 4:
        steps = max(T - distance, 0)
        if links.shape[0] not in (1, B) or links.shape[1] not in (1, steps):
            expected = f"({B} or 1, {steps} or 1, {K}, {K}), for emissions {tuple(emissions.shape)}"
            refuse(name, expected, _shape(links))
    floats(name, links)
    same_device(name, links, emissions)


def same_device(argument: str, tensor: Tensor, emissions: Tensor) -> None:
    if tensor.device != emissions.device:
        refuse(argument, f"device {emissions.device}, as the emissions", f"device {tensor.device}")


def lengths_shape(lengths: Tensor, emissions: Tensor) -> None:
    _tensor("lengths", lengths, "(B,) of integers")
    if lengths.shape != emissions.shape[:1]:
        hint = ""
        if lengths.shape == emissions.shape[:2]:
            hint = "; for a mask without holes give mask.sum(1)"
        refuse("lengths", f"shape ({emissions.shape[0]},)", _shape(lengths) + hint)
    integers("lengths", lengths)
    same_device("lengths", lengths, emissions)


def floats(argument: str, tensor: Tensor, hint: str = "") -> None:
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        refuse(argument, f"a floating-point dtype of 16 to 64 bits{hint}", tensor.dtype)


def integers(argument: str, tensor: Tensor) -> None:
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        refuse(argument, "an integer dtype such as torch.int64", tensor.dtype)


def mask(argument: str, tensor: Tensor, shape: tuple[int, ...], emissions: Tensor) -> None:
    _tensor(argument, tensor, f"{shape} of bool")
    if tuple(tensor.shape) != shape:
        refuse(argument, f"shape {shape}", _shape(tensor))
    if tensor.dtype != torch.bool:
        refuse(argument, "dtype torch.bool", tensor.dtype)
    same_device(argument, tensor, emissions)


def lengths_values(lengths: Tensor, steps: int) -> None:
    low, high = (int(bound) for bound in lengths.aminmax())
    if low < 1 or high > steps:
        refuse("lengths", f"values from 1 to T = {steps}", low if low < 1 else high)


def label_mask_values(label_mask: Tensor) -> None:
    empty = ~label_mask.any(1)
    if bool(empty.any()):
        refuse("label_mask", "at least one label per sequence", f"none in row {int(empty.nonzero()[0])}")


def finite(scores: ChainScores) -> None:
    """One pass detects a possible NaN or infinity; only then is every score tested, ignoring those that are unused."""
    emissions, transitions, skips = scores.emissions.detach(), scores.transitions.detach(), scores.skips
    if uses_kernel(emissions):
        if kernel.is_finite(scores):
            return
    elif math.isfinite((emissions.sum() + transitions.sum() + (0 if skips is None else skips.detach().sum())).item()):
        return
    _all_finite("emissions", emissions, scores.valid())
    if emissions.shape[1] > 1:
        _all_finite("transitions", transitions, scores.pairs())
    if emissions.shape[1] > 2 and skips is not None:
        _all_finite("skips", skips.detach(), scores.skip_pairs())


def _all_finite(name: str, tensor: Tensor, valid: Tensor | None) -> None:
    bad = ~torch.isfinite(tensor)
    bad = bad if valid is None else bad & valid
    if bool(bad.any()):
        index = [int(k) for k in bad.nonzero()[0]]
        hint = "to forbid a label or a transition use a finite floor such as -1e4"
        refuse(name, f"finite scores ({hint})", f"{float(tensor[tuple(index)])} at {index}")


def target_shape(q: Tensor, emissions: Tensor) -> None:
    _tensor("q", q, "(B, T, K) of floats")
    if q.shape != emissions.shape:
        refuse("q", f"shape {tuple(emissions.shape)}, as the emissions", _shape(q))
    floats("q", q, " (for hard labels use nll)")
    same_device("q", q, emissions)


def target_values(q: Tensor, scores: ChainScores, labelled: Tensor | None) -> None:
    """Rows of q must be distributions over the allowed labels, at the labelled steps of each sequence."""
    q = q.detach()
    valid, alive = scores.valid(), scores.alive()
    if valid is None and labelled is None:
        smallest, totals = q.amin(), q.sum(-1, dtype=torch.float32)
    else:
        asked = alive if labelled is None else labelled if alive is None else labelled & alive
        inside = q if asked is None else torch.where(asked[:, :, None], q, 0.0)
        if scores.label_mask is not None:
            stray = torch.where(scores.label_mask[:, None, :], 0.0, inside.nan_to_num(0.0))
            if bool((stray != 0).any()):
                index = [int(k) for k in (stray != 0).nonzero()[0]]
                refuse("q", "no mass on masked labels", f"{float(q[tuple(index)]):g} at {index}")
            inside = torch.where(scores.label_mask[:, None, :], inside, 0.0)
        totals = inside.sum(-1, dtype=torch.float32)
        totals = totals if asked is None else torch.where(asked, totals, 1.0)
        smallest = inside.amin()
    tolerance = 1e-3 if q.dtype in (torch.float32, torch.float64) else 1e-2  # rows in half precision are rounded
    low, high = totals.aminmax()
    if abs(low.item() - 1) <= tolerance and abs(high.item() - 1) <= tolerance and smallest.item() >= 0:
        return
    if not smallest.item() >= 0:
        refuse("q", "probabilities, at least 0", f"{smallest.item():g}")
    b, t = (int(k) for k in (~((totals - 1).abs() <= tolerance)).nonzero()[0])
    refuse("q", "rows that sum to 1 over the allowed labels", f"a sum of {float(totals[b, t]):g} at [{b}, {t}]")


def labels_shape(labels: Tensor, emissions: Tensor) -> None:
    _tensor("labels", labels, "(B, T) of integers")
    if labels.shape != emissions.shape[:2]:
        refuse("labels", f"shape {tuple(emissions.shape[:2])}", _shape(labels))
    integers("labels", labels)
    same_device("labels", labels, emissions)


def labels_values(labels: Tensor, scores: ChainScores) -> None:
    K, alive = scores.emissions.shape[2], scores.alive()
    inside = labels if alive is None else torch.where(alive, labels, 0)
    low, high = (int(bound) for bound in inside.aminmax())
    if low < 0 or high >= K:
        refuse("labels", f"values from 0 to K-1 = {K - 1}", low if low < 0 else high)
    if scores.label_mask is not None:
        taken = scores.label_mask.gather(1, inside)
        wrong = ~taken if alive is None else ~taken & alive
        if bool(wrong.any()):
            index = [int(k) for k in wrong.nonzero()[0]]
            refuse(
                "labels", "labels that label_mask allows", f"the masked label {int(labels[tuple(index)])} at {index}"
            )


def allowed_values(allowed: Tensor, scores: ChainScores) -> None:
    valid, alive = scores.valid(), scores.alive()
    some = (allowed if valid is None else allowed & valid).any(-1)
    empty = ~some if alive is None else ~some & alive
    if bool(empty.any()):
        index = [int(k) for k in empty.nonzero()[0]]
        refuse("allowed", "at least one allowed label at every step", f"none at {index}")


def same_chain(other: ChainScores, scores: ChainScores, values: bool) -> None:
    """Two chains are compared over the same steps and labels."""
    if other.emissions.shape != scores.emissions.shape:
        refuse("other", f"a chain of emissions {tuple(scores.emissions.shape)}", _shape(other.emissions))
    same_device("other", other.emissions, scores.emissions)
    for name, mine, theirs in (
        ("lengths", scores.alive(), other.alive()),
        ("label_mask", scores.label_mask, other.label_mask),
    ):
        given = mine if theirs is None else theirs
        if values and given is not None:
            every = torch.ones_like(given)
            if not torch.equal(every if mine is None else mine, every if theirs is None else theirs):
                refuse("other", f"a chain of the same {name}", "another")
