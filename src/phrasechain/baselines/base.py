"""What every compared system is: a batch in, scores out; a loss as sums and counts; its own way to choose regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

from torch import Tensor, nn

from phrasechain.core.schema import Phrase
from phrasechain.model.batch import Batch
from phrasechain.model.decode import Decoded, decode
from phrasechain.model.losses import LossTerms
from phrasechain.model.scores import Scores
from phrasechain.model.system import GroundingSystem
from phrasechain.model.targets import Targets, make_targets
from phrasechain.text.base import TextEncoder

Annotated = tuple[Batch, Sequence[Phrase]]


class Words(nn.Module):
    """What reads captions."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder


class Baseline(GroundingSystem):
    """A system with the scoring, the loss and the inference of its paper; region and word features are ours.

    ``needs`` names the libraries of the extra ``baselines`` that it runs on. With ``frozen_words`` word vectors are
    taken as they are, without word dropout.
    """

    needs: tuple[str, ...] = ()
    frozen_words = False
    #: From a batch and its phrases to what it learns from: by default the overlap of each region with the merged box.
    targets: Callable[[Batch, Sequence[Phrase]], Targets] = staticmethod(make_targets)

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.text = Words(encoder)
        if self.frozen_words:
            encoder.requires_grad_(False)

    @property
    def encoder(self) -> TextEncoder:
        return self.text.encoder

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.encoder.train(mode and not self.frozen_words)
        return self

    def fit(self, batches: Iterable[Annotated]) -> None:
        """Learn what has a closed form, before the first step. ``batches`` may be gone through more than once."""

    def forward(self, batch: Batch) -> Scores:
        """Emissions (P, K), and offsets (P, K, 4) or ``None``; there are no transitions."""
        raise NotImplementedError

    def loss_counts(self, batch: Batch, targets: Targets) -> Tensor:
        """What the sums of :meth:`loss` are divided by, and how many phrases are trained: (3,) int64."""
        raise NotImplementedError

    def loss(self, batch: Batch, targets: Targets) -> LossTerms:
        """The loss of a batch as sums and counts."""
        raise NotImplementedError

    def decode(self, scores: Scores, batch: Batch, method: str = "viterbi") -> Decoded:
        """Ground every phrase: ``viterbi``, the best for the caption, is the system's own inference."""
        return self.infer(scores, batch) if method == "viterbi" else decode(scores, batch, method)

    def infer(self, scores: Scores, batch: Batch) -> Decoded:
        """The inference of its paper; by default each phrase takes its region of highest emission."""
        return decode(scores, batch, "independent")
