"""Parts of one's own: the example of docs/extending.md through every command, and what is refused."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from paths import ROOT
from phrasechain.baselines import plugins
from phrasechain.baselines.plugins import REGISTRIES, load_plugin
from phrasechain.baselines.registry import BUILDERS
from phrasechain.cli import app
from phrasechain.core.errors import DataError
from phrasechain.model.checkpoint import load_checkpoint
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.store.reader import FeatureStore
from phrasechain.store.writer import StoreWriter
from tiny_batches import tiny_batch
from tiny_grounder import write_finder
from tiny_grounding import DIMENSION, SMALL, write_world
from tiny_regions import write_weights

SYSTEM = """
import torch
from torch import nn
from phrasechain.baselines.base import Baseline
from phrasechain.model.losses import LossTerms
from phrasechain.model.scores import Scores
from phrasechain.text.base import TextEncoder


class Letters(TextEncoder):
    '''A word as its length and its first letter.'''
    dimension = 2
    settings = {}

    def forward(self, captions):
        found = torch.zeros(len(captions), max(map(len, captions)), 2)
        for row, caption in zip(found, captions):
            row[: len(caption)] = torch.tensor([[len(word), ord(word[0]) / 100] for word in caption])
        return found


class Prior(Baseline):
    '''Each region by its features alone.'''
    def __init__(self, encoder, regions):
        super().__init__(encoder)
        self.layer = nn.Linear(regions, 1)

    def forward(self, batch):
        return Scores(self.layer(batch.features.float())[batch.phrase_image, :, 0], None, None)

    def loss_counts(self, batch, targets):
        labelled = int(targets.labelled.sum())
        return torch.tensor([labelled, 0, labelled])

    def loss(self, batch, targets):
        scores = self(batch).emissions.masked_fill(~batch.region_mask[batch.phrase_image], -1e9).log_softmax(-1)
        total = -(scores * (targets.iou >= 0.5)).sum()
        return LossTerms(total, total * 0, targets.labelled.sum(), targets.labelled.sum() * 0)


ENCODERS = {"letters": Letters}
SYSTEMS = {"prior": lambda encoder, regions, sizes: Prior(encoder, regions)}
"""


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without plugins, in a folder of its own."""
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tables = [*REGISTRIES.values(), BUILDERS]
    before, path = [dict(table) for table in tables], list(sys.path)
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path


def forget(name: str) -> None:
    """As in a new process: the plugin is neither imported nor known."""
    module = sys.modules.pop(name)
    for kind, table in REGISTRIES.items():
        for key in getattr(module, kind, {}):
            del table[key]


def run(*words: object, plugin: str | None = None) -> Result:
    return CliRunner().invoke(app, [*map(str, words), *([] if plugin is None else ["--plugin", plugin])])


