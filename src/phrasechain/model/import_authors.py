"""The checkpoints that the paper's authors released, as a ``GroundingModel`` that computes what their code does.

Their file is a torch archive with the weights in ``model_state_dict``. The shapes of the tensors tell all sizes and the
context. Their model always has the weights of a chain and of box regression; whether they were trained, Adam's moments
in ``optimizer_state_dict`` tell: weights that no loss saw have none, those of a loss that weighed nothing have zeros.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor

from phrasechain.core.errors import DataError, one_line
from phrasechain.core.files import reason
from phrasechain.core.tensors import EmptyParameters, assign_weights
from phrasechain.model.checkpoint import FeatureSource, ModelInfo, save_checkpoint
from phrasechain.model.config import Model
from phrasechain.model.model import GroundingModel
from phrasechain.model.phrase_encoder import CONTEXTS
from phrasechain.model.scores import SPATIAL
from phrasechain.store.reader import FeatureStore
from phrasechain.text.elmo import ElmoEncoder
from phrasechain.text.elmo_files import from_allennlp, read_options

_LARGEST = 1 << 32  # bytes; theirs hold an ELMo of 94 million weights
_ELMO = "encoder.input_embedder.elmo.elmo."
_UNUSED = ("reg_head.linear.", "tran0.", "tran1.", "tranc.", "tran.")  # what a model may have and not use
#: Settings of the official ELMo that its tensors do not show.
_OFFICIAL = {"activation": "relu", "longest_word": 50, "cell_clip": 3.0, "state_clip": 3.0, "skip": True}

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Heads:
    """Which of the weights that every checkpoint has are used, and whether that is known or taken for granted."""

    chain: bool
    box_regression: bool
    is_known: bool = True


def read_authors(
    path: Path | str,
    options: Path | str | None = None,
    *,
    chain: bool | None = None,
    box_regression: bool | None = None,
) -> GroundingModel:
    """The model of a released checkpoint, for inference; ``options`` is the ``options.json`` of an unofficial ELMo.

    ``chain`` and ``box_regression`` say whether it was trained with them, where the file's own word is not taken.
    """
    return _load(Path(path), options, chain, box_regression)[0]


def import_authors(
    path: Path | str,
    folder: Path | str,
    features: Path | str,
    options: Path | str | None = None,
    *,
    chain: bool | None = None,
    box_regression: bool | None = None,
) -> Heads:
    """Convert a released checkpoint to one of ours, for the region features of a store."""
    model, values, heads = _load(Path(path), options, chain, box_regression)
    source = FeatureSource.of(FeatureStore.open(Path(features)))
    needed = model.region_input.features
    if source.dimension != needed:
        raise DataError(f"{features}: has {source.dimension} features a region, {path} was trained with {needed}")
    if Path(folder).exists():
        raise DataError(f"{folder}: is there already; choose another folder")
    save_checkpoint(Path(folder), model, model.state_dict(), ModelInfo(values, source))
    return heads


def _load(
    path: Path, options: Path | str | None, chain: bool | None, box_regression: bool | None
) -> tuple[GroundingModel, Model, Heads]:
    state, optimizer = _read(path)
    try:
        heads = find_heads(state, optimizer, chain, box_regression)
        values = model_values(state, heads)
        elmo = _elmo_weights(state)
        sizes = _sizes(elmo) | _OFFICIAL if options is None else read_options(Path(options))
        with EmptyParameters():
            encoder = ElmoEncoder(**sizes, layers="mean", stateful=True, lowercase=True)
            model = GroundingModel(encoder, state["fusion.v.weight"].shape[1] - SPATIAL, **values.options())
        weights = model_state(state, heads) | {f"text.encoder.{name}": tensor for name, tensor in elmo.items()}
        assign_weights(model, weights, "other weights")
    except KeyError as error:
        raise DataError(f"{path}: not a checkpoint of the authors' code: it has no {error}") from None
    except (RuntimeError, IndexError) as error:
        raise DataError(f"{path}: its weights do not fit together: {one_line(error)}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return model.eval(), values, heads


def _read(path: Path) -> tuple[State, object]:
    """``model_state_dict`` and ``optimizer_state_dict`` of a file, read without running code."""
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: more than {_LARGEST:,} bytes, so it is no checkpoint of the authors' code")
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None
    except (pickle.UnpicklingError, BadZipFile, RuntimeError, ValueError, EOFError, LookupError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not a torch archive of plain tensors: {one_line(error)}") from None
    state = found.get("model_state_dict") if isinstance(found, dict) else None
    if not isinstance(state, dict) or not all(isinstance(each, Tensor) for each in state.values()):
        raise DataError(f"{path}: not a checkpoint of the authors' code: it has no model_state_dict of tensors")
    if broken := [name for name, tensor in state.items() if not bool(tensor.isfinite().all())]:
        raise DataError(f"{path}: broken: {broken[0]} is not finite")
    return state, found.get("optimizer_state_dict")


def find_heads(
    state: State, optimizer: object = None, chain: bool | None = None, box_regression: bool | None = None
) -> Heads:
    """Whether the model has a chain and box regression: what is given, or else what was trained of what is there."""
    has_chain, has_regression = "tran.weight" in state, "reg_head.linear.weight" in state
    for asked, has, what in ((chain, has_chain, "chain"), (box_regression, has_regression, "box regression")):
        if asked and not has:
            raise DataError(f"it has no weights of a {what}")
    trained = trained_names(state, optimizer)
    is_known = trained is not None or not (has_chain or has_regression)
    names = state.keys() if trained is None else trained
    return Heads(
        chain=has_chain and (any(name.startswith("tran") for name in names) if chain is None else chain),
        box_regression=has_regression
        and (any(name.startswith("reg_head.") for name in names) if box_regression is None else box_regression),
        is_known=is_known or (chain is not None and box_regression is not None),
    )


def trained_names(state: State, optimizer: object) -> set[str] | None:
    """The weights with moments other than zero; ``None`` where the optimiser does not tell."""
    try:
        places = [place for group in optimizer["param_groups"] for place in group["params"]]  # type: ignore[index]
        moments = optimizer["state"]  # type: ignore[index]
        for names in _optimised(state):
            if len(names) != len(places):
                continue
            found = {name: moments[place] for name, place in zip(names, places, strict=True) if place in moments}
            if all(each["exp_avg_sq"].shape == state[name].shape for name, each in found.items()):
                trained = {name for name, each in found.items() if bool(each["exp_avg_sq"].any())}
                return trained if "aff_head.linear.weight" in trained else None
    except (KeyError, TypeError, AttributeError, IndexError):
        pass
    return None


def _optimised(state: State) -> Iterator[list[str]]:
    """Which weights an optimiser may have, in their order: all, all but the frozen ELMo, or all but its mixes too."""
    yield list(state)
    yield [name for name in state if not name.startswith(_ELMO) or "scalar_mix" in name]
    yield [name for name in state if not name.startswith(_ELMO)]


def model_values(state: State, heads: Heads) -> Model:
    """The arguments of ``GroundingModel``, from the weights' shapes and the authors' code."""
    hidden, chain = state["encoder.lstm.weight_hh_l0"].shape[1], heads.chain
    width = state["tranc.weight"].shape[1] if chain and "tranc.weight" in state else 0
    contexts = {len(parts) * 2 * hidden: name for name, parts in CONTEXTS.items()}
    if width not in contexts:
        raise DataError(f"its transitions see {width} numbers of the caption, which is no context of the paper")
    return Model(
        lstm=hidden,
        rank=state["fusion.u.weight"].shape[0],
        joint=state["fusion.p.weight"].shape[0],
        activation="relu",
        chain=chain,
        context=contexts[width],
        transition_hidden=state["tran.weight"].shape[1] if chain else 1,
        box_regression=heads.box_regression,
        packed=False,
        init="default",
    )


def model_state(state: State, used: Heads) -> dict[str, Tensor]:
    """The weights by our names, without the text encoder's and what is not used; unknown ones are refused."""
    taken = _Taken(state)
    found = {f"text.lstm.{name}": taken(f"encoder.lstm.{name}") for name in _LSTM}
    found |= {f"pairs.{name}": taken(f"fusion.{name}") for name in ("u.weight", "v.weight", "p.weight", "p.bias")}
    heads = ["aff_head.linear", *(["reg_head.linear"] if used.box_regression else [])]
    found["pairs.heads.weight"] = torch.cat([taken(f"{head}.weight") for head in heads])
    found["pairs.heads.bias"] = torch.cat([taken.bias(head) for head in heads])
    if used.chain:
        ends = {"a": "tran0", "b": "tran1"} | ({"c": "tranc"} if "tranc.weight" in state else {})
        found |= {f"transition.{own}.weight": taken(f"{theirs}.weight") for own, theirs in ends.items()}
        found["transition.a.bias"] = torch.stack([taken.bias(theirs) for theirs in ends.values()]).sum(0)
        found |= {"transition.out.weight": taken("tran.weight"), "transition.out.bias": taken.bias("tran")}
    known = (_ELMO, *_UNUSED)
    if unknown := [name for name in state if name not in taken.names and not name.startswith(known)]:
        raise DataError(f"not a checkpoint of the authors' code: it has {unknown[0]}")
    return found


