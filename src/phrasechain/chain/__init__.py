"""The soft-label chain CRF layer; it needs torch and nothing else.

- ``crf.py``: :class:`ChainCRF`, the public class; ``checks.py``: validation of its arguments.
- ``recursion.py``: the forward-backward and Viterbi recursions in plain torch, differentiable and exportable.
- ``loss.py``: log Z and KL(q ‖ p), by ``kernel.c`` (through ``kernel.py``) or by ``scaled.py``.
- ``operators.py``: the loss as custom operators; ``autograd.py``: its rules for autograd and torch.func.
- ``second_order*.py``: the same for second-order chains; ``divergence.py``: KL between two chains.
- ``tagger.py``: :class:`ChainTagger`, a module with learned transitions.
"""

from phrasechain.chain.crf import ChainCRF, backend
from phrasechain.chain.tagger import ChainTagger

__all__ = ["ChainCRF", "ChainTagger", "backend"]
