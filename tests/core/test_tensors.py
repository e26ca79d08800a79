"""Safetensors files come back as they were, broken ones are one line, and modules are built once and without draws."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn

from phrasechain.core.errors import DataError
from phrasechain.core.tensors import EmptyParameters, assign_weights, read_tensors

WEIGHTS = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.tensor([1.0, -1.0])}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(WEIGHTS, tmp_path / "w.safetensors", {"format": "toy 1", "more": "words"})
    return tmp_path / "w.safetensors"


def refused(path: Path, words: str, **options: object) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_tensors(path, "toy", **options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_tensors_and_texts_come_back(path: Path) -> None:
    file = read_tensors(path, "toy", format="toy 1")
    assert file.metadata == {"format": "toy 1", "more": "words"}
    assert file.tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(file.tensors[name], tensor) for name, tensor in WEIGHTS.items())


def test_files_that_cannot_be_used(path: Path) -> None:
    whole = path.read_bytes()
    refused(path.parent / "absent", "cannot be read: No such file or directory$")
    refused(path.parent, "cannot be read: Is a directory$")
    refused(path, r"not a toy of this version \(toy 1, not toy 2\)$", format="toy 2")
    refused(path, "more than 10 bytes, so it is no toy$", largest=10)
    for data in (b"", b"x" * 99, whole[:-1], (1 << 60).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        refused(path, "broken toy: .*; delete it$", remedy="delete it")
    path.write_bytes(save({"weight": torch.zeros(1)}))
    refused(path, r"not a toy of this version \(no format at all, not toy 1\)$", format="toy 1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_numbers_that_are_not_finite(path: Path, dtype: torch.dtype, value: float) -> None:
    save_file({"a": torch.ones(2), "b": torch.tensor([1.0, value]).to(dtype), "c": torch.ones(1).int()}, path)
    refused(path, "broken toy: b is not finite$")
    assert read_tensors(path, "toy", finite=False).tensors.keys() == {"a", "b", "c"}


def load_module(
    build: Callable[[], nn.Module], tensors: Mapping[str, Tensor], parameters_only: bool = False
) -> nn.Module:
    with EmptyParameters():
        module = build()
    assert all(weight.is_meta for weight in module.parameters() if weight.requires_grad)
    assign_weights(module, tensors, "shape", parameters_only=parameters_only)
    return module


class Toy(nn.Module):
    """Every way to make parameters and buffers."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.lstm = nn.LSTM(3, 2, bidirectional=True)
        self.words = nn.Embedding(4, 3, padding_idx=0)
        self.drawn = nn.Parameter(torch.empty(2).uniform_(-1, 1))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        nn.init.xavier_uniform_(self.linear.weight)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("table", torch.arange(5) ** 2, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(x) - self.mean)
        return torch.cat([self.linear(self.words(x)) + self.drawn * self.frozen, states, self.table[x][..., None]], -1)


@pytest.mark.parametrize("half", [False, True])
def test_a_module_gets_its_weights_and_keeps_its_other_buffers(half: bool) -> None:
    torch.manual_seed(0)
    toy = Toy().eval()
    with torch.no_grad():
        toy.mean.normal_()
        for weight in toy.parameters():
            weight.copy_(weight.half())
    state = {name: tensor.half() if half and name != "mean" else tensor for name, tensor in toy.state_dict().items()}
    before = torch.get_rng_state()
    loaded = load_module(Toy, state).eval()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(each.device.type == "cpu" for each in (*loaded.parameters(), *loaded.buffers()))
    assert all(weight.dtype == torch.float32 for weight in loaded.parameters())
    assert [name for name, weight in loaded.named_parameters() if not weight.requires_grad] == ["frozen"]
    ids = torch.tensor([[1, 3, 0]])
    assert torch.equal(loaded(ids), toy(ids))


def test_a_module_does_not_share_memory_with_what_it_was_given() -> None:
    toy, weights = nn.Linear(3, 2), {name: tensor.clone() for name, tensor in WEIGHTS.items()}
    loaded = load_module(lambda: nn.Linear(3, 2), weights)
    weights["weight"].zero_()
    assert torch.equal(loaded.weight, WEIGHTS["weight"])
    assert loaded.weight.shape == toy.weight.shape


def test_parameters_alone_leave_the_buffers() -> None:
    toy = Toy()
    loaded = load_module(Toy, dict(toy.named_parameters()), parameters_only=True)
    assert torch.equal(loaded.mean, torch.zeros(3))
    with pytest.raises(DataError, match=r"^does not fit its shape: mean has shape none, not \(3,\)$"):
        load_module(Toy, dict(toy.named_parameters()))


def test_other_names_and_shapes_are_refused_before_memory_is_taken() -> None:
    def huge() -> nn.Module:
        return nn.Linear(1 << 22, 1 << 22)  # 70 TB

    for build, tensors, words in (
        (lambda: nn.Linear(3, 2), WEIGHTS | {"more": torch.zeros(1)}, r"more has shape \(1,\), not none"),
        (lambda: nn.Linear(3, 2), {"bias": WEIGHTS["bias"]}, r"weight has shape none, not \(2, 3\)"),
        (lambda: nn.Linear(2, 2), WEIGHTS, r"weight has shape \(2, 3\), not \(2, 2\)"),
        (huge, WEIGHTS, r"bias has shape \(2,\), not \(4194304,\)"),
    ):
        with pytest.raises(DataError, match=f"^does not fit its shape: {words}$"):
            load_module(build, tensors)


def test_loading_does_not_import_the_compiler() -> None:
    """It would double the time that a program takes to start."""
    program = (
        "import sys, torch; before = set(sys.modules)\n"
        "from phrasechain.grounding.pretrained import load_pretrained\n"
        "load_pretrained()\n"
        "print([name for name in set(sys.modules) - before if name.startswith(('torch._dynamo', 'torch._inductor',"
        " 'torch._decomp', 'torch._refs', 'sympy'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
