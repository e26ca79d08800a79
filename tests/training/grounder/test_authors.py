"""Training as the authors' code does it: captions without a phrase are drawn, and are rows of its stateful ELMo."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo_models import make_arrays, make_options, write_files
from official_layout import write_image
from phrasechain.core.schema import Example, Regions
from phrasechain.data.dataset import load_examples
from phrasechain.data.flickr30k import AUTHORS
from phrasechain.model.batch import collate_annotated, make_groups
from phrasechain.model.build import build_model
from phrasechain.model.config import Config
from phrasechain.model.losses import training_loss
from phrasechain.model.targets import make_targets
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter
from phrasechain.text.base import Captions, TextEncoder
from phrasechain.training.grounder.steps import ProcessBatches, Steps
from phrasechain.training.grounder.task import train
from phrasechain.training.log import read_metrics
from tiny_grounding import tiny_config

BOXES = np.array([[0, 0, 40, 50], [30, 20, 90, 79]], np.float32)
STEPS = 3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path]:
    data, rng = tmp_path / "data", np.random.default_rng(0)
    captions = (
        "[/EN#1/people A man] stands beside [/EN#2/other a thing] .\n"
        "A caption without a phrase that is longer than all the others , to pad them .\n"
        "[/EN#2/other It] lies there .\n"
    )
    with StoreWriter(tmp_path / "store", StoreInfo(4, "float32")) as writer:
        for image in map(str, range(1000, 1012)):
            write_image(data, image, captions, [(["1"], [(1, 1, 39, 51)], {}), (["2"], [(31, 21, 91, 79)], {})])
            writer.add(Regions(image, 100, 80, BOXES, rng.normal(size=(2, 4)).astype(np.float32)))
        writer.finish()
    (data / "train.txt").write_text("".join(f"{image}\n" for image in range(1000, 1012)))
    return data, tmp_path / "store"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    options = make_options()
    files = write_files(tmp_path, options, make_arrays(options))
    elmo = [f"text.{key}={file}" for key, file in zip(("options", "weights"), files, strict=True)]
    constant = ("model.dropout=0", "train.rate=0", "train.weight_decay=0", f"train.steps={STEPS}")
    return tiny_config(*elmo, *constant, "train.save_every=100", preset="authors")


class GivenVectors(TextEncoder):
    """The vectors of one batch's tokens, in the place of an encoder."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors, self.dimension = vectors, vectors.shape[2]

    def forward(self, captions: Captions) -> Tensor:
        return self.vectors


def slow_losses(config: Config, examples: list[Example], store: FeatureStore) -> Iterator[float]:
    """Their loss: row by row through the ELMo, the drawn captions of a step one below the other."""
    torch.manual_seed(config.train.seed)
    model = build_model(config, examples, store)
    elmo = model.text.encoder
    steps = Steps(make_groups(examples, "draw", phraseless=True), by="draw", batch=4, seed=config.train.seed)
    for step in range(STEPS):
        items = [group[0] for group in steps[step]]
        vectors = elmo([caption.tokens for _, caption in items])  # (rows, L, e), L that of the longest row
        rows = [row for row, (_, caption) in enumerate(items) if caption.phrases]
        batch, phrases = collate_annotated(items, store)
        model.text.encoder = GivenVectors(vectors[rows])
        terms = training_loss(model.member_scores, batch, make_targets(batch, phrases), divide="all", least_side=0.1)
        model.text.encoder = elmo
        loss = terms.grounding / terms.count + config.loss.gamma * terms.boxes / terms.pairs
        yield loss.item()


def test_losses_are_those_of_their_rows(world: tuple[Path, Path], config: Config, tmp_path: Path) -> None:
    run = train(*world, tmp_path / "run", config)
    found = [line["loss"] for line in read_metrics(run) if "loss" in line]
    examples = list(load_examples(world[0], "fit", compatibility=AUTHORS))
    wanted = list(slow_losses(config, examples, FeatureStore.open(world[1])))
    assert found == pytest.approx(wanted, rel=1e-5)
    left_out = replace(config, data=replace(config.data, phraseless=False))
    others = [line["loss"] for line in read_metrics(train(*world, tmp_path / "other", left_out)) if "loss" in line]
    assert others != pytest.approx(wanted, rel=1e-4)


def test_captions_without_a_phrase_are_drawn_and_read(world: tuple[Path, Path]) -> None:
    examples, store = load_examples(world[0], "train"), FeatureStore.open(world[1])
    steps = Steps(make_groups(examples, "draw", phraseless=True), by="draw", batch=4)
    batches = ProcessBatches(steps, store, read_all=True)
    read = 0
    for step in range(30):
        parts = batches[step]
        assert isinstance(parts, list)
        drawn = [caption for group in steps[step] for _, caption in group]
        if not any(caption.phrases for caption in drawn):
            assert parts == []
            continue
        ((batch, _),) = parts
        assert batch.read == tuple(caption.tokens for caption in drawn)
        assert batch.tokens == tuple(batch.read[row] for row in batch.rows)
        assert [bool(caption.phrases) for caption in drawn] == [row in batch.rows for row in range(4)]
        read += len(batch.read) - len(batch.tokens)
    assert read > 20
