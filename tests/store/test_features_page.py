"""The examples of docs/features.md are true."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from paths import ROOT
from phrasechain.regions.extractor import RegionExtractor
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from store_helpers import make_regions, write
from tiny_regions import write_photo, write_weights

PAGE = ROOT / "docs" / "features.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    weights = write_weights(tmp_path / "weights")
    monkeypatch.setattr(RegionExtractor, "from_pretrained", partial(RegionExtractor.from_pretrained, weights))
    write_photo(tmp_path / "photo.jpg", size=(30, 20))
    images = [make_regions("1000092795", 4), *(make_regions(str(n), 2) for n in range(20))]
    write(tmp_path / "features", images, StoreInfo(dimension=3), shard_bytes=300)
    monkeypatch.chdir(tmp_path)
    read, extract, with_numpy, with_safetensors, make = re.findall(
        r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S
    )

    names: dict = {}
    exec(read, names)
    np.testing.assert_array_equal(names["first"], images[0].features.astype(np.float16))

    exec(extract, names)
    assert (names["regions"].width, names["regions"].height) == (30, 20)
    assert len(names["regions"].features) == len(names["regions"].objectness) > 10

    exec(with_numpy, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1000092795 [120  90] (4, 4) (4, 3)", "0 [120  90] (2, 4) (2, 3)"]
    assert len(lines) == len(images)

    exec(with_safetensors, {})
    assert capsys.readouterr().out.startswith("1000092795 (")

    exec(make, {})
    assert FeatureStore.open("new-features").ids == ("1000", "2000")
