"""Checkpoints in the format of the authors' code, and a slow reading of what it computes, phrase by phrase."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def optimised(state: dict[str, Tensor], chain: bool, gamma: float, with_mixes: bool = True) -> dict[str, Any]:
    """The state of their optimiser: Adam on all but the frozen ELMo, after a step on losses with and without parts."""
    trained = {
        name: torch.nn.Parameter(tensor.clone())
        for name, tensor in state.items()
        if not name.startswith(UNDER) or (with_mixes and "scalar_mix" in name)
    }
    adam = torch.optim.Adam(trained.values(), betas=(0.9, 0.98))
    loss = torch.zeros(())
    for name, weight in trained.items():
        if name.startswith("reg_head"):
            loss = loss + gamma * weight.square().sum()
        elif not name.startswith(UNDER) and (chain or not name.startswith("tran")):
            loss = loss + weight.square().sum()
    loss.backward()
    adam.step()
    return adam.state_dict()
