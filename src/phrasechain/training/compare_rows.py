"""What is compared: rows, which are trained, tables of rows asked in some way, and which of these are tested."""

from __future__ import annotations

from typing import NamedTuple

from phrasechain.evaluation.predict import InferenceOptions
from phrasechain.model.config import RECIPES

#: The compared systems, each trained by the recipe of its name.
SYSTEMS = {
    "Structured Matching": "structured-matching",
    "Phrase-Region CCA": "cca",
    "QRC Net": "qrc",
    "BAN": "ban",
    "DDPN": "ddpn",
}
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
    **{row: tuple(f"{key}={value}" for key, value in RECIPES[name].items()) for row, name in SYSTEMS.items()},
}
MODELS = ("HL", "SL", "HL-CCRF", "SL-CCRF")
FULL = (*SYSTEMS, *MODELS)  # trained with all seeds
REFERENCE = "SL-CCRF"
WORDS = "SL-CCRF, learned words"


class TableLine(NamedTuple):
    """A line of a table: its label, the row, and how the row is evaluated."""

    label: str
    row: str
    options: InferenceOptions = InferenceOptions()


_UNMOVED = InferenceOptions(box_regression=False)
TABLES: dict[str, tuple[TableLine, ...]] = {
    "models": tuple(TableLine(name, name) for name in (*SYSTEMS, *MODELS)),
    "context of the transitions": (
        TableLine("none", "SL-CCRF, no context"),
        TableLine("M", REFERENCE),
        TableLine("M+LR", "SL-CCRF, M+LR"),
        TableLine("M+LR+G", "SL-CCRF, M+LR+G"),
    ),
    "transitions": (TableLine("paper", REFERENCE), TableLine("geometric", "SL-CCRF, geometric")),
    "words": (TableLine("given vectors", REFERENCE), TableLine("learned", WORDS)),
    "decoding": tuple(
        TableLine(f"{name}, {method}", name, InferenceOptions(decode=method))
        for name in ("HL-CCRF", "SL-CCRF")
        for method in ("viterbi", "smoothing", "independent", "consensus")
    ),
    "box regression": (
        *(
            TableLine(f"{name}, {label}", name, options)
            for name in MODELS
            for label, options in (("moved", InferenceOptions()), ("not moved", _UNMOVED))
        ),
        TableLine("SL-CCRF, trained without", "SL-CCRF, no regression"),
    ),
    "phrases in the chain": tuple(
        TableLine(f"{name}, {regime}", name, InferenceOptions(regime=regime))
        for name in (*SYSTEMS, *MODELS, "SL-CCRF, summed out", "SL-CCRF, half of the unboxed")
        for regime in ("gold", "all")
    ),
}
HERE = TableLine(REFERENCE, REFERENCE)
#: What is tested against what.
TESTS: tuple[tuple[TableLine, TableLine], ...] = (
    *((TableLine(one, one), TableLine(other, other)) for one, other in (("SL", "HL"), ("HL-CCRF", "HL"))),
    *((HERE, TableLine(other, other)) for other in ("HL-CCRF", "SL")),
    *((TableLine(row, row), HERE) for row in ROWS if row not in MODELS),
    *(
        (TableLine(f"SL-CCRF, {method}", REFERENCE, InferenceOptions(decode=method)), HERE)
        for method in ("smoothing", "independent", "consensus")
    ),
    (TableLine("SL-CCRF, not moved", REFERENCE, _UNMOVED), HERE),
)
