"""Regimes: which phrases of a caption are in its chain, and which of those are evaluated.

``gold``: the chain has exactly the phrases with a box, as in the paper. ``all``: it has every annotated visual phrase,
as in use. The evaluated phrases, those with a box, are the same in both.
"""

from __future__ import annotations

from phrasechain.core.errors import require_name
from phrasechain.core.schema import Caption, Phrase

REGIMES = ("gold", "all")


def is_scored(phrase: Phrase) -> bool:
    """Whether the phrase is visual and has a known box."""
    return phrase.is_visual and bool(phrase.boxes)


def has_target(phrase: Phrase) -> bool:
    """Whether training knows what is right: the phrase has a box, or the photo does not show it."""
    return is_scored(phrase) or phrase.is_absent


def chain_phrases(caption: Caption, regime: str) -> list[Phrase]:
    """The phrases of the caption's chain, in the order of the caption."""
    require_name("regime", regime, REGIMES)
    return [phrase for phrase in caption.phrases if (is_scored(phrase) if regime == "gold" else phrase.is_visual)]
