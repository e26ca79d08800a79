"""What a training run can be told: frozen sections of plain values, presets, TOML files and ``section.key=value``.

A module never receives a config, only values out of it. Names of variants (encoders, contexts, optimisers …) are
checked where they live, by what builds them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints

from phrasechain.core.errors import DataError, unknown_name
from phrasechain.core.files import read_bounded

_FILE_LIMIT = 1 << 20
#: Keys of earlier versions, and those that are gone with the value that asked for nothing.
_ALIASES = {"model.bag": "model.bag_of_words", "model.members": "model.ensemble"}
_REMOVED = {"model.objectness": False}


def _number(default: Any, least: float, most: float | None = None) -> Any:
    """A field whose value has bounds."""
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, slots=True)
class Data:
    """Which captions are learnt from."""

    fit: str = "fit"  # the split that is learnt from
    dev: str = "dev"  # the split that chooses the best checkpoint
    reading: str = "corrected"  # or authors: as their code reads the mark-up
    unboxed: float = _number(0.0, 0, 1)  # share of the visual phrases without a box that are kept in a chain, at random
    limit: int = _number(0, 0)  # only the first images of each split; 0: all


@dataclass(frozen=True, slots=True)
class Text:
    """How words become vectors; most keys are for one encoder."""

    encoder: str = "words"  # words, elmo or transformer
    dimension: int = _number(300, 1, 4096)  # words: numbers of a vector, where no file gives them
    vectors: str = ""  # words: a GloVe or word2vec text file to begin with, .gz too
    all_vectors: bool = True  # words: also those of words that no caption has; false for large files
    rare: int = _number(1, 1)  # words: a word that occurs less often is known by its character n-grams alone
    buckets: int = _number(10_000, 1, 1 << 24)  # words: vectors that character n-grams share
    word_dropout: float = _number(0.02, 0, 0.99)  # words: share of words taken for unknown, so that n-grams learn
    frozen: bool = False  # words: keep the vectors of words as they are
    options: str = ""  # elmo: its options.json
    weights: str = ""  # elmo: its weights.hdf5
    layers: str = "last"  # elmo: last or mean
    stateful: bool = False  # elmo: carry the state from batch to batch
    lowercase: bool = False  # elmo: read words in lower case; the encoder words always does
    model: str = ""  # transformer: a folder or a hub id
    fine_tune: bool = False  # elmo, transformer: train their weights too
    cache: str = ""  # elmo, transformer: a folder for the vectors of captions, computed once


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes and parts of the network that scores regions."""

    lstm: int = _number(512, 1, 65536)  # numbers of a state, in each direction
    rank: int = _number(1024, 1, 65536)
    joint: int = _number(1024, 1, 65536)
    activation: str = "relu"  # on the fused vector; none in the paper
    chain: bool = True  # False: every phrase by itself
    transition: str = "paper"
    context: str = "M"  # none, M, M+LR or M+LR+G
    transition_hidden: int = _number(16, 1, 65536)
    box_regression: bool = True
    dropout: float = _number(0.2, 0, 0.99)
    packed: bool = True  # False: the LSTM runs over padding
    init: str = "xavier"  # or default, that of PyTorch
    normalise: str = "none"  # of region features: none or standardise
    bag_of_words: float = _number(0.0, 0)  # weight of the scores of a phrase's words without their order; 0: none
    ensemble: int = _number(1, 1, 64)  # networks that share word vectors and whose scores are averaged


@dataclass(frozen=True, slots=True)
class Loss:
    """What is minimised: the grounding loss per phrase plus gamma times the box loss per positive pair."""

    targets: str = "soft"  # or hard; or refined: soft, by overlaps after box regression too
    unlabelled: str = "skip"  # phrases whose regions are all below IoU 0.5: skip, marginalise, best, or authors
    divide: str = "labelled"  # or all: the phrases that the grounding loss is divided by; or captions
    regress: str = "all"  # regions of a phrase that boxes are learnt from: all from IoU 0.5 on, best, or authors
    offsets: str = "mean"  # or sum: of the losses of a pair's four offsets
    least_side: float = _number(0.0, 0, 1)  # sides count as at least this share of the image's in offsets
    gamma: float = _number(10.0, 0)

    def settled(self) -> Loss:
        """The values that ``authors`` stands for: their code treats hard targets otherwise than soft ones.

        >>> Loss(targets="hard", unlabelled="authors", regress="authors").settled().unlabelled
        'best'
        """
        unlabelled, regress = ("best", "best") if self.targets == "hard" else ("skip", "all")
        return replace(
            self,
            unlabelled=unlabelled if self.unlabelled == "authors" else self.unlabelled,
            regress=regress if self.regress == "authors" else self.regress,
        )