def example() -> str:
    """The code of the page, at most twenty lines of it besides its imports and empty lines."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), re.S)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line and "import" not in line]) <= 20
    return code[1]


def settings(*texts: str) -> list[str]:
    return [word for text in (*SMALL, "train.epochs=1", *texts) for word in ("--set", text)]


def test_the_example_of_the_page_goes_through_every_command(tmp_path: Path) -> None:
    """Trained, evaluated, exported and used; without the plugin its checkpoint is refused, and nothing is imported."""
    (tmp_path / "nearby.py").write_text(example())
    data, plain = write_world(tmp_path / "world", images=18)
    weights, finder = write_weights(tmp_path / "w.safetensors", dimension=DIMENSION), write_finder(tmp_path / "f.st")
    store, tiles = tmp_path / "store", FeatureStore.open(plain)
    with StoreWriter(store, RegionExtractor.from_pretrained(weights).info) as writer:
        for image in tiles:
            found = tiles[image]
            writer.add(replace(found, objectness=np.ones(len(found.boxes), np.float32)))
        writer.finish()
    common = ("--data", data, "--features", store)
    train = ("train", *common, "--out", "run", "--preset", "small", *settings("model.transition=nearby"))
    export = ("export", "run", *common, "--out", "folder", "--regions", weights, "--finder", finder)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 100, 3), np.uint8)).save("photo.png")
    ground = ("ground", "photo.png", "a man and a dog", "--phrase", "a dog", "--json", "--model", "folder")
    for words in (train, ("evaluate", "run", *common, "--split", "dev"), export, ground):
        refused = run(*words)
        assert "no transition named 'nearby'; there are: paper, geometric" in str(refused.exception), words
        assert words == train or "if it is a plugin's, load that first (--plugin MODULE)" in str(refused.exception)
        assert "nearby" not in sys.modules
        told = run(*words, plugin="nearby")
        assert told.exit_code == 0, (told.output, told.exception)
        assert words != train or told.stderr.endswith("--plugin nearby\n")
        forget("nearby")
    load_plugin("nearby")
    layer = load_checkpoint("run").model.transition.layer  # type: ignore[union-attr]
    assert layer.weight.shape == (1, 1)


def test_the_example_computes_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "nearby.py").write_text(example())
    transition = load_plugin("nearby").Nearby(9, 4, 4, 3)
    batch = tiny_batch(1)
    found = transition(None, None, None, batch)
    assert found.shape == (len(batch.lengths), 1, batch.boxes.shape[1], batch.boxes.shape[1])
    image = int(batch.caption_image[1])
    centres = [(batch.boxes[image, k, :2] + batch.boxes[image, k, 2:]) / 2 / batch.sizes[image] for k in (0, 1)]
    distance = (centres[0] - centres[1]).square().sum().sqrt()
    wanted = transition.layer.weight[0, 0] * distance + transition.layer.bias[0]
    torch.testing.assert_close(found[1, 0, 0, 1], wanted)


def test_a_system_and_an_encoder_from_a_file(tmp_path: Path) -> None:
    data, store = write_world(tmp_path / "world", images=12)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine.py").write_text(SYSTEM)
    command = ["train", "--data", data, "--features", store, "--out", "run", "--preset", "small"]
    command += settings("model.kind=prior", "text.encoder=letters")
    told = run(*command, plugin="parts/mine.py")
    assert told.exit_code == 0, (told.output, told.exception)
    evaluate = ["evaluate", "run", "--data", data, "--features", store, "--split", "dev"]
    assert run(*evaluate, plugin="parts/mine.py").exit_code == 0  # the same file again


def test_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    points = {"near": EntryPoint("near", "inside", plugins.GROUP), "odd": EntryPoint("odd", "os:sep", plugins.GROUP)}
    monkeypatch.setattr(plugins, "entry_points", lambda group, name: [points[name]] if name in points else [])
    assert load_plugin("near").__name__ == "inside"
    assert "nearby" in REGISTRIES["TRANSITIONS"]
    with pytest.raises(DataError, match="--plugin odd: the entry point is os:sep, not a module"):
        load_plugin("odd")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("absent_module", None, "no module and no entry point of 'phrasechain.plugins' has that name"),
        ("absent.module", None, "no module and no entry point"),
        ("nowhere.py", None, "no such file"),
        ("../x", None, "not the name of a module"),
        ("empty.py", "", "has none of TRANSITIONS, ENCODERS, MAKERS, SYSTEMS; see docs/extending.md"),
        ("taken.py", "TRANSITIONS = {'paper': 1, 'new': 2}", "TRANSITIONS has 'paper', which is there already"),
        ("json.py", "TRANSITIONS = {'new': 1}", "a module named 'json' is loaded already"),
    ],
)
def test_what_is_no_plugin_is_refused(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        load_plugin(name)
    assert str(caught.value).startswith(f"--plugin {name}: ")
    assert "new" not in REGISTRIES["TRANSITIONS"]


def test_a_plugins_own_errors_are_its_own(tmp_path: Path) -> None:
    """A traceback is what its author needs."""
    (tmp_path / "needy.py").write_text("import absent_library")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ModuleNotFoundError, match="absent_library"):
        load_plugin("needy")
    with pytest.raises(ZeroDivisionError):
        load_plugin("broken.py")
    assert "broken" not in sys.modules