_LSTM = [f"{name}_l0{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh") for end in ("", "_reverse")]


class _Taken:
    """The tensors of a state, and the names of those that were used."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.names: set[str] = set()

    def __call__(self, name: str) -> Tensor:
        self.names.add(name)
        return self.state[name].float()

    def bias(self, layer: str) -> Tensor:
        """The layer's bias; zeros where it has none."""
        if f"{layer}.bias" in self.state:
            return self(f"{layer}.bias")
        return self.state[f"{layer}.weight"].new_zeros(len(self.state[f"{layer}.weight"]))


def _elmo_weights(state: State) -> dict[str, Tensor]:
    """The weights of their ELMo, whose mix of layers must be untrained: then it is the mean."""
    elmo = {name.removeprefix(_ELMO): tensor for name, tensor in state.items() if name.startswith(_ELMO)}
    for name, tensor in elmo.items():
        if name.startswith("scalar_mix") and not torch.equal(tensor, torch.full_like(tensor, name.endswith("gamma"))):
            raise DataError(f"{_ELMO}{name}: this mix of ELMo's layers was trained; only the mean can be imported")
    return from_allennlp(elmo)


def _sizes(weights: State) -> dict[str, Any]:
    """The sizes of an ELMo, from its tensors."""
    filters = [weights[f"characters.convolutions.{place}.weight"].shape for place in _count(weights, "convolutions")]
    return {
        "characters": weights["characters.embedding.weight"].shape[1],
        "filters": [[width, count] for count, _, width in filters],
        "highways": len(_count(weights, "highways")),
        "state": weights["characters.projection.weight"].shape[0],
        "cell": weights["lstms.0.projection"].shape[2],
        "depth": sum(name.endswith(".projection") for name in weights),
    }


def _count(weights: State, layers: str) -> range:
    return range(sum(name.startswith(f"characters.{layers}.") and name.endswith(".weight") for name in weights))
