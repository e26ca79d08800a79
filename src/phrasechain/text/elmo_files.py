"""ELMo's official files, ``options.json`` and ``weights.hdf5``, checked before a model is built."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phrasechain.core.errors import DataError
from phrasechain.core.files import read_bounded
from phrasechain.core.hdf5 import Hdf5File, open_hdf5
from phrasechain.core.json_lines import parse_json

CHARACTERS = 262  # ids: none, 256 bytes, begin and end of a sentence and of a word, padding
_OPTIONS_LIMIT = 1 << 20  # bytes
_MOST_WEIGHTS = 1 << 30  # the largest official model has 94 million
_LARGEST = 65_536  # size of anything
_MOST_LAYERS = 100
_LARGEST_CLIP = 1_000_000  # of cells and states; the official ones are clipped at 3

#: The sizes that an ``ElmoEncoder`` is built from.
SIZES = (
    *("characters", "filters", "highways", "activation", "longest_word", "state", "cell", "depth"),
    *("cell_clip", "state_clip", "skip"),
)
_BOUNDS = {
    "characters": (1, _LARGEST),
    "longest_word": (3, _LARGEST),
    "highways": (0, _MOST_LAYERS),
    "state": (1, _LARGEST),
    "cell": (1, _LARGEST),
    "depth": (1, _MOST_LAYERS),
}
NO_NAMES: Mapping[str, str] = {}
_OFFICIAL_NAMES = {
    "characters": "dim",
    "longest_word": "max_characters_per_token",
    "highways": "n_highway",
    "state": "projection_dim",
    "cell": "dim",
    "depth": "n_layers",
    "state_clip": "proj_clip",
}
Arrays = Mapping[str, NDArray[np.float32]]
_HIGHWAY = re.compile(r"highways\.\d+\.(weight|bias)")


def read_options(path: Path) -> dict[str, Any]:
    """The sizes in ``options.json``, as arguments of ``ElmoEncoder``."""
    try:
        record = parse_json(read_bounded(path, _OPTIONS_LIMIT, named=False))
        characters, lstm = _part(record, "char_cnn"), _part(record, "lstm")
        if characters.get("n_characters") not in (CHARACTERS - 1, CHARACTERS):
            raise DataError(f'"n_characters" of an ELMo over bytes is {CHARACTERS}')
        return check_sizes(
            {
                "characters": _part(characters, "embedding").get("dim"),
                "filters": characters.get("filters"),
                "highways": characters.get("n_highway") or 0,
                "activation": characters.get("activation"),
                "longest_word": characters.get("max_characters_per_token"),
                "state": lstm.get("projection_dim"),
                "cell": lstm.get("dim"),
                "depth": lstm.get("n_layers"),
                "cell_clip": lstm.get("cell_clip"),
                "state_clip": lstm.get("proj_clip"),
                "skip": lstm.get("use_skip_connections") is True,
            },
            _OFFICIAL_NAMES,
        )
    except DataError as error:
        raise DataError(f"{path}: not the options of an ELMo: {error}") from None


def check_sizes(sizes: Mapping[str, Any], names: Mapping[str, str] = NO_NAMES) -> dict[str, Any]:
    """The sizes of an ELMo from an untrusted file, each within its bounds; ``names`` are theirs in that file."""
    if absent := next((key for key in SIZES if key not in sizes), None):
        raise DataError(f'no "{absent}"')
    for key, (low, high) in _BOUNDS.items():
        if type(sizes.get(key)) is not int or not low <= sizes[key] <= high:
            raise DataError(f'"{names.get(key, key)}" is not a whole number from {low} to {high:,}')
    if not isinstance(sizes.get("activation"), str):
        raise DataError('"activation" is not a name')
    if not isinstance(sizes.get("skip"), bool):
        raise DataError('"skip" is not true or false')
    return {key: sizes[key] for key in SIZES} | {
        "filters": _filters(sizes.get("filters"), sizes["longest_word"]),
        "cell_clip": _clip(sizes.get("cell_clip"), names.get("cell_clip", "cell_clip")),
        "state_clip": _clip(sizes.get("state_clip"), names.get("state_clip", "state_clip")),
    }


def read_weights(path: Path, sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The ``state_dict`` of an ``ElmoEncoder`` of these sizes from ``weights.hdf5``."""
    layout = _layout(sizes)
    if sum(prod(shape) for shape in layout.values()) > _MOST_WEIGHTS:
        raise DataError(f"{path}: the options ask for more than {_MOST_WEIGHTS:,} weights, which no ELMo has")
    try:
        with open_hdf5(path, "reading the weights of ELMo", named=False) as hdf5:
            found = {name: _array(hdf5, name, shape) for name, shape in layout.items()}
    except DataError as error:
        raise DataError(f"{path}: {error}; the weights are not those of the options") from None
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in _converted(found, sizes)}


