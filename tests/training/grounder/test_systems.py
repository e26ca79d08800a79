"""The compared systems by the commands of all models: trained, resumed, scored, decoded, compared and given away."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from phrasechain.baselines import registry
from phrasechain.baselines.registry import BUILDERS, SYSTEMS
from phrasechain.core.errors import DataError
from phrasechain.data.dataset import load_examples
from phrasechain.evaluation.evaluate import Protocol, evaluate_file
from phrasechain.evaluation.predict import InferenceOptions, decode_examples, predict_run
from phrasechain.grounding.grounder import Grounder
from phrasechain.grounding.pretrained import Pretrained, compact, save_pretrained
from phrasechain.model.checkpoint import FeatureSource, ModelInfo, load_checkpoint, read_run_state, save_checkpoint
from phrasechain.model.config import RECIPES, Config, make_config
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.store.reader import FeatureStore
from phrasechain.text.words import WordEncoder
from phrasechain.training import loop, run_folder
from phrasechain.training.compare.runner import compare
from phrasechain.training.compare.tables import accuracy
from phrasechain.training.grounder.task import train
from phrasechain.training.run_folder import write_folder
from tiny_grounder import CAPTION, PHRASES, WORDS, write_finder
from tiny_grounding import SMALL, write_world
from tiny_regions import DIMENSION, write_weights

World = tuple[Path, Path]
TRAINED = [kind for kind in SYSTEMS if kind != "cca"]
#: Where the usual rate and number of passes are not enough: dropout leaves little of networks this small.
RATES = {"structured-matching": 0.5, "ban": 0.02}
EPOCHS = {"ban": 40, "ddpn": 30}


def config_of(kind: str, *settings: str) -> Config:
    recipe = kind.removesuffix("-supervised")
    sizes = [text for text in SMALL if not text.startswith("train.rate")]
    rate = f"train.rate={RATES.get(kind, 0.03)}"
    epochs = f"train.epochs={EPOCHS.get(kind, 8)}"
    texts = [*sizes, rate, epochs, "train.save_every=5", f"model.kind={kind}", *settings]
    return make_config("small", recipe, texts=texts)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(loop, "draw_curves", lambda *arguments: None)
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def runs(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {kind: train(*world, folder / kind, config_of(kind)) for kind in SYSTEMS}


def best_score(run: Path) -> float:
    score = load_checkpoint(run, BUILDERS).card.score
    assert score is not None
    return score


@pytest.mark.parametrize("kind", SYSTEMS)
def test_it_learns_and_its_checkpoint_decodes_the_same(kind: str, runs: dict[str, Path], world: World) -> None:
    checkpoint = load_checkpoint(runs[kind], BUILDERS)
    assert checkpoint.card.kind == kind
    assert best_score(runs[kind]) > 0.6  # one of six by chance
    data, features = world
    for regime in ("gold", "all"):
        file = predict_run(runs[kind], data, features, "dev", regime)
        scored = evaluate_file(file, data, "dev", Protocol(regime=regime, resamples=50))
        if regime == "gold":
            assert accuracy(scored.sections[1]).value == pytest.approx(best_score(runs[kind]))


@pytest.mark.parametrize("kind", TRAINED)
def test_resuming_is_exact(kind: str, world: World, tmp_path: Path) -> None:
    config = config_of(kind, "train.epochs=2")
    whole, run = train(*world, tmp_path / "whole", config), tmp_path / "run"
    saves = [write_folder]

    def save(*arguments: object) -> None:
        if not saves:
            raise KeyboardInterrupt
        saves.pop()(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "write_folder", save)
        with pytest.raises(KeyboardInterrupt):
            train(*world, run, config)
    train(*world, run, config)
    states = [read_run_state(each) for each in (run, whole)]
    assert states[0] == states[1]
    for name in ("model.safetensors", "training.safetensors"):
        mine, theirs = (load_file(each / states[0].last / name) for each in (run, whole))  # type: ignore[union-attr]
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_what_needs_no_step_is_finished_at_once(runs: dict[str, Path], world: World) -> None:
    state = read_run_state(runs["cca"])
    assert state is not None
    assert state.is_finished
    assert state.best == "step-00000000"
    assert train(*world, runs["cca"], config_of("cca")) == runs["cca"]


def test_own_inference_is_what_viterbi_means(runs: dict[str, Path], world: World) -> None:
    """Structured Matching gives two phrases of a caption two regions; independently they may share one."""
    model = load_checkpoint(runs["structured-matching"], BUILDERS).model
    data, features = world
    examples, store = load_examples(data, "train"), FeatureStore.open(features)
    for batch, _, decoded in decode_examples(model, examples, store, InferenceOptions("all")):
        for caption in range(len(batch.tokens)):
            regions = decoded.region[batch.phrase_caption == caption].tolist()
            assert len(set(regions)) == len(regions)
    moved = [
        torch.equal(found.region, other.region)
        for (_, _, found), (_, _, other) in zip(
            decode_examples(model, examples, store, InferenceOptions("all")),
            decode_examples(model, examples, store, InferenceOptions("all", "independent")),
            strict=True,
        )
    ]
    assert not all(moved)


def test_systems_are_rows_of_the_comparison(world: World, tmp_path: Path) -> None:
    base = make_config("small", texts=[*SMALL, "train.epochs=1"])
    tables = compare(*world, tmp_path / "tables", base, rows=["BAN", "Phrase-Region CCA"], seeds=1, split="train")
    assert tables is not None
    assert [line.label for line in tables.tables["Table 1: models"]] == ["Phrase-Region CCA", "BAN"]


@pytest.mark.parametrize("kind", SYSTEMS)
def test_it_can_be_given_away_as_a_grounder(kind: str, tmp_path: Path) -> None:
    weights, finder = write_weights(tmp_path / "regions.safetensors"), write_finder(tmp_path / "finder.safetensors")
    extractor = RegionExtractor.from_pretrained(weights)
    info = extractor.info
    settings = config_of(kind).model
    torch.manual_seed(0)
    model = SYSTEMS[kind](WordEncoder(WORDS, 6, buckets=32), DIMENSION, settings).eval()
    card = ModelInfo(settings, FeatureSource(info.dimension, info.extractor, info.weights_sha256))
    model.load_state_dict(compact(model))
    parts = Pretrained("tiny", model, card, extractor, PhraseFinder.from_pretrained(finder), {}, weights, finder)
    save_pretrained(tmp_path / "grounder", parts)
    photo = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    mine = Grounder(parts, "cpu").ground(photo, CAPTION, PHRASES)
    found = Grounder.from_pretrained(tmp_path / "grounder", "cpu").ground(photo, CAPTION, PHRASES)
    assert [phrase.text for phrase in found.phrases] == list(PHRASES)
    for one, other in zip(found.phrases, mine.phrases, strict=True):
        assert one.box == pytest.approx(other.box, abs=1e-3)


def test_names_and_values_that_do_not_fit_are_one_line(world: World, tmp_path: Path) -> None:
    for texts, message in (
        (["model.kind=bann"], "no kind of model named 'bann'; there are: phrasechain, structured-matching"),
        (["model.kind=ban", "train.precision=bf16"], "model.kind=ban trains in float32 alone"),
    ):
        with pytest.raises(DataError, match=message):
            train(*world, tmp_path / "run", make_config("small", texts=texts))
        assert not (tmp_path / "run").exists()


def test_a_missing_library_is_one_line(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"model.kind=cca needs scipy and sklearn, not installed here: pip install"):
        train(*world, tmp_path / "run", config_of("cca"))


def test_every_system_has_a_recipe_and_weights_of_another_kind_are_refused(
    tmp_path: Path, runs: dict[str, Path]
) -> None:
    assert {kind.removesuffix("-supervised") for kind in SYSTEMS} <= set(RECIPES)
    checkpoint = load_checkpoint(runs["ban"], BUILDERS)
    card = replace(checkpoint.card, model=replace(checkpoint.card.model, kind="ddpn"))
    save_checkpoint(tmp_path / "wrong", checkpoint.model, checkpoint.model.state_dict(), card)
    with pytest.raises(DataError, match=r"does not fit its config.json"):
        load_checkpoint(tmp_path / "wrong", BUILDERS)
    with pytest.raises(DataError, match="no kind of model named 'ban'"):
        load_checkpoint(runs["ban"])
