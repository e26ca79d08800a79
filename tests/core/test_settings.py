"""The mechanism on toy settings; tests/model/test_config.py has what a user may get wrong."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest

from key_tables import PAGES, page_file, with_tables
from phrasechain.core.errors import DataError
from phrasechain.core.settings import key_table, make_settings, setting, upgraded, with_values


@dataclass(frozen=True, slots=True)
class Train:
    rate: float = setting(0.5, "the learning rate", 0, 1)
    steps: int = setting(3, "steps", 1)
    fast: bool = setting(True, "whether")


@dataclass(frozen=True, slots=True)
class Toy:
    train: Train = Train()

    ALIASES: ClassVar = {"train.speed": "train.rate"}
    REMOVED: ClassVar = {"train.wild": False}
    ADDED: ClassVar = {"train.fast": False}


PRESETS = {"default": {}, "long": {"train.steps": 9}}


def test_what_comes_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[train]\nspeed = 1\nsteps = 10\n")
    found = make_settings(Toy(), file, ["train.steps=11", "train.wild=false"], "long", PRESETS)
    assert found == Toy(Train(rate=1.0, steps=11))
    with pytest.raises(DataError, match=r"no preset named 'lnog'; there are: default, long .did you mean 'long'"):
        make_settings(Toy(), preset="lnog", presets=PRESETS)


def test_bounds_and_removed_parts() -> None:
    with pytest.raises(DataError, match=r"^mine: train\.rate is from 0 to 1, not 2\.0$"):
        with_values(Toy(), {"train.speed": 2}, "mine")
    with pytest.raises(DataError, match=r"^train\.steps is 1 or more, not 0$"):
        with_values(Toy(), {"train.steps": 0})
    with pytest.raises(DataError, match=r"^--set: train\.wild=True was removed from phrasechain; only False is left$"):
        make_settings(Toy(), texts=["train.wild=true"])


def test_values_of_an_earlier_version() -> None:
    old = {"train": {"speed": 1.0, "wild": False, "odd": 2}, "photos": "ab"}
    assert upgraded(Toy(), old) == {"train": {"rate": 1.0, "odd": 2, "fast": False}, "photos": "ab"}
    assert upgraded(Toy(), {"train": {"fast": True}}) == {"train": {"fast": True}}
    assert upgraded(Toy(), {"photos": "ab"}) == {"photos": "ab"}


def test_a_table() -> None:
    assert key_table(Toy(), "train").splitlines()[2:] == [
        "| `train.rate` | 0.5 | the learning rate |",
        "| `train.steps` | 3 | steps |",
        "| `train.fast` | true | whether |",
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_is_documented(page: str) -> None:
    """``python tests/helpers/key_tables.py`` writes the tables."""
    settings, text = PAGES[page], page_file(page).read_text(encoding="utf-8")
    assert text == with_tables(text, settings)
    assert all(f"<!-- keys: {section} -->" in text for section in asdict(settings))  # type: ignore[call-overload]
    assert all(part.metadata["text"] for section in fields(settings) for part in fields(section.default))  # type: ignore[arg-type]
