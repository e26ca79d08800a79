"""All that a region network learns from: photos with phrases, and photos with boxes of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phrasechain.core.errors import DataError
from phrasechain.core.progress import track
from phrasechain.core.schema import Example
from phrasechain.data.class_boxes import ClassPhoto
from phrasechain.data.class_nouns import NounTable
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.text.tokens import tokenise
from phrasechain.training.regions.class_phrases import ClassPhrase, class_phrases
from phrasechain.training.regions.class_targets import read_class_targets
from phrasechain.training.regions.vocabulary import RegionTargets, Vocabulary, build_region_vocabulary, read_targets


@dataclass(frozen=True, slots=True)
class RegionData:
    """Photos and their targets: first those with phrases, then those with boxes of classes."""

    vocabulary: Vocabulary
    photos: list[Path]
    targets: list[RegionTargets]


def read_data(examples: Sequence[Example], class_photos: Sequence[ClassPhoto], rare_word: int) -> RegionData:
    """The words that occur ``rare_word`` times or more, and what the photos teach."""
    phrases = safe_phrases(class_photos) if class_photos else []
    vocabulary = build_region_vocabulary(examples, rare_word, (phrase.words for each in phrases for phrase in each))
    targets = [read_targets(example, vocabulary) for example in examples]
    targets += [read_class_targets(photo, each, vocabulary) for photo, each in zip(class_photos, phrases, strict=True)]
    photos = [*map(photo_path, examples), *map(photo_path, class_photos)]
    return RegionData(vocabulary, photos, targets)


def safe_phrases(photos: Sequence[ClassPhoto]) -> list[list[ClassPhrase]]:
    """The phrases of each photo whose boxes are certain; the embedded finder finds the noun phrases of captions."""
    table = NounTable([box.name for photo in photos for box in photo.boxes])
    finder = PhraseFinder.from_pretrained()

    def find(text: str) -> list[list[str]]:
        tokens = [token.text for token in tokenise(text)]
        return [tokens[phrase.first_token : phrase.end_token] for phrase in finder.find(text)]

    return [class_phrases(photo, find, table) for photo in track(photos, len(photos), "reading the captions")]


def photo_path(photo: Example | ClassPhoto) -> Path:
    if photo.path is None or not photo.path.exists():
        raise DataError(f"image {photo.image}: there is no photo of it ({photo.path})")
    return photo.path
