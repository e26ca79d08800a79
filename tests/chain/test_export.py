"""torch.export of decoding, with the batch and the number of labels left open."""

import pytest
import torch
from torch import Tensor, nn

from phrasechain import ChainCRF


class Decode(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def forward(self, emissions: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
        crf = ChainCRF(emissions, transitions, lengths)
        return crf.viterbi()[0] if self.method == "viterbi" else crf.smoothing()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("method", ["viterbi", "smoothing"])
@pytest.mark.parametrize("shared", [False, True])
def test_decoding_exports(method: str, shared: bool) -> None:
    T = 4
    batch, labels = torch.export.Dim("B", min=2), torch.export.Dim("K", min=2)

    def inputs(B: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(B * K)
        shape = (K, K) if shared else (B, T - 1, K, K)
        lengths = torch.randint(1, T + 1, (B,), generator=generator)
        return torch.randn(B, T, K, generator=generator), torch.randn(shape, generator=generator), lengths

    dynamic = {
        "emissions": {0: batch, 2: labels},
        "transitions": {0: labels, 1: labels} if shared else {0: batch, 2: labels, 3: labels},
        "lengths": {0: batch},
    }
    program = torch.export.export(Decode(method), inputs(3, 5), dynamic_shapes=dynamic)
    for B, K in ((3, 5), (7, 11), (2, 2)):
        arguments = inputs(B, K)
        assert torch.equal(program.module()(*arguments), Decode(method)(*arguments))
