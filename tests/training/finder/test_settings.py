from dataclasses import asdict
from pathlib import Path

import pytest

from phrasechain.core.errors import DataError
from phrasechain.core.settings import make_settings
from phrasechain.phrases.finder import MOST, PhraseFinder
from phrasechain.training.finder.settings import FinderSettings


@pytest.mark.parametrize(("key", "most"), MOST.items())
def test_a_size_that_no_file_may_have_is_refused_before_the_training(key: str, most: int) -> None:
    make_settings(FinderSettings(), texts=[f"model.{key}={most}"])
    with pytest.raises(DataError, match=rf"model\.{key} is from 1 to {most}, not {most + 1}"):
        make_settings(FinderSettings(), texts=[f"model.{key}={most + 1}"])


def test_the_most_layers_can_be_loaded_again(tmp_path: Path) -> None:
    texts = ["model.hidden=2", "model.word_dimension=2", "model.ngram_dimension=2", "model.buckets=4"]
    settings = make_settings(FinderSettings(), texts=[*texts, f"model.layers={MOST['layers']}"])
    PhraseFinder(("a",), **asdict(settings.model)).save(tmp_path / "finder.safetensors")
    assert PhraseFinder.from_pretrained(tmp_path / "finder.safetensors").shape["layers"] == MOST["layers"]
