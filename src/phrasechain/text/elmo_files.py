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
from phrasechain.core.json_lines import parse_json

CHARACTERS = 262  # ids: none, 256 bytes, begin and end of a sentence and of a word, padding
_OPTIONS_LIMIT = 1 << 20  # bytes
_MOST_WEIGHTS = 1 << 30  # the largest official model has 94 million
_LARGEST = 65_536  # size of anything

Arrays = Mapping[str, NDArray[np.float32]]
_HIGHWAY = re.compile(r"highways\.\d+\.(weight|bias)")


def read_options(path: Path) -> dict[str, Any]:
    """The sizes in ``options.json``, as arguments of ``ElmoEncoder``."""
    try:
        record = parse_json(read_bounded(path, _OPTIONS_LIMIT))
        characters, lstm = _part(record, "char_cnn"), _part(record, "lstm")
        if characters.get("n_characters") not in (CHARACTERS - 1, CHARACTERS):
            raise DataError(f'"n_characters" of an ELMo over bytes is {CHARACTERS}')
        if not isinstance(characters.get("activation"), str):
            raise DataError('"activation" is not a name')
        longest_word = _whole(characters, "max_characters_per_token", low=3)
        return {
            "characters": _whole(_part(characters, "embedding"), "dim"),
            "filters": _filters(characters.get("filters"), longest_word),
            "highways": _whole(characters, "n_highway", low=0, high=100) if characters.get("n_highway") else 0,
            "activation": characters["activation"],
            "longest_word": longest_word,
            "state": _whole(lstm, "projection_dim"),
            "cell": _whole(lstm, "dim"),
            "depth": _whole(lstm, "n_layers", high=100),
            "cell_clip": _clip(lstm, "cell_clip"),
            "state_clip": _clip(lstm, "proj_clip"),
            "skip": lstm.get("use_skip_connections") is True,
        }
    except DataError as error:
        raise DataError(f"{path}: not the options of an ELMo: {error}") from None


def read_weights(path: Path, sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The ``state_dict`` of an ``ElmoEncoder`` of these sizes from ``weights.hdf5``."""
    layout = _layout(sizes)
    if sum(prod(shape) for shape in layout.values()) > _MOST_WEIGHTS:
        raise DataError(f"{path}: the options ask for more than {_MOST_WEIGHTS:,} weights, which no ELMo has")
    try:
        import h5py
    except ImportError:
        raise DataError("reading the weights of ELMo needs h5py: pip install 'phrasechain[train]'") from None
    try:
        with h5py.File(path, "r") as hdf5:
            found = {name: _array(hdf5, name, shape) for name, shape in layout.items()}
    except OSError as error:
        raise DataError(f"{path}: cannot read it as HDF5: {str(error)[:100]}") from None
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


def _array(hdf5: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A finite array of the expected shape, stored in this file (no links to others)."""
    import h5py

    item = hdf5
    for part in name.split("/"):
        if not isinstance(item, h5py.Group) or not isinstance(item.get(part, getlink=True), h5py.HardLink):
            raise DataError(f"no array {name!r} in it")
        item = item[part]
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or item.dtype.kind != "f":
        raise DataError(f"{name!r} is not an array of numbers within the file")
    if item.shape != shape or prod(item.chunks or (1,)) > _MOST_WEIGHTS:
        raise DataError(f"{name!r} has the shape {item.shape}, expected {shape}")
    array = np.asarray(item[...], np.float32)
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


def _whole(record: Mapping[str, Any], key: str, low: int = 1, high: int = _LARGEST) -> int:
    value = record.get(key)
    if type(value) is not int or not low <= value <= high:
        raise DataError(f'"{key}" is not a whole number from {low} to {high:,}')
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


def _clip(record: Mapping[str, Any], key: str) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise DataError(f'"{key}" is not a number above 0')
    return float(value)
