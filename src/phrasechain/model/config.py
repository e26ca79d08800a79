"""What the training of a grounder can be told: its sections of settings, presets and recipes.

Names of variants (encoders, contexts, optimisers …) are checked where they live, by what builds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from phrasechain.core.errors import DataError, require_name
from phrasechain.core.settings import Values, added, current_names, flatten, make_settings, setting, with_values


@dataclass(frozen=True, slots=True)
class Data:
    """Which captions are learnt from."""

    fit: str = setting("fit", "the split that is learnt from")
    dev: str = setting("dev", "the split that chooses the best checkpoint")
    reading: str = setting(
        "corrected", "or `authors`: as their code reads the mark-up (first name, first match, boxes one pixel larger)"
    )
    unboxed: float = setting(
        0.0,
        "share of the visual phrases without a box that stay in their chain, chosen anew in every step: 0 trains "
        "for the regime `gold`, 1 for `all`, 0.5 for both; needs `loss.unlabelled` = `marginalise`",
        0,
        1,
    )
    absent: float = setting(
        0.5,
        "with `model.absent`: the probability that an image gets, in a step, a caption of another image, a list of its "
        "own and other images' phrases, and in one of its captions another image's phrase in the place of one",
        0,
        1,
    )
    limit: int = setting(0, "only the first images of each split; 0: all", 0)
    phraseless: bool = setting(
        False,
        "captions without a phrase with a box are drawn too, and read by the text encoder in rows of their own, as in "
        "the authors' code",
    )


@dataclass(frozen=True, slots=True)
class Text:
    """How words become vectors; most keys are for one encoder."""

    encoder: str = setting("words", "`words`, `elmo` or `transformer`")
    dimension: int = setting(300, "words: numbers of a vector, where no file gives them", 1, 4096)
    vectors: str = setting("", "words: a GloVe or word2vec text file to begin with, .gz too")
    all_vectors: bool = setting(True, "words: also those of words that no caption has; false for large files")
    rare: int = setting(1, "words: a word that occurs less often is known by its character n-grams alone", 1)
    buckets: int = setting(10_000, "words: vectors that character n-grams share", 1, 1 << 24)
    word_dropout: float = setting(0.02, "words: share of words taken for unknown, so that n-grams learn", 0, 0.99)
    frozen: bool = setting(False, "words: keep the vectors of words as they are")
    options: str = setting("", "elmo: its options.json")
    weights: str = setting("", "elmo: its weights.hdf5")
    layers: str = setting("last", "elmo: last or mean")
    stateful: bool = setting(False, "elmo: carry the state from batch to batch")
    lowercase: bool = setting(False, "elmo: read words in lower case (the encoder `words` always does)")
    model: str = setting("", "transformer: a folder or a hub id")
    fine_tune: bool = setting(False, "elmo, transformer: train their weights too")
    cache: str = setting("", "elmo, transformer: a folder for the vectors of captions, computed once")


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes and parts of the network that scores regions."""

    lstm: int = setting(512, "numbers of a BiLSTM state, in each direction", 1, 65536)
    rank: int = setting(1024, "rank of the bilinear pooling", 1, 65536)
    joint: int = setting(1024, "numbers of the fused vector of a phrase and a region", 1, 65536)
    activation: str = setting("relu", "on the fused vector: `relu`, or `none` as in the paper")
    chain: bool = setting(True, "`false`: every phrase by itself (HL and SL)")
    transition: str = setting("paper", "`paper`, or `geometric`, which also looks at how two boxes lie to each other")
    context: str = setting("M", "what transitions see of the caption: `none`, `M`, `M+LR` or `M+LR+G`")
    transition_hidden: int = setting(16, "hidden units of the transition", 1, 65536)
    box_regression: bool = setting(True, "four offsets for every phrase and region")
    dropout: float = setting(0.2, "after the embeddings, the LSTM and the fusion", 0, 0.99)
    packed: bool = setting(True, "`false`: the LSTM runs over padding, as the authors' does")
    init: str = setting(
        "xavier",
        "`xavier`; `paper`, the same with one bound for the transition's whole first layer; or `default`, PyTorch's",
    )
    normalise: str = setting("none", "of the region features: `none` or `standardise`")
    bag_of_words: float = setting(
        0.0, "weight of further scores, those of the phrase's words without their order; 0: there are none", 0
    )
    ensemble: int = setting(
        1, "networks on the same word vectors, each with its own LSTM and scores, which are averaged", 1, 64
    )
    second_order: bool = setting(
        False,
        "phrases with one between them are linked as well, by a transition of the same kind (an exact second-order "
        "chain); not with `loss.unlabelled` = `marginalise`",
    )
    rivals: float = setting(
        0.0, "how strongly phrases of one category are kept from taking one region when boxes are chosen; 0: not", 0
    )
    absent: bool = setting(False, "one more label, ∅, for phrases whose things the photo does not show")
    kind: str = setting(
        "phrasechain",
        "or a compared system: `structured-matching`, `cca`, `qrc`, `qrc-supervised`, `ban` or `ddpn`, of which "
        "`lstm`, `rank` and `joint` are the sizes",
    )

    def options(self) -> dict[str, Any]:
        """What ``GroundingModel`` is built with: all but the kind."""
        return {name: value for name, value in asdict(self).items() if name != "kind"}


