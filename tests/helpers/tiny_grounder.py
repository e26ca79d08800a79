"""A grounder of tiny networks with random weights: a photo in, boxes that depend on what it shows and on the words."""

from pathlib import Path

import numpy as np
import pytest
import torch

from phrasechain.grounding.grounder import Grounder
from phrasechain.grounding.result import PhotoGrounding
from phrasechain.model.checkpoint import FeatureSource, ModelInfo, save_checkpoint
from phrasechain.model.config import Model
from phrasechain.model.model import GroundingModel
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.regions.weights import load_network
from phrasechain.text.words import WordEncoder
from tiny_regions import DIMENSION, write_weights

WORDS = ("a", "man", "dog", "red", "ball", "sees", "with", "the")
MODEL = Model(lstm=8, rank=12, joint=10, transition_hidden=4)
CAPTION = "A man with a red ball sees the dog."
PHRASES = ("A man", "a red ball", "the dog")


def make_model(seed: int = 0, dimension: int = DIMENSION, settings: Model = MODEL) -> GroundingModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GroundingModel(WordEncoder(WORDS, 6, buckets=32), dimension, **settings.options())
        model.pairs.heads.weight.data[:1] *= 4  # some regions are much likelier than others
        model.pairs.heads.weight.data[1:] *= 0.2  # offsets move boxes a little
    return model.eval()


def write_finder(path: Path, seed: int = 0) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        finder = PhraseFinder(WORDS, word_dimension=8, buckets=32, ngram_dimension=8, hidden=8)
        finder.emissions.weight.data *= 4
    finder.save(path)
    return path


def write_grounder(folder: Path, decode: str = "consensus", settings: Model = MODEL) -> Path:
    """A folder with a checkpoint, a region network and a finder; no calibration."""
    weights = write_weights(folder.parent / "regions.safetensors")
    source = FeatureSource(DIMENSION, "phrasechain", load_network(weights).sha256)
    card = ModelInfo(settings, source, decode, 3, 0.5, {})
    model = make_model(settings=settings)
    save_checkpoint(folder, model, model.state_dict(), card)
    weights.replace(folder / "regions.safetensors")
    write_finder(folder / "finder.safetensors")
    return folder


def tiny_grounder(folder: Path, **options: object) -> Grounder:
    return Grounder.from_pretrained(write_grounder(folder), device="cpu", **options)  # type: ignore[arg-type]


def assert_same(found: PhotoGrounding, wanted: PhotoGrounding, within: float = 1e-4) -> None:
    assert [phrase.text for phrase in found.phrases] == [phrase.text for phrase in wanted.phrases]
    for mine, theirs in zip(found.phrases, wanted.phrases, strict=True):
        np.testing.assert_allclose(mine.box, theirs.box, atol=within)
        assert mine.probability == pytest.approx(theirs.probability, abs=within)
        assert len(mine.alternatives) == len(theirs.alternatives)
        for one, other in zip(mine.alternatives, theirs.alternatives, strict=True):
            np.testing.assert_allclose(one.box, other.box, atol=within)
            assert one.probability == pytest.approx(other.probability, abs=within)
