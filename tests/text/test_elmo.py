"""ELMo against the reference's own output, and against a slow reading of the same weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phrasechain.core.errors import DataError
from phrasechain.text.elmo import ElmoEncoder

h5py = pytest.importorskip("h5py", reason="ELMo's weights are read with h5py, of the extra 'train'")

from elmo_models import SlowElmo, make_arrays, make_options, write_files  # noqa: E402 - after the skip

SENTENCES = [
    ["A", "dog", "chases", "a", "ball"],
    ["naïve", "Straßenbahnhaltestelle", "🐕"],
    [],
    ["dog"],
]


def make(folder: Path, options: dict[str, Any], scale: float = 1.0, **choices: Any) -> tuple[ElmoEncoder, SlowElmo]:
    arrays = make_arrays(options, scale=scale)
    return ElmoEncoder.from_files(*write_files(folder, options, arrays), **choices), SlowElmo(options, arrays)


def assert_like(found: torch.Tensor, expected: list[np.ndarray]) -> None:
    """Found (B, L, 2 H) is what each caption has, and zeros behind it."""
    assert found.dtype == torch.float32
    assert found.shape[1] == max(map(len, expected))
    for row, values in zip(found.numpy(), expected, strict=True):
        np.testing.assert_allclose(row[: len(values)], values, atol=1e-5)
        assert not row[len(values) :].any()


@pytest.mark.parametrize("layers", ["last", "mean"])
@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_slow_reading(tmp_path: Path, depth: int, skip: bool, layers: str) -> None:
    encoder, slow = make(tmp_path, make_options(n_layers=depth, use_skip_connections=skip), layers=layers)
    assert encoder.dimension == 6
    found = [slow.layers(sentence) for sentence in SENTENCES]
    assert_like(encoder(SENTENCES), [each[-1] if layers == "last" else each.mean(0) for each in found])


@pytest.mark.parametrize(("cell_clip", "proj_clip"), [(0.1, None), (None, 0.1), (0.2, 0.3)])
def test_cells_and_states_are_clipped(tmp_path: Path, cell_clip: float | None, proj_clip: float | None) -> None:
    encoder, slow = make(tmp_path, make_options(cell_clip=cell_clip, proj_clip=proj_clip))
    found = encoder(SENTENCES)
    assert_like(found, [slow.layers(sentence)[-1] for sentence in SENTENCES])
    free, slow = make(tmp_path, make_options(cell_clip=None, proj_clip=None))
    assert_like(free(SENTENCES), [slow.layers(sentence)[-1] for sentence in SENTENCES])
    assert (free(SENTENCES) - found).abs().max() > 0.1


@pytest.mark.parametrize(("activation", "highways"), [("tanh", 1), ("relu", 0), ("tanh", 0)])
def test_other_character_networks(tmp_path: Path, activation: str, highways: int) -> None:
    options = make_options()
    options["char_cnn"] |= {"activation": activation, "n_highway": highways}
    encoder, slow = make(tmp_path, options)
    assert_like(encoder(SENTENCES), [slow.layers(sentence)[-1] for sentence in SENTENCES])


def test_stateful_goes_on_where_the_same_row_ended(tmp_path: Path) -> None:
    encoder, slow = make(tmp_path, make_options(), stateful=True)
    batches = [
        [["one", "dog"], ["a", "b", "c"], ["x"]],
        [["two"]],
        [["three", "dogs", "run"], ["four", "men"]],
        [["p"], ["q", "r"], ["s", "t", "u", "v"], ["new", "row"]],
        [["more"], ["words"], ["for"], ["all", "rows"]],
    ]
    for _ in range(2):  # and the same again after forgetting it
        states: list[dict] = [{} for _ in range(4)]
        for batch in batches:
            assert_like(encoder(batch), [slow.layers(row, states[b])[-1] for b, row in enumerate(batch)])
        encoder.reset()


def test_stateless_depends_on_nothing_but_the_caption(tmp_path: Path) -> None:
    encoder, _ = make(tmp_path, make_options())
    together = encoder(SENTENCES)
    encoder([["something", "else"]])
    for row, sentence in zip(together, SENTENCES, strict=True):
        torch.testing.assert_close(row[: len(sentence)], encoder([sentence])[0])
    assert encoder([]).shape == (0, 0, 6)
    assert encoder([[], []]).shape == (2, 0, 6)


def test_parity_with_the_reference(shared_folder: Path) -> None:
    """Ten batches of two streams, the state carried on; the top layer, (direction, token, 16)."""
    folder = shared_folder / "elmo-fixtures"
    streams = json.loads((folder / "lm_embeddings_sentences.json").read_text())
    files = folder / "options.json", folder / "lm_weights.hdf5"
    encoder, fresh = ElmoEncoder.from_files(*files, stateful=True), ElmoEncoder.from_files(*files)
    expected = []
    for k in range(2):
        with h5py.File(folder / f"lm_embeddings_{k}.hdf5") as hdf5:
            expected.append([np.concatenate(hdf5[str(i)][...], -1) for i in range(len(streams[k]))])
    for i in range(10):
        batch = [stream[i].split() for stream in streams]
        assert_like(encoder(batch), [expected[k][i] for k in range(2)])
        if i == 0:
            assert_like(fresh(batch), [expected[k][i] for k in range(2)])
    assert np.abs(fresh(batch)[0, : len(batch[0])].numpy() - expected[0][9]).max() > 1e-3


def test_it_is_its_settings_and_its_state(tmp_path: Path) -> None:
    encoder, _ = make(tmp_path, make_options(), layers="mean")
    again = ElmoEncoder(**json.loads(json.dumps(encoder.settings)))
    assert not torch.equal(again(SENTENCES), encoder(SENTENCES))
    again.load_state_dict(encoder.state_dict())
    assert again.settings == encoder.settings
    assert torch.equal(again(SENTENCES), encoder(SENTENCES))


def test_lower_case_where_asked(tmp_path: Path) -> None:
    encoder, slow = make(tmp_path, make_options(), lowercase=True)
    lowered = [[word.lower() for word in sentence] for sentence in SENTENCES]
    assert_like(encoder(SENTENCES), [slow.layers(sentence)[-1] for sentence in lowered])
    assert ElmoEncoder(**encoder.settings).settings["lowercase"]


def test_frozen_unless_asked(tmp_path: Path) -> None:
    encoder, _ = make(tmp_path, make_options())
    assert not any(weight.requires_grad for weight in encoder.parameters())
    assert not encoder(SENTENCES).requires_grad
    encoder, _ = make(tmp_path, make_options(), frozen=False, stateful=True)
    for _ in range(2):  # the state carried on holds no graph
        encoder(SENTENCES).square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in encoder.parameters())


def test_unknown_choices(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no choice of ELMo layers named 'first'; there are: last, mean"):
        make(tmp_path, make_options(), layers="first")
    options = make_options()
    options["char_cnn"]["activation"] = "gelu"
    with pytest.raises(DataError, match="no activation named 'gelu'; there are: relu, tanh"):
        make(tmp_path, options)
