"""What is compared: rows, which are trained, tables of rows asked in some way, and which of these are tested."""

from __future__ import annotations

from typing import NamedTuple

from phrasechain.evaluation.predict import Answering

_SL_CCRF = ("loss.targets=soft", "model.chain=true")
#: The models, by name: what is set for each besides what is set for all.
ROWS: dict[str, tuple[str, ...]] = {
    "HL": ("loss.targets=hard", "model.chain=false"),
    "SL": ("loss.targets=soft", "model.chain=false"),
    "HL-CCRF": ("loss.targets=hard", "model.chain=true"),
    "SL-CCRF": _SL_CCRF,
    "SL-CCRF, no context": (*_SL_CCRF, "model.context=none"),
    "SL-CCRF, M+LR": (*_SL_CCRF, "model.context=M+LR"),
    "SL-CCRF, M+LR+G": (*_SL_CCRF, "model.context=M+LR+G"),
    "SL-CCRF, learned words": (*_SL_CCRF, "text.vectors="),
    "SL-CCRF, no regression": (*_SL_CCRF, "model.box_regression=false"),
    "SL-CCRF, geometric": (*_SL_CCRF, "model.transition=geometric"),
    "SL-CCRF, summed out": (*_SL_CCRF, "loss.unlabelled=marginalise"),
    "SL-CCRF, half of the unboxed": (*_SL_CCRF, "loss.unlabelled=marginalise", "data.unboxed=0.5"),
}
MODELS = ("HL", "SL", "HL-CCRF", "SL-CCRF")  # trained with all seeds
REFERENCE = "SL-CCRF"
WORDS = "SL-CCRF, learned words"


class Asked(NamedTuple):
    """A line of a table: its label, the row, and how it is asked."""

    label: str
    row: str
    answering: Answering = Answering()


_UNMOVED = Answering(box_regression=False)
TABLES: dict[str, tuple[Asked, ...]] = {
    "models": tuple(Asked(name, name) for name in MODELS),
    "context of the transitions": (
        Asked("none", "SL-CCRF, no context"),
        Asked("M", REFERENCE),
        Asked("M+LR", "SL-CCRF, M+LR"),
        Asked("M+LR+G", "SL-CCRF, M+LR+G"),
    ),
    "transitions": (Asked("paper", REFERENCE), Asked("geometric", "SL-CCRF, geometric")),
    "words": (Asked("given vectors", REFERENCE), Asked("learned", WORDS)),
    "decoding": tuple(
        Asked(f"{name}, {how}", name, Answering(decode=how))
        for name in ("HL-CCRF", "SL-CCRF")
        for how in ("viterbi", "smoothing", "independent", "consensus")
    ),
    "box regression": (
        *(
            Asked(f"{name}, {label}", name, answering)
            for name in MODELS
            for label, answering in (("moved", Answering()), ("not moved", _UNMOVED))
        ),
        Asked("SL-CCRF, trained without", "SL-CCRF, no regression"),
    ),
    "phrases in the chain": tuple(
        Asked(f"{name}, {regime}", name, Answering(regime=regime))
        for name in (*MODELS, "SL-CCRF, summed out", "SL-CCRF, half of the unboxed")
        for regime in ("gold", "all")
    ),
}
HERE = Asked(REFERENCE, REFERENCE)
#: What is tested against what.
TESTS: tuple[tuple[Asked, Asked], ...] = (
    *((Asked(one, one), Asked(other, other)) for one, other in (("SL", "HL"), ("HL-CCRF", "HL"))),
    *((HERE, Asked(other, other)) for other in ("HL-CCRF", "SL")),
    *((Asked(row, row), HERE) for row in ROWS if row not in MODELS),
    *(
        (Asked(f"SL-CCRF, {how}", REFERENCE, Answering(decode=how)), HERE)
        for how in ("smoothing", "independent", "consensus")
    ),
    (Asked("SL-CCRF, not moved", REFERENCE, _UNMOVED), HERE),
)
