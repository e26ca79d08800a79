"""The soft-label chain CRF layer; it needs torch and nothing else.

- ``crf.py``: :class:`ChainCRF`, the public class; ``checks.py``: validation of its arguments.
- ``recursion.py``: the forward-backward and Viterbi recursions in plain torch, differentiable and exportable.
- ``loss.py``: log Z and KL(q ‖ p) as one operator, by ``kernel.c`` (through ``kernel.py``) or by ``scaled.py``.
- ``tagger.py``: :class:`ChainTagger`, a module with learned transitions.
"""

from phrasechain.chain.crf import ChainCRF, backend
from phrasechain.chain.tagger import ChainTagger

__all__ = ["ChainCRF", "ChainTagger", "backend"]
