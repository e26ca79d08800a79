"""ELMo's files: what is missing or does not fit is one line; other people's names lead to the same weights."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phrasechain.core.errors import DataError
from phrasechain.text.elmo_files import from_allennlp, read_options, read_weights

h5py = pytest.importorskip("h5py", reason="ELMo's weights are read with h5py, of the extra 'train'")

from elmo_models import make_arrays, make_options, write_files  # noqa: E402 - after the skip

OPTIONS = make_options()
CELL = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell"


def read(options: Path, weights: Path) -> dict[str, torch.Tensor]:
    return read_weights(weights, read_options(options))


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("lstm", {"dim": 0}, '"dim" is not a whole number from 1 to 65,536'),
        ("lstm", {"dim": True}, '"dim" is not a whole number'),
        ("lstm", {"projection_dim": 10**9}, '"projection_dim" is not'),
        ("lstm", {"n_layers": "2"}, '"n_layers" is not'),
        ("lstm", {"cell_clip": -1}, '"cell_clip" is not a number above 0'),
        ("lstm", {"proj_clip": "x"}, '"proj_clip" is not'),
        ("char_cnn", {"filters": [[1]]}, '"filters" is not a list of pairs'),
        ("char_cnn", {"filters": []}, '"filters" is not'),
        ("char_cnn", {"filters": [[13, 2]]}, "wider than a word of 12"),
        ("char_cnn", {"n_characters": 60}, '"n_characters" of an ELMo over bytes is 262'),
        ("char_cnn", {"activation": None}, '"activation" is not a name'),
        ("char_cnn", {"embedding": 4}, 'no object "embedding"'),
        ("char_cnn", {"n_highway": 1000}, '"n_highway" is not'),
        ("char_cnn", {"max_characters_per_token": 2}, '"max_characters_per_token" is not'),
    ],
)
def test_broken_options(tmp_path: Path, part: str, values: dict[str, Any], words: str) -> None:
    options, _ = write_files(tmp_path, OPTIONS | {part: OPTIONS[part] | values}, {})
    with pytest.raises(DataError, match=words) as caught:
        read_options(options)
    assert str(caught.value).startswith(f"{options}: not the options of an ELMo: ")
    assert "\n" not in str(caught.value)


def test_options_that_are_no_options(tmp_path: Path) -> None:
    for text, words in (("[1]", 'no object "char_cnn"'), ("{", "broken JSON"), ("\xff", "UTF-8")):
        (tmp_path / "o.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(DataError, match=words):
            read_options(tmp_path / "o.json")
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_options(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"char_embed": None}, "no array 'char_embed' in it"),
        ({f"{CELL}/W_P_0": None}, f"no array '{CELL}/W_P_0' in it"),
        ({"CNN_high_1/b_carry": None}, "no array 'CNN_high_1/b_carry'"),
        ({f"{CELL}/B": np.zeros(19, np.float32)}, r"has the shape \(19,\) of float32, expected \(20,\)"),
        ({"CNN_proj/W_proj": np.zeros((6, 3), np.int32)}, "of int32, expected"),
        ({"CNN_proj/b_proj": np.full(3, np.nan, np.float32)}, "'CNN_proj/b_proj' holds numbers that are not finite"),
    ],
)
def test_broken_weights(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    arrays = {name: array for name, array in (make_arrays(OPTIONS) | changes).items() if array is not None}
    options, weights = write_files(tmp_path, OPTIONS, arrays)
    with pytest.raises(DataError, match=words) as caught:
        read(options, weights)
    assert str(caught.value).startswith(f"{weights}: ")
    assert "\n" not in str(caught.value)


def test_weights_do_not_reach_other_files(tmp_path: Path) -> None:
    arrays = make_arrays(OPTIONS)
    options, weights = write_files(tmp_path, OPTIONS, arrays)
    weights.rename(tmp_path / "other.hdf5")
    kept = {name: array for name, array in arrays.items() if not name.startswith("CNN/")}
    write_files(tmp_path, OPTIONS, kept | {"CNN": h5py.ExternalLink("other.hdf5", "CNN")})
    with pytest.raises(DataError, match="no array 'CNN/W_cnn_0' in it"):
        read(options, weights)


def test_files_that_are_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, weights = write_files(tmp_path, OPTIONS, make_arrays(OPTIONS))
    weights.write_bytes(b"no HDF5")
    with pytest.raises(DataError, match="cannot read it as HDF5"):
        read(options, weights)
    with pytest.raises(DataError, match="cannot read it as HDF5"):
        read(options, tmp_path / "absent.hdf5")
    huge, _ = write_files(tmp_path, make_options(projection_dim=60_000, dim=60_000), {})
    with pytest.raises(DataError, match="more than 1,073,741,824 weights"):
        read(huge, weights)
    options, weights = write_files(tmp_path, OPTIONS, make_arrays(OPTIONS))
    sizes = read_options(options)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"needs h5py: pip install 'phrasechain\[train\]'"):
        read_weights(weights, sizes)


def test_the_names_of_allennlp(tmp_path: Path) -> None:
    """Built here from the official arrays as allennlp does it."""
    arrays = make_arrays(OPTIONS)
    theirs: dict[str, np.ndarray] = {}
    words, lstm = "_elmo_lstm._token_embedder.", "_elmo_lstm._elmo_lstm."
    theirs[f"{words}_char_embedding_weights"] = np.concatenate([np.zeros((1, 2)), arrays["char_embed"]])
    for n in range(2):
        theirs[f"{words}char_conv_{n}.weight"] = arrays[f"CNN/W_cnn_{n}"][0].transpose(2, 1, 0)
        theirs[f"{words}char_conv_{n}.bias"] = arrays[f"CNN/b_cnn_{n}"]
        new, old = (arrays[f"CNN_high_{n}/W_{part}"].T for part in ("transform", "carry"))
        theirs[f"{words}_highways._layers.{n}.weight"] = np.concatenate([new, -old])
        new, old = (arrays[f"CNN_high_{n}/b_{part}"] for part in ("transform", "carry"))
        theirs[f"{words}_highways._layers.{n}.bias"] = np.concatenate([new, -old])
        for d, direction in enumerate(("forward", "backward")):
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{n}/LSTMCell"
            order = np.r_[0:5, 10:15, 5:10, 15:20]  # input, forget, new, output
            own = f"{lstm}{direction}_layer_{n}."
            theirs[f"{own}input_linearity.weight"] = arrays[f"{cell}/W_0"].T[order, :3]
            theirs[f"{own}state_linearity.weight"] = arrays[f"{cell}/W_0"].T[order, 3:]
            theirs[f"{own}state_linearity.bias"] = (arrays[f"{cell}/B"] + np.float32([0] * 10 + [1] * 5 + [0] * 5))[
                order
            ]
            theirs[f"{own}state_projection.weight"] = arrays[f"{cell}/W_P_0"].T
    theirs[f"{words}_projection.weight"] = arrays["CNN_proj/W_proj"].T
    theirs[f"{words}_projection.bias"] = arrays["CNN_proj/b_proj"]
    theirs["scalar_mix_0.gamma"] = np.ones(1)
    found = from_allennlp({name: torch.from_numpy(array.astype(np.float32)) for name, array in theirs.items()})
    expected = read(*write_files(tmp_path, OPTIONS, arrays))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, msg=name)
