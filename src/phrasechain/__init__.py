"""Phrase grounding with a soft-label chain CRF.

``ChainCRF``, ``ChainTagger`` and ``Grounder`` load on first use, so that ``import phrasechain`` and the command line's
help stay fast: torch is imported only when something needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["ChainCRF", "ChainTagger", "Grounder", "__version__"]

if TYPE_CHECKING:
    from phrasechain.chain import ChainCRF, ChainTagger
    from phrasechain.grounding.grounder import Grounder

_HOMES = {
    "ChainCRF": "phrasechain.chain",
    "ChainTagger": "phrasechain.chain",
    "Grounder": "phrasechain.grounding.grounder",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from phrasechain.core.memory import collector_paused

        with collector_paused():
            return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'phrasechain' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