@dataclass(frozen=True, slots=True)
class Loss:
    """What is minimised: the grounding loss per phrase plus gamma times the box loss per positive pair."""

    targets: str = setting(
        "soft", "`soft` (SL) or `hard` (HL); or `refined`: soft, with regions that the offsets move close enough too"
    )
    unlabelled: str = setting(
        "skip",
        "phrases without a region of IoU ≥ 0.5: `skip` leaves them out of the chain, "
        "`marginalise` sums over their regions, `best` takes their best region for right; or `authors`",
    )
    divide: str = setting(
        "labelled", "the grounding loss is divided by the `labelled` phrases, by `all` with a box, or by the `captions`"
    )
    regress: str = setting(
        "all", "boxes are learnt from `all` regions with IoU ≥ 0.5, or from each phrase's `best`; or `authors`"
    )
    offsets: str = setting("mean", "the losses of a pair's four offsets count as their `mean` or their `sum`")
    least_side: float = setting(0.0, "sides count as at least this share of the image's in offsets", 0, 1)
    gamma: float = setting(10.0, "weight of the box loss", 0)

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

    optimizer: str = setting("adamw", "`adamw`, `adam`, `adamax` or `sgd`")
    rate: float = setting(1e-3, "learning rate, at its peak", 0)
    encoder_rate: float = setting(1.0, "of the text encoder's weights, as a share of rate", 0)
    beta1: float = setting(0.9, "of Adam; the momentum of SGD", 0, 0.999999)
    beta2: float = setting(0.999, "of Adam", 0, 0.999999)
    weight_decay: float = setting(0.01, "of AdamW; L2 penalty of the others", 0)
    schedule: str = setting(
        "one_cycle",
        "`one_cycle` (up in a straight line, down along a cosine), `constant`, `two_steps` (×0.1 at 40 % and at 80 %) "
        "or `gradual` (BAN's: ×0.5, 1, 1.5 and 2 by thirteenths, then ×0.25 at the tenth and the twelfth)",
    )
    warm_up: float = setting(0.1, "share of the steps until the peak of one_cycle", 0, 1)
    epochs: float = setting(3.0, "passes over the data, where `train.steps` is 0; 2.5 is fine", 0)
    steps: int = setting(0, "steps; 0: as many as `train.epochs` makes", 0)
    by: str = setting(
        "image",
        "what a step takes: `image` (all its captions together, so that its regions are scored once), "
        "`caption`, or `draw` (images with replacement, a caption each)",
    )
    batch: int = setting(16, "images or captions of a step, over all processes", 1, 1 << 20)
    window: int = setting(8, "batches that are sorted by size together; 1: no sorting", 1, 1 << 20)
    accumulate: int = setting(1, "gradient accumulation: parts that a process takes its share of a step in", 1, 1 << 16)
    clip: float = setting(10.0, "bound of the gradient's largest element; 0: none", 0)
    clip_by: str = setting(
        "norm",
        "`norm`: the whole gradient is scaled by its largest element, `l2`: by its length; `value`: elements are cut",
    )
    ema: float = setting(0.0, "largest decay of the EMA of the weights, which is then the model; 0: none", 0, 0.999999)
    precision: str = setting("float32", "`float32`, or `bf16` for the forward pass")
    score_every: int = setting(0, "steps between scores on dev; 0: one pass over the data", 0)
    save_every: int = setting(200, "steps between checkpoints; each score makes one too", 1)
    keep: str = setting(
        "best",
        "which checkpoint is the model: the `best` on dev, or the `last`, as where dev is learnt from too",
    )
    patience: int = setting(0, "early stopping: scores without a new best before it stops; 0: none", 0)
    workers: int = setting(0, "processes that prepare batches; 0: the one that trains", 0, 256)
    seed: int = setting(0, "of the weights, the order and dropout", 0, (1 << 32) - 1)