def from_allennlp(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same from a ``state_dict`` of allennlp's ``Elmo``, as in the authors' checkpoints.

    Its scalar mixes are left out: untrained, they are the mean.
    """
    words, lstm = "_elmo_lstm._token_embedder.", "_elmo_lstm._elmo_lstm."
    result = {"characters.embedding.weight": state[f"{words}_char_embedding_weights"]}
    for name, tensor in state.items():
        if name.startswith(words) and not name.endswith("_char_embedding_weights"):
            own = name.removeprefix(words).replace("char_conv_", "convolutions.")
            own = own.replace("_highways._layers", "highways").replace("_projection", "projection")
            result[f"characters.{own}"] = _gate_turned(tensor) if _HIGHWAY.fullmatch(own) else tensor
    names = {
        "input_weight": "input_linearity.weight", "state_weight": "state_linearity.weight",
        "bias": "state_linearity.bias", "projection": "state_projection.weight",
    }  # fmt: skip
    for place in range(sum(name.startswith(f"{lstm}forward_layer_") for name in state) // len(names)):
        for own, theirs in names.items():
            both = [state[f"{lstm}{direction}_layer_{place}.{theirs}"] for direction in ("forward", "backward")]
            result[f"lstms.{place}.{own}"] = torch.stack(both)
    return result


def _gate_turned(tensor: Tensor) -> Tensor:
    """Their highway gates the old value; ours, as in the official files, the new one."""
    new, gate = tensor.chunk(2)
    return torch.cat([new, -gate])


def _layout(sizes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The arrays of the official file and their shapes."""
    dimension, state, cell = sizes["characters"], sizes["state"], sizes["cell"]
    total = sum(count for _, count in sizes["filters"])
    layout: dict[str, tuple[int, ...]] = {"char_embed": (CHARACTERS - 1, dimension)}
    for place, (width, count) in enumerate(sizes["filters"]):
        layout |= {f"CNN/W_cnn_{place}": (1, width, dimension, count), f"CNN/b_cnn_{place}": (count,)}
    for place in range(sizes["highways"]):
        for part in ("transform", "carry"):
            layout |= {f"CNN_high_{place}/W_{part}": (total, total), f"CNN_high_{place}/b_{part}": (total,)}
    layout |= {"CNN_proj/W_proj": (total, state), "CNN_proj/b_proj": (state,)}
    for cell_name in _cell_names(sizes["depth"]):
        layout |= {f"{cell_name}/W_0": (2 * state, 4 * cell), f"{cell_name}/B": (4 * cell,)}
        layout |= {f"{cell_name}/W_P_0": (cell, state)}
    return layout


def _cell_names(depth: int) -> list[str]:
    return [_cell_name(direction, place) for place in range(depth) for direction in range(2)]


def _cell_name(direction: int, place: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{place}/LSTMCell"


def _array(hdf5: Hdf5File, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A finite array of the expected shape."""
    item = hdf5.find(name)
    if item is None:
        raise DataError(f"no array {name!r} in it")
    if item.shape != shape or item.dtype.kind != "f":
        raise DataError(f"{name!r} has the shape {item.shape} of {item.dtype}, expected {shape} of floats")
    with np.errstate(over="ignore"):
        array = item.read(most=_MOST_WEIGHTS).astype(np.float32)
    if not np.isfinite(array).all():
        raise DataError(f"{name!r} holds numbers that are not finite")
    return array


def _converted(found: Arrays, sizes: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """TensorFlow's arrays by the names and in the layout of ``ElmoEncoder``."""
    yield "characters.embedding.weight", np.pad(found["char_embed"], ((1, 0), (0, 0)))  # 0: no character
    for place in range(len(sizes["filters"])):
        yield f"characters.convolutions.{place}.weight", found[f"CNN/W_cnn_{place}"][0].transpose(2, 1, 0)
        yield f"characters.convolutions.{place}.bias", found[f"CNN/b_cnn_{place}"]
    for place in range(sizes["highways"]):
        high = f"CNN_high_{place}"
        weights = [found[f"{high}/W_{part}"].T for part in ("transform", "carry")]
        yield f"characters.highways.{place}.weight", np.concatenate(weights)
        biases = [found[f"{high}/b_{part}"] for part in ("transform", "carry")]
        yield f"characters.highways.{place}.bias", np.concatenate(biases)
    yield "characters.projection.weight", found["CNN_proj/W_proj"].T
    yield "characters.projection.bias", found["CNN_proj/b_proj"]
    for place in range(sizes["depth"]):
        yield from _lstm_converted(found, place, sizes["state"])


def _lstm_converted(found: Arrays, place: int, state: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Both directions of one layer. The file's W is for [input ; state], and its forget biases lack TensorFlow's 1."""
    cells = [_cell_name(direction, place) for direction in range(2)]
    weights = np.stack([_torch_gates(found[f"{cell}/W_0"].T) for cell in cells])  # (2, 4 C, 2 H)
    bias = np.stack([_torch_gates(found[f"{cell}/B"]) for cell in cells])  # (2, 4 C)
    size = bias.shape[1] // 4
    bias[:, size : 2 * size] += 1
    yield f"lstms.{place}.input_weight", weights[..., :state]
    yield f"lstms.{place}.state_weight", weights[..., state:]
    yield f"lstms.{place}.bias", bias
    yield f"lstms.{place}.projection", np.stack([found[f"{cell}/W_P_0"].T for cell in cells])


def _torch_gates(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """From TensorFlow's order input, new, forget, output to torch's input, forget, new, output."""
    enter, new, forget, leave = np.split(rows, 4)
    return np.concatenate([enter, forget, new, leave])


def _part(record: Any, key: str) -> dict[str, Any]:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, dict):
        raise DataError(f'no object "{key}"')
    return value


def _filters(value: Any, longest_word: int) -> list[list[int]]:
    if not isinstance(value, list) or not 1 <= len(value) <= 100 or not all(map(_is_filter, value)):
        raise DataError('"filters" is not a list of pairs [width, count]')
    if max(width for width, _ in value) > longest_word:
        raise DataError(f'"filters" are wider than a word of {longest_word} characters')
    return value


def _is_filter(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _are_sizes(value)


def _are_sizes(values: Iterable[Any]) -> bool:
    return all(type(value) is int and 1 <= value <= _LARGEST for value in values)


def _clip(value: Any, key: str) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= _LARGEST_CLIP:
        raise DataError(f'"{key}" is not a number above 0, up to {_LARGEST_CLIP:,}')
    return float(value)