@dataclass(frozen=True, slots=True)
class Train:
    """How it is minimised. Steps and batches are those of all processes together."""

    optimizer: str = "adamw"  # or adam
    rate: float = _number(1e-3, 0)
    encoder_rate: float = _number(1.0, 0)  # of the text encoder's weights, as a share of rate
    beta1: float = _number(0.9, 0, 0.999999)
    beta2: float = _number(0.999, 0, 0.999999)
    weight_decay: float = _number(0.01, 0)
    schedule: str = "one_cycle"  # or constant
    warm_up: float = _number(0.1, 0, 1)  # share of the steps until the peak of one_cycle
    epochs: float = _number(3.0, 0)  # passes over the data; where steps is 0
    steps: int = _number(0, 0)
    by: str = "image"  # image (all its captions together), caption, or draw (with replacement, a caption each)
    batch: int = _number(16, 1, 1 << 20)  # images or captions of a step
    window: int = _number(8, 1, 1 << 20)  # batches that are sorted by size together; 1: no sorting
    accumulate: int = _number(1, 1, 1 << 16)  # parts that a process takes its share of a step in
    clip: float = _number(10.0, 0)  # 0: no clipping
    clip_by: str = "norm"  # the gradient's ∞-norm, or value: each element by itself
    average: float = _number(0.0, 0, 0.999999)  # how slowly averaged weights follow, which are then the model; 0: none
    precision: str = "float32"  # or bf16
    score_every: int = _number(0, 0)  # steps between scores on dev; 0: one pass over the data
    save_every: int = _number(200, 1)  # steps between checkpoints for going on; each score makes one too
    patience: int = _number(0, 0)  # scores without a new best before it stops; 0: it does not
    workers: int = _number(0, 0, 256)  # processes that prepare batches; 0: the one that trains
    seed: int = _number(0, 0, (1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class Decode:
    """How boxes are chosen when dev is scored, and by default afterwards."""

    how: str = "viterbi"  # smoothing, independent or consensus


@dataclass(frozen=True, slots=True)
class Config:
    """All of it."""

    data: Data = Data()
    text: Text = Text()
    model: Model = Model()
    loss: Loss = Loss()
    train: Train = Train()
    decode: Decode = Decode()


Values = Mapping[str, Any]  # "section.key" to value

#: Where the training's own values are concerned: as in the paper, or as fast as it goes without loss.
RECIPES: dict[str, Values] = {
    "fast": {},
    "paper": {
        "train.optimizer": "adam",
        "train.rate": 5e-5,
        "train.beta2": 0.98,
        "train.weight_decay": 0.0,
        "train.schedule": "constant",
        "train.steps": 50_000,
        "train.by": "caption",
        "train.window": 1,
        "train.score_every": 5_000,
        "train.save_every": 500,
    },
}

#: Everything else; the recipe of a preset is the last of its values that can be chosen apart.
PRESETS: dict[str, Values] = {
    "corrected": {},
    "small": {
        "text.dimension": 100,
        "model.lstm": 200,
        "model.rank": 384,
        "model.joint": 192,
    },
    "paper": {
        "text.encoder": "elmo",
        "model.activation": "none",
        "loss.divide": "captions",
        "loss.offsets": "sum",
    },
    "authors": {
        "data.reading": "authors",
        "text.encoder": "elmo",
        "text.layers": "mean",
        "text.stateful": True,
        "text.lowercase": True,
        "model.packed": False,
        "model.init": "default",
        "loss.unlabelled": "authors",
        "loss.divide": "all",
        "loss.regress": "authors",
        "loss.least_side": 0.1,
        "train.by": "draw",
        "train.clip_by": "value",
    },
}
DEFAULT_PRESET = "corrected"
RECIPE_OF = {"corrected": "fast", "small": "fast", "paper": "paper", "authors": "paper"}


def make_config(
    preset: str = DEFAULT_PRESET,
    recipe: str | None = None,
    file: Path | None = None,
    settings: Sequence[str] = (),
) -> Config:
    """A config from a recipe, a preset, a TOML file and ``section.key=value`` texts; what comes later wins.

    >>> config = make_config("small", settings=["model.context=M+LR", "train.rate=2e-3"])
    >>> config.model.rank, config.model.context, config.train.rate
    (384, 'M+LR', 0.002)
    """
    if preset not in PRESETS:
        raise DataError(unknown_name("preset", preset, PRESETS))
    recipe = RECIPE_OF[preset] if recipe is None else recipe
    if recipe not in RECIPES:
        raise DataError(unknown_name("recipe", recipe, RECIPES))
    config = with_values(with_values(Config(), RECIPES[recipe]), PRESETS[preset])
    if file is not None:
        config = with_values(config, _read_toml(file), str(file))
    return with_settings(config, settings)


def with_settings(config: Config, settings: Iterable[str]) -> Config:
    """The config with ``section.key=value`` texts applied, each parsed as its key's type."""
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = _ALIASES.get(name.strip(), name)
        if not equals:
            raise DataError(f"--set takes section.key=value, such as train.rate=1e-3, not {setting!r}")
        kind = _kind(config, name.strip(), "--set")
        config = with_values(config, {name.strip(): _parse(text.strip(), kind, name.strip())}, "--set")
    return config


def with_values(config: Config, values: Values, where: str = "") -> Config:
    """The config with other values, by their dotted names; ``where`` they come from is for messages."""
    for name, value in values.items():
        if name in _REMOVED:
            if value == _REMOVED[name]:
                continue
            raise DataError(f"{where}: {name}={value} was removed from phrasechain; only {_REMOVED[name]} is left")
        name = _ALIASES.get(name, name)
        kind = _kind(config, name, where)
        section, key = name.split(".")
        changed = replace(getattr(config, section), **{key: _checked(value, kind, name, where)})
        _check_bounds(changed, key, where)
        config = replace(config, **{section: changed})
    return config


def config_dict(config: Config) -> dict[str, Any]:
    """The config as nested plain values."""
    return asdict(config)


def model_from_dict(values: object, where: str) -> Model:
    """The section ``model`` out of plain values, all of which must be there: another version's are refused."""
    flat = _flat({"model": values}, where)
    config = with_values(Config(), flat, where)
    found = {_ALIASES.get(name, name) for name in flat}
    if absent := [part.name for part in fields(Model) if f"model.{part.name}" not in found]:
        raise DataError(f"{where}: has no model.{', model.'.join(absent)}: written by another version of phrasechain")
    return config.model


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return _flat(tomllib.loads(read_bounded(path, _FILE_LIMIT).decode("utf-8-sig")), str(path))
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path}: not TOML: {error}") from None


def _flat(values: object, where: str) -> dict[str, Any]:
    """``{"train": {"rate": 1}}`` to ``{"train.rate": 1}``."""
    flat: dict[str, Any] = {}
    for section, keys in values.items() if isinstance(values, dict) else ((values, None),):
        if not isinstance(keys, dict):
            raise DataError(f"{where}: {section!r} stands outside a section; there are: {_names(Config())}")
        flat |= {f"{section}.{key}": value for key, value in keys.items()}
    return flat


def _names(value: Any) -> str:
    return ", ".join(part.name for part in fields(value))


def _kind(config: Config, name: str, where: str) -> type:
    """The type of a key; the error for one that does not exist says what there is."""
    before = f"{where}: " if where else ""
    section, dot, key = name.partition(".")
    if section not in {part.name for part in fields(config)}:
        close = _all_names(config) if dot else [part.name for part in fields(config)]
        raise DataError(before + unknown_name("key" if dot else "section", name, close))
    known: dict[str, type] = get_type_hints(type(getattr(config, section)))
    if key not in known:
        raise DataError(before + unknown_name("key", name, [f"{section}.{each}" for each in known]))
    return known[key]


def _all_names(config: Config) -> list[str]:
    return list(_flat(config_dict(config), ""))


def _parse(text: str, kind: type, name: str) -> Any:
    """A value out of a text; texts that are no value of the type are left for the check."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return kind(text)
    except ValueError:
        return text


def _checked(value: Any, kind: type, name: str, where: str) -> Any:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not isfinite(value)):
        wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
        raise DataError(f"{where}: {name} is {wanted}, not {value!r}")
    return value


def _check_bounds(section: Any, key: str, where: str) -> None:
    bounds = next(part.metadata for part in fields(section) if part.name == key)
    value = getattr(section, key)
    least, most = bounds.get("least"), bounds.get("most")
    if least is not None and (value < least or (most is not None and value > most)):
        wanted = f"{least} or more" if most is None else f"from {least} to {most}"
        raise DataError(f"{where}: {type(section).__name__.lower()}.{key} is {wanted}, not {value}")
