"""An imported checkpoint against a slow reading of what the authors' code computes, phrase by phrase."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

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

ELMO, H, R, J, V, HIDDEN = 6, 4, 5, 7, 4 + 5, 3  # token vectors, LSTM states, rank, joint, region vectors, transition
SPREAD = 0.8
UNDER = "encoder.input_embedder.elmo.elmo."


def elmo_state() -> dict[str, Tensor]:
    """A small ELMo under the names that it has in their files."""
    shapes = {"_token_embedder._char_embedding_weights": (262, 2)}
    for place, (width, count) in enumerate([(1, 2), (3, 4)]):
        shapes |= {f"_token_embedder.char_conv_{place}.weight": (count, 2, width)}
        shapes |= {f"_token_embedder.char_conv_{place}.bias": (count,)}
    shapes |= {"_token_embedder._highways._layers.0.weight": (12, 6), "_token_embedder._highways._layers.0.bias": (12,)}
    shapes |= {"_token_embedder._projection.weight": (3, 6), "_token_embedder._projection.bias": (3,)}
    for direction in ("forward", "backward"):
        for place in range(2):
            layer = f"_elmo_lstm.{direction}_layer_{place}"
            shapes |= {f"{layer}.input_linearity.weight": (20, 3), f"{layer}.state_linearity.weight": (20, 3)}
            shapes |= {f"{layer}.state_linearity.bias": (20,), f"{layer}.state_projection.weight": (3, 5)}
    state = {f"_elmo_lstm.{name}": torch.randn(*shape) for name, shape in shapes.items()}
    state |= {f"scalar_mix_0.scalar_parameters.{place}": torch.zeros(1) for place in range(3)}
    return state | {"scalar_mix_0.gamma": torch.ones(1)}


def make_state(parts: int, chain: bool = True, regression: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(parts)
    shapes: dict[str, tuple[int, ...]] = {}
    for end in ("", "_reverse"):
        shapes |= {f"encoder.lstm.weight_ih_l0{end}": (4 * H, ELMO), f"encoder.lstm.weight_hh_l0{end}": (4 * H, H)}
        shapes |= {f"encoder.lstm.bias_ih_l0{end}": (4 * H,), f"encoder.lstm.bias_hh_l0{end}": (4 * H,)}
    shapes |= {
        "fusion.u.weight": (R, 2 * H),
        "fusion.v.weight": (R, V),
        "fusion.p.weight": (J, R),
        "fusion.p.bias": (J,),
    }
    shapes |= {"aff_head.linear.weight": (1, J), "aff_head.linear.bias": (1,)}
    if regression:
        shapes |= {"reg_head.linear.weight": (4, J), "reg_head.linear.bias": (4,)}
    if chain:
        shapes |= {"tran0.weight": (HIDDEN, V), "tran0.bias": (HIDDEN,), "tran1.weight": (HIDDEN, V)}
        shapes |= {"tran1.bias": (HIDDEN,), "tran.weight": (1, HIDDEN), "tran.bias": (1,)}
        if parts:
            shapes |= {"tranc.weight": (HIDDEN, parts * 2 * H), "tranc.bias": (HIDDEN,)}
    state = {name: SPREAD * torch.randn(*shape) for name, shape in shapes.items()}
    return state | {UNDER + name: tensor for name, tensor in elmo_state().items()}


def write(folder: Path, state: Any, **others: Any) -> Path:
    torch.save({"model_state_dict": state, **others}, folder / "model.pt")
    return folder / "model.pt"


def slow_lstm(state: dict[str, Tensor], tokens: Tensor, end: str) -> list[Tensor]:
    """States at each token, (L, E) to L of (H,), reading all of the padding."""
    h, c, found = torch.zeros(H), torch.zeros(H), []
    for x in tokens:
        gates = sum(
            state[f"encoder.lstm.weight_{kind}_l0{end}"] @ value + state[f"encoder.lstm.bias_{kind}_l0{end}"]
            for kind, value in (("ih", x), ("hh", h))
        )
        assert isinstance(gates, Tensor)
        enter, forget, new, leave = gates.chunk(4)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
        found.append(h)
    return found


class SlowAuthors:
    """What their code computes for one caption, from paper-notes: given the token vectors of its padded batch."""

    def __init__(self, state: dict[str, Tensor], tokens: Tensor, spans: list[tuple[int, int]], regions: Tensor) -> None:
        self.state, self.spans, self.regions = state, spans, regions
        self.ahead = slow_lstm(state, tokens, "")
        self.back = slow_lstm(state, tokens.flip(0), "_reverse")[::-1]

    def phrase(self, t: int) -> Tensor:
        first, end = self.spans[t]
        return torch.cat([self.ahead[end - 1], self.back[first]])

    def pair(self, t: int, k: int) -> Tensor:
        """The emission and the offsets."""
        s = self.state
        fused = (s["fusion.u.weight"] @ self.phrase(t)) * (s["fusion.v.weight"] @ self.regions[k])
        fused = (s["fusion.p.weight"] @ fused + s["fusion.p.bias"]).clamp(min=0)
        heads = [name for name in ("aff_head", "reg_head") if f"{name}.linear.weight" in s]
        return torch.cat([s[f"{name}.linear.weight"] @ fused + s[f"{name}.linear.bias"] for name in heads])

    def transition(self, t: int, k: int, other: int, parts: int) -> float:
        """From phrase t at region k to phrase t + 1 at the other."""
        s = self.state
        hidden = s["tran0.weight"] @ self.regions[k] + s["tran0.bias"]
        hidden = hidden + s["tran1.weight"] @ self.regions[other] + s["tran1.bias"]
        if parts:
            middle = torch.cat([self.ahead[self.spans[t + 1][0] - 1], self.back[self.spans[t][1]]])
            whole = torch.cat([self.ahead[-1], self.back[0]])
            context = torch.cat([middle, self.phrase(t), self.phrase(t + 1), whole][:parts])
            hidden = hidden + s["tranc.weight"] @ context + s["tranc.bias"]
        return float(s["tran.weight"] @ hidden.clamp(min=0) + s["tran.bias"])


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


def test_elmo_is_the_official_one_unless_options_say_otherwise(tmp_path: Path) -> None:
    encoder = read_authors(write(tmp_path, make_state(1))).text.encoder
    assert encoder.settings == {
        "characters": 2, "filters": [[1, 2], [3, 4]], "highways": 1, "activation": "relu", "longest_word": 50,
        "state": 3, "cell": 5, "depth": 2, "cell_clip": 3.0, "state_clip": 3.0, "skip": True,
        "layers": "mean", "stateful": True, "lowercase": True, "frozen": True,
    }  # fmt: skip


def test_an_imported_checkpoint_is_one_of_ours(tmp_path: Path) -> None:
    path, batch = write(tmp_path, make_state(1)), tiny_batch(1, dimension=4)
    store = tmp_path / "store"
    with StoreWriter(store, StoreInfo(4, "float16", "bottom-up-attention")) as writer:
        writer.add(Regions("x", 9, 9, np.array([[0, 0, 5, 5]], np.float32), np.zeros((1, 4), np.float16)))
        writer.finish()
    arguments = [str(path), "--features", str(store), "--out", str(tmp_path / "ours")]
    assert CliRunner().invoke(app, ["import-authors", *arguments]).output == f"{tmp_path / 'ours'}\n"
    checkpoint = load_checkpoint(tmp_path / "ours")
    assert checkpoint.card.regions.extractor == "bottom-up-attention"
    with torch.no_grad():
        first, second = read_authors(path)(batch), checkpoint.model(batch)
    assert torch.equal(first.emissions, second.emissions)
    with pytest.raises(DataError, match="is there already"):
        import_authors(path, tmp_path / "ours", store)
    with StoreWriter(tmp_path / "other", StoreInfo(3)) as writer:
        writer.add(Regions("x", 9, 9, np.array([[0, 0, 5, 5]], np.float32), np.zeros((1, 3), np.float16)))
        writer.finish()
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
