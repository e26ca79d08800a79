"""What is compared: rows, which are trained, tables of rows evaluated in some way, and which of these are tested."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

from phrasechain.evaluation.predict import InferenceOptions
from phrasechain.model.config import RECIPES, Config

#: The compared systems, each trained by the recipe of its name.
SYSTEMS = {
    "Structured Matching": "structured-matching",
    "Phrase-Region CCA": "cca",
    "QRC Net": "qrc",
    "BAN": "ban",
    "DDPN": "ddpn",
}
_LIBRARIES = dict.fromkeys(("Structured Matching", "Phrase-Region CCA"), ("scipy", "sklearn"))
_HL = ("loss.targets=hard", "model.chain=false")
_SL_CCRF = ("loss.targets=soft", "model.chain=true")
_GEOMETRIC = (*_SL_CCRF, "model.transition=geometric")
_SECOND_ORDER = (*_GEOMETRIC, "model.second_order=true")
GLOVE, LEARNED, REFERENCE = "HL (GloVe)", "SL-CCRF learned words", "SL-CCRF"
#: The models, by name: what is set for each besides what is set for all. Names hold no commas.
ROWS: dict[str, tuple[str, ...]] = {
    **{row: tuple(f"{key}={value}" for key, value in RECIPES[name].items()) for row, name in SYSTEMS.items()},
    GLOVE: (*_HL, "text.encoder=words"),
    "HL": _HL,
    "SL": ("loss.targets=soft", "model.chain=false"),
    "HL-CCRF": ("loss.targets=hard", "model.chain=true"),
    REFERENCE: _SL_CCRF,
    "SL-CCRF no context": (*_SL_CCRF, "model.context=none"),
    "SL-CCRF M+LR": (*_SL_CCRF, "model.context=M+LR"),
    "SL-CCRF M+LR+G": (*_SL_CCRF, "model.context=M+LR+G"),
    "SL-CCRF no regression": (*_SL_CCRF, "model.box_regression=false"),
    LEARNED: (*_SL_CCRF, "text.vectors="),
    "SL-CCRF geometric": _GEOMETRIC,
    "SL-CCRF second order": _SECOND_ORDER,
    "SL-CCRF absent": (*_SECOND_ORDER, "model.absent=true"),
    "SL-CCRF summed out": (*_SL_CCRF, "loss.unlabelled=marginalise"),
    "SL-CCRF half of the unboxed": (*_SL_CCRF, "loss.unlabelled=marginalise", "data.unboxed=0.5"),
}
MODELS = ("HL", "SL", "HL-CCRF", REFERENCE)
#: The rows of Table 1.
FIRST = (*SYSTEMS, GLOVE, *MODELS)


class TableLine(NamedTuple):
    """A line of a table: its label, the row, how the row is evaluated, and the paper's accuracy on its test set."""

    label: str
    row: str
    options: InferenceOptions = InferenceOptions()
    published: float | None = None


_PUBLISHED = dict(zip(FIRST, (42.08, 55.85, 65.14, 69.69, 73.3, 71.88, 72.21, 74.29, 72.26, 74.69), strict=True))
_UNMOVED = InferenceOptions(box_regression=False)
_SMOOTHED = {"HL-CCRF": 72.30, REFERENCE: 74.73}
TABLES: dict[str, tuple[TableLine, ...]] = {
    "Table 1: models": tuple(TableLine(name, name, published=_PUBLISHED[name]) for name in FIRST),
    "Table 2: context of the transitions": (
        TableLine("none", "SL-CCRF no context", published=74.28),
        TableLine("M", REFERENCE, published=74.69),
        TableLine("M+LR", "SL-CCRF M+LR", published=74.45),
        TableLine("M+LR+G", "SL-CCRF M+LR+G", published=74.48),
    ),
    "Table 3: decoders": tuple(
        TableLine(
            f"{name} by {method}",
            name,
            InferenceOptions(decode=method),
            {"viterbi": _PUBLISHED, "smoothing": _SMOOTHED}.get(method, {}).get(name),
        )
        for name in ("HL-CCRF", REFERENCE)
        for method in ("viterbi", "smoothing", "independent", "consensus")
    ),
    "Without box regression": (
        *(
            TableLine(f"{name}{label}", name, options, published)
            for name in MODELS
            for label, options, published in (
                ("", InferenceOptions(), _PUBLISHED[name]),
                (" not moved", _UNMOVED, None),
            )
        ),
        TableLine("SL-CCRF trained without", "SL-CCRF no regression", published=69.85),
    ),
    "Both regimes: phrases in the chain": tuple(
        TableLine(f"{name}: {regime}", name, InferenceOptions(regime=regime))
        for name in (*SYSTEMS, *MODELS, "SL-CCRF summed out", "SL-CCRF half of the unboxed")
        for regime in ("gold", "all")
    ),
    "Structure": (
        TableLine("no chain", "SL"),
        TableLine("transitions without context", "SL-CCRF no context"),
        TableLine("context M", REFERENCE),
        TableLine("+ geometry", "SL-CCRF geometric"),
        TableLine("+ second order", "SL-CCRF second order"),
        TableLine("+ the label ∅", "SL-CCRF absent"),
    ),
    "Words": (TableLine("given vectors", REFERENCE), TableLine("learned", LEARNED)),
}
HERE = TableLine(REFERENCE, REFERENCE)
#: What is tested against what.
TESTS: tuple[tuple[TableLine, TableLine], ...] = (
    *(
        (TableLine(one, one), TableLine(other, other))
        for one, other in (("SL", "HL"), ("HL-CCRF", "HL"), ("HL", GLOVE), (REFERENCE, "HL-CCRF"), (REFERENCE, "SL"))
    ),
    *((TableLine(row, row), HERE) for row in ROWS if row not in (*MODELS, GLOVE)),
    *(
        (TableLine(one, one), TableLine(other, other))
        for one, other in (
            ("SL-CCRF geometric", "SL"),
            ("SL-CCRF second order", "SL-CCRF geometric"),
            ("SL-CCRF absent", "SL-CCRF second order"),
        )
    ),
    *(
        (TableLine(f"SL-CCRF by {method}", REFERENCE, InferenceOptions(decode=method)), HERE)
        for method in ("smoothing", "independent", "consensus")
    ),
    (TableLine("SL-CCRF not moved", REFERENCE, _UNMOVED), HERE),
)
#: The chain and the model without one that are shown side by side, the first pair that is there.
SIDE_BY_SIDE = ((REFERENCE, "SL"), ("HL-CCRF", "HL"))


def options_of(row: str) -> list[InferenceOptions]:
    """All ways in which the tables and tests evaluate a row."""
    lines = [*(line for lines in TABLES.values() for line in lines), *(line for pair in TESTS for line in pair)]
    return list(dict.fromkeys(line.options for line in lines if line.row == row))


def unavailable(row: str, base: Config) -> str | None:
    """Why a row cannot be trained here, or would be another row again; ``None`` if it can."""
    text = base.text
    if row == GLOVE and text.encoder == "words":
        return (
            "needs ELMo weights for the other rows (text.encoder=elmo, text.options, text.weights): else it is HL again"
        )
    if row == GLOVE and not text.vectors:
        return "needs word vectors (text.vectors)"
    if row == LEARNED and not (text.encoder == "words" and text.vectors):
        return f"needs word vectors for the other rows (text.vectors): else it is {REFERENCE} again"
    if missing := [name for name in _LIBRARIES.get(row, ()) if find_spec(name) is None]:
        return f"needs {' and '.join(missing)}: pip install 'phrasechain[baselines]'"
    return None
