"""Small ELMos in the official format, and a slow reading of them: number by number from the arrays, in float64."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]


def make_options(**lstm: Any) -> dict[str, Any]:
    return {
        "lstm": {
            "cell_clip": 3, "use_skip_connections": True, "n_layers": 2, "proj_clip": 3, "projection_dim": 3, "dim": 5,
        } | lstm,
        "char_cnn": {
            "embedding": {"dim": 2}, "filters": [[1, 2], [3, 4]], "n_highway": 2, "n_characters": 262,
            "max_characters_per_token": 12, "activation": "relu",
        },
    }  # fmt: skip


def make_arrays(options: dict[str, Any], seed: int = 0, scale: float = 1.0) -> Arrays:
    cnn, lstm = options["char_cnn"], options["lstm"]
    dimension, state, cell = cnn["embedding"]["dim"], lstm["projection_dim"], lstm["dim"]
    total = sum(count for _, count in cnn["filters"])
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, dimension)}
    for place, (width, count) in enumerate(cnn["filters"]):
        shapes |= {f"CNN/W_cnn_{place}": (1, width, dimension, count), f"CNN/b_cnn_{place}": (count,)}
    for place in range(cnn["n_highway"]):
        shapes |= {f"CNN_high_{place}/W_{part}": (total, total) for part in ("carry", "transform")}
        shapes |= {f"CNN_high_{place}/b_{part}": (total,) for part in ("carry", "transform")}
    shapes |= {"CNN_proj/W_proj": (total, state), "CNN_proj/b_proj": (state,)}
    for direction in range(2):
        for place in range(lstm["n_layers"]):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{place}/LSTMCell"
            shapes |= {f"{name}/W_0": (2 * state, 4 * cell), f"{name}/B": (4 * cell,), f"{name}/W_P_0": (cell, state)}
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, scale, shape).astype(np.float32) for name, shape in shapes.items()}


def write_files(folder: Path, options: dict[str, Any], arrays: dict[str, Any]) -> tuple[Path, Path]:
    (folder / "options.json").write_text(json.dumps(options))
    with h5py.File(folder / "weights.hdf5", "w") as hdf5:
        for name, array in arrays.items():
            hdf5[name] = array
    return folder / "options.json", folder / "weights.hdf5"


def sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    return 1 / (1 + np.exp(-x))


class SlowElmo:
    """One sentence at a time. ``layers`` of a sentence are the words' own vectors twice and each layer's states."""

    def __init__(self, options: dict[str, Any], arrays: Arrays) -> None:
        self.cnn, self.lstm = options["char_cnn"], options["lstm"]
        self.arrays = {name: array.astype(np.float64) for name, array in arrays.items()}

    def layers(self, tokens: list[str], states: dict[Any, Any] | None = None) -> NDArray[np.float64]:
        """(1 + layers, L, 2 H); ``states`` are taken and left by direction and layer."""
        states = {} if states is None else states
        words = [self._word([256]), *(self._word(list(token.encode())) for token in tokens), self._word([257])]
        directions = []
        for direction in range(2):
            rows = words[::-1] if direction else words
            found = [rows]
            for place in range(self.lstm["n_layers"]):
                outputs = self._read(direction, place, found[-1], states)
                if place and self.lstm["use_skip_connections"]:
                    outputs = [output + row for output, row in zip(outputs, found[-1], strict=True)]
                found.append(outputs)
            directions.append([rows[::-1] if direction else rows for rows in found])
        both = [np.concatenate([ahead, back], 1) for ahead, back in zip(*directions, strict=True)]
        return np.stack(both)[:, 1:-1]

    def _word(self, characters: list[int]) -> NDArray[np.float64]:
        length = self.cnn["max_characters_per_token"]
        ids = [258, *characters[: length - 2], 259]
        embedded = [self.arrays["char_embed"][i] for i in ids + [260] * (length - len(ids))]
        pooled = []
        for place, (width, count) in enumerate(self.cnn["filters"]):
            kernel, bias = self.arrays[f"CNN/W_cnn_{place}"][0], self.arrays[f"CNN/b_cnn_{place}"]
            for unit in range(count):
                at = range(length - width + 1)
                sums = [sum(embedded[p + w] @ kernel[w, :, unit] for w in range(width)) + bias[unit] for p in at]
                pooled.append(np.tanh(max(sums)) if self.cnn["activation"] == "tanh" else max(0.0, max(sums)))
        word = np.array(pooled)
        for place in range(self.cnn["n_highway"]):
            part = {name: self.arrays[f"CNN_high_{place}/{name}"] for name in ("W_carry", "b_carry")}
            gate = sigmoid(word @ part["W_carry"] + part["b_carry"])
            name = f"CNN_high_{place}"
            new = np.maximum(word @ self.arrays[f"{name}/W_transform"] + self.arrays[f"{name}/b_transform"], 0)
            word = gate * new + (1 - gate) * word
        return word @ self.arrays["CNN_proj/W_proj"] + self.arrays["CNN_proj/b_proj"]

    def _read(self, direction: int, place: int, rows: list[Any], states: dict[Any, Any]) -> list[Any]:
        name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{place}/LSTMCell"
        kernel, bias, projection = (self.arrays[f"{name}/{part}"] for part in ("W_0", "B", "W_P_0"))
        size = len(projection)
        state, cell = states.get((direction, place), (np.zeros(projection.shape[1]), np.zeros(size)))
        outputs = []
        for row in rows:
            gates = np.concatenate([row, state]) @ kernel + bias
            enter, new, forget, leave = (gates[n * size : (n + 1) * size] for n in range(4))
            cell = sigmoid(forget + 1) * cell + sigmoid(enter) * np.tanh(new)
            cell = self._clip(cell, "cell_clip")
            state = self._clip((sigmoid(leave) * np.tanh(cell)) @ projection, "proj_clip")
            outputs.append(state)
        states[direction, place] = state, cell
        return outputs

    def _clip(self, values: NDArray[Any], key: str) -> NDArray[Any]:
        bound = self.lstm[key]
        return values if bound is None else values.clip(-bound, bound)
