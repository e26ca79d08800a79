"""What a comparison found, as values: lines of tables, and paired tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import stdev

from phrasechain.evaluation.evaluate import Section
from phrasechain.evaluation.metrics import Mean, PairedTest
from phrasechain.evaluation.predict import InferenceOptions

MERGED, ANY = "merged box", "any box"


@dataclass(frozen=True, slots=True)
class Line:
    """The figures of one line: those of all seeds together, and the accuracy of each seed by section."""

    label: str
    row: str
    options: InferenceOptions
    seeds: int
    sections: tuple[Section, ...]
    accuracies: dict[str, tuple[float, ...]]  # section to the accuracy (merged box, IoU 0.5) of each seed
    minutes: float  # of training, in the mean of the seeds
    published: float | None = None  # percent, by the paper on the test split of Flickr30k Entities
    milliseconds: float | None = None  # of inference for a caption of three phrases and 100 regions

    def spread(self, section: str) -> float | None:
        """The standard deviation over seeds."""
        return stdev(self.accuracies[section]) if self.seeds > 1 else None


@dataclass(frozen=True, slots=True)
class Test:
    """The paired test of two lines by the seeds that both have, for several choices of phrases."""

    first: str
    second: str
    seeds: int
    gains: dict[str, PairedTest]


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything that was compared."""

    data: str
    split: str
    features: str
    settings: tuple[str, ...]
    words: str  # what the captions are read by
    seeds: int
    tables: dict[str, tuple[Line, ...]]
    tests: tuple[Test, ...]
    absent: dict[str, str] = field(default_factory=dict)  # rows that cannot be trained here, and why


def accuracy(section: Section, protocol: str = MERGED) -> Mean:
    """The accuracy at IoU 0.5."""
    return section.figure("accuracy at IoU 0.5", protocol)