@dataclass(frozen=True, slots=True)
class Decode:
    """How boxes are chosen when dev is scored, and by default afterwards."""

    method: str = setting(
        "viterbi", "how boxes are chosen when dev is scored: `viterbi`, `smoothing`, `independent` or `consensus`"
    )


@dataclass(frozen=True, slots=True)
class Config:
    """All of it."""

    data: Data = Data()
    text: Text = Text()
    model: Model = Model()
    loss: Loss = Loss()
    train: Train = Train()
    decode: Decode = Decode()

    #: Keys of earlier versions.
    ALIASES: ClassVar[dict[str, str]] = {
        "model.bag": "model.bag_of_words",
        "model.members": "model.ensemble",
        "train.average": "train.ema",
        "decode.how": "decode.method",
    }
    #: Keys of parts that are gone, and the value that does without them.
    REMOVED: ClassVar[Values] = {"model.objectness": False}
    #: Keys that came later, and the value that all models had before.
    ADDED: ClassVar[Values] = {
        "model.kind": "phrasechain",
        "model.absent": False,
        "model.rivals": 0.0,
        "model.second_order": False,
        "data.absent": 0.5,
        "data.phraseless": False,
        "train.keep": "best",
    }


#: How a model is trained: as in the paper, or as fast as it goes without loss.
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
    # The compared systems: the optimisers and the shapes of the schedules of their papers, over the passes of all.
    "structured-matching": {
        "model.kind": "structured-matching",
        "train.optimizer": "sgd",
        "train.rate": 0.01,
        "train.weight_decay": 1e-3,
        "train.schedule": "constant",
        "train.clip": 0.0,
    },
    "cca": {"model.kind": "cca"},
    "qrc": {
        "model.kind": "qrc",
        "loss.gamma": 1.0,
        "train.optimizer": "adam",
        "train.rate": 1e-3,
        "train.weight_decay": 0.0,
        "train.schedule": "constant",
    },
    "ban": {
        "model.kind": "ban",
        "train.optimizer": "adamax",
        "train.rate": 1e-3,
        "train.weight_decay": 0.0,
        "train.schedule": "gradual",
        "train.clip": 0.25,
        "train.clip_by": "l2",
    },
    "ddpn": {
        "model.kind": "ddpn",
        "loss.gamma": 1.0,
        "train.optimizer": "adam",
        "train.rate": 1e-3,
        "train.weight_decay": 0.0,
        "train.schedule": "two_steps",
    },
}

#: What is trained.
PRESETS: dict[str, Values] = {
    "corrected": {},
    "small": {
        "text.dimension": 100,
        "model.lstm": 200,
        "model.rank": 384,
        "model.joint": 192,
    },
    "paper": {
        "data.fit": "train",
        "data.dev": "val",
        "text.encoder": "elmo",
        "model.activation": "none",
        "model.init": "paper",
        "loss.divide": "captions",
        "loss.offsets": "sum",
    },
    "authors": {
        "data.reading": "authors",
        "data.phraseless": True,
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
    preset: str = DEFAULT_PRESET, recipe: str | None = None, file: Path | None = None, texts: Iterable[str] = ()
) -> Config:
    """A config from a recipe, a preset, a TOML file and ``section.key=value`` texts; what comes later wins.

    >>> config = make_config("small", texts=["model.context=M+LR", "train.rate=2e-3"])
    >>> config.model.rank, config.model.context, config.train.rate
    (384, 'M+LR', 0.002)
    """
    require_name("preset", preset, PRESETS)
    recipe = RECIPE_OF[preset] if recipe is None else recipe
    require_name("recipe", recipe, RECIPES)
    return make_settings(with_values(Config(), RECIPES[recipe]), file, texts, preset, PRESETS)


def model_from_dict(values: object, where: str) -> Model:
    """The section ``model`` out of plain values, all of which must be there: another version's are refused."""
    flat = {**added(Config()), **dict(current_names(Config(), flatten(Config(), {"model": values}, where), where))}
    config = with_values(Config(), flat, where)
    if absent := [part.name for part in fields(Model) if f"model.{part.name}" not in flat]:
        raise DataError(f"{where}: has no model.{', model.'.join(absent)}: written by another version of phrasechain")
    return config.model
