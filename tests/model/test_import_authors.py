"""An imported checkpoint against a slow reading of what the authors' code computes, phrase by phrase."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from authors_checkpoint import HIDDEN, H, J, R, SlowAuthors, make_state, optimised, write
from phrasechain.cli import app
from phrasechain.core.errors import DataError
from phrasechain.core.schema import Regions
from phrasechain.model.batch import Batch
from phrasechain.model.checkpoint import load_checkpoint
from phrasechain.model.import_authors import import_authors, read_authors
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter
from phrasechain.text.elmo import ElmoEncoder
from tiny_batches import tiny_batch


def regions_of(batch: Batch, caption: int) -> Tensor:
    image = int(batch.caption_image[caption])
    return torch.cat([batch.features[image].float(), batch.spatial[image]], -1)[batch.region_mask[image]]


@pytest.mark.parametrize("parts", [0, 1, 3, 4])
def test_an_imported_model_computes_what_their_code_computes(tmp_path: Path, parts: int) -> None:
    state = make_state(parts)
    model = read_authors(write(tmp_path, state, epoch=3))
    batch = tiny_batch(1, dimension=4)
    assert isinstance(model.text.encoder, ElmoEncoder)
    assert (model.text.encoder.layers, model.text.encoder.stateful, model.training) == ("mean", True, False)
    with torch.no_grad():
        scores = model(batch)
        model.text.encoder.reset()
        tokens = model.text.encoder(batch.tokens)
    assert scores.offsets is not None
    assert scores.transitions is not None
    lengths = batch.lengths.tolist()
    for caption, length in enumerate(lengths):
        start = sum(lengths[:caption])
        spans = [(int(first), int(end)) for first, end in batch.token_spans[start : start + length]]
        slow = SlowAuthors(state, tokens[caption], spans, regions_of(batch, caption))
        for t in range(length):
            for k in range(len(slow.regions)):
                expected = slow.pair(t, k)
                torch.testing.assert_close(scores.emissions[start + t, k], expected[0], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(scores.offsets[start + t, k], expected[1:], rtol=1e-4, atol=1e-4)
                for other in range(len(slow.regions) if t + 1 < length else 0):
                    found = scores.transitions[caption, t if parts else 0, k, other].item()
                    assert found == pytest.approx(slow.transition(t, k, other, parts), rel=1e-4, abs=1e-4)


def test_models_without_a_chain_or_without_regression(tmp_path: Path) -> None:
    batch = tiny_batch(1, dimension=4)
    scores = read_authors(write(tmp_path, make_state(0, chain=False)))(batch)
    assert scores.transitions is None
    assert scores.offsets is not None
    assert read_authors(write(tmp_path, make_state(1, regression=False)))(batch).offsets is None


@pytest.mark.parametrize("with_mixes", [True, False])
@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("gamma", [10.0, 0.0])
def test_the_optimizer_tells_what_was_trained(tmp_path: Path, chain: bool, gamma: float, with_mixes: bool) -> None:
    """Their model has all weights whatever it is trained for: those of HL, SL and gamma 0 are not used."""
    state, batch = make_state(1), tiny_batch(1, dimension=4)
    path = write(tmp_path, state, optimizer_state_dict=optimised(state, chain, gamma, with_mixes))
    scores = read_authors(path)(batch)
    assert (scores.transitions is not None, scores.offsets is not None) == (chain, gamma > 0)
    scores = read_authors(path, chain=not chain, box_regression=not gamma)(batch)
    assert (scores.transitions is not None, scores.offsets is not None) == (not chain, not gamma)


def test_a_file_that_does_not_tell_is_taken_to_have_both_and_says_so(tmp_path: Path) -> None:
    state, batch, store = make_state(1), tiny_batch(1, dimension=4), empty_store(tmp_path / "store", 4)
    never = torch.optim.Adam([torch.nn.Parameter(tensor) for tensor in state.values()]).state_dict()
    for optimizer in (None, never, {"state": 3}, {"param_groups": [{"params": [0]}], "state": {}}):
        scores = read_authors(write(tmp_path, state, optimizer_state_dict=optimizer))(batch)
        assert scores.transitions is not None
        assert scores.offsets is not None
    arguments = ["import-authors", str(tmp_path / "model.pt"), "--features", str(store), "--out"]
    told = CliRunner().invoke(app, [*arguments, str(tmp_path / "both")])
    assert "does not tell what was trained; taken to be with a chain and with box regression" in told.stderr
    told = CliRunner().invoke(app, [*arguments, str(tmp_path / "none"), "--no-chain", "--no-box-regression"])
    assert told.output == f"{tmp_path / 'none'}\n"
    assert not load_checkpoint(tmp_path / "none").card.model.chain
    assert not load_checkpoint(tmp_path / "none").card.model.box_regression
    with pytest.raises(DataError, match=r"model\.pt: it has no weights of a chain"):
        read_authors(write(tmp_path, make_state(0, chain=False)), chain=True)


def empty_store(path: Path, dimension: int) -> Path:
    with StoreWriter(path, StoreInfo(dimension, "float16", "bottom-up-attention")) as writer:
        writer.add(Regions("x", 9, 9, np.array([[0, 0, 5, 5]], np.float32), np.zeros((1, dimension), np.float16)))
        writer.finish()
    return path


def test_elmo_is_the_official_one_unless_options_say_otherwise(tmp_path: Path) -> None:
    encoder = read_authors(write(tmp_path, make_state(1))).text.encoder
    assert encoder.settings == {
        "characters": 2, "filters": [[1, 2], [3, 4]], "highways": 1, "activation": "relu", "longest_word": 50,
        "state": 3, "cell": 5, "depth": 2, "cell_clip": 3.0, "state_clip": 3.0, "skip": True,
        "layers": "mean", "stateful": True, "lowercase": True, "frozen": True,
    }  # fmt: skip


def test_an_imported_checkpoint_is_one_of_ours(tmp_path: Path) -> None:
    path, batch = write(tmp_path, make_state(1)), tiny_batch(1, dimension=4)
    store = empty_store(tmp_path / "store", 4)
    arguments = [str(path), "--features", str(store), "--out", str(tmp_path / "ours")]
    assert CliRunner().invoke(app, ["import-authors", *arguments]).stdout == f"{tmp_path / 'ours'}\n"
    checkpoint = load_checkpoint(tmp_path / "ours")
    assert checkpoint.card.regions.extractor == "bottom-up-attention"
    with torch.no_grad():
        first, second = read_authors(path)(batch), checkpoint.model(batch)
    assert torch.equal(first.emissions, second.emissions)
    with pytest.raises(DataError, match="is there already"):
        import_authors(path, tmp_path / "ours", store)
    empty_store(tmp_path / "other", 3)
    with pytest.raises(DataError, match=r"other: has 3 features a region, .*model\.pt was trained with 4"):
        import_authors(path, tmp_path / "theirs", tmp_path / "other")
    assert not (tmp_path / "theirs").exists()


class Evil:
    def __reduce__(self) -> Any:
        return (math.sqrt, (2,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fusion.u.weight": None}, "has no 'fusion.u.weight'"),
        ({"extra.weight": torch.zeros(1)}, "it has extra.weight"),
        (
            {"fusion.p.weight": torch.zeros(J, R + 1)},
            r"does not fit its other weights: pairs\.p\.weight has shape \(7, 6\), not \(7, 5\)",
        ),
        ({"tranc.weight": torch.zeros(HIDDEN, 2 * 2 * H)}, "see 16 numbers of the caption"),
        (
            {"encoder.input_embedder.elmo.elmo.scalar_mix_0.gamma": torch.tensor([2.0])},
            "mix of ELMo's layers was trained",
        ),
        (
            {"encoder.input_embedder.elmo.elmo._elmo_lstm._token_embedder._char_embedding_weights": None},
            "it has no '_elmo",
        ),
        ({"fusion.p.bias": torch.full((J,), torch.nan)}, "broken: fusion.p.bias is not finite"),
        ({"fusion.v.weight": "text"}, "no model_state_dict of tensors"),
    ],
)
def test_other_files_are_refused_with_a_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    state = {name: value for name, value in (make_state(1) | change).items() if value is not None}
    path = write(tmp_path, state)
    with pytest.raises(DataError, match=words) as caught:
        read_authors(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_nothing_of_a_file_runs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a torch archive of plain tensors"):
        read_authors(write(tmp_path, make_state(1), args=Evil()))
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(DataError, match="not a torch archive of plain tensors"):
        read_authors(tmp_path / "text.pt")
    with pytest.raises(DataError, match=r"absent\.pt: cannot be read"):
        read_authors(tmp_path / "absent.pt")
