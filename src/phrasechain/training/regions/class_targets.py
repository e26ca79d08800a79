"""What boxes of classes teach about a photo: partial targets.

What is not marked is unknown. Of a marked thing it is known that it is of no other class.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from phrasechain.core.boxes import area_xyxy, union_xyxy
from phrasechain.data.class_boxes import ClassPhoto
from phrasechain.data.class_nouns import EXCLUSIVE, class_nouns, nouns_of
from phrasechain.training.regions.class_phrases import LEAST, ClassPhrase, category_words
from phrasechain.training.regions.vocabulary import RegionTargets, Vocabulary

_AMBIGUOUS_WORDS = (
    "orange glass glasses hot dining sports stuffed computer game wine fire stop parking traffic light sign control "
    "face smart mobile remote baseball tennis soccer snow surf skate boogie room picnic toy blow hair tooth brush lap "
    "top suit case screen tie disc disk model fan individual lab"
)
#: Words of the table that also say how something looks or what it is for, or name a part of it.
_AMBIGUOUS = frozenset(_AMBIGUOUS_WORDS.split())


def read_class_targets(photo: ClassPhoto, phrases: Sequence[ClassPhrase], vocabulary: Vocabulary) -> RegionTargets:
    """The things of a photo that are large enough or that a phrase names, and what is known of each."""
    sizes = torch.tensor([photo.width, photo.height] * 2, dtype=torch.float32)
    boxes = torch.tensor([each.box for each in photo.boxes], dtype=torch.float32).view(-1, 4) / sizes
    groups: dict[tuple[int, ...], set[str]] = {}  # boxes that one phrase means, and the words for them
    for phrase in phrases:
        groups.setdefault(phrase.boxes, set()).update(phrase.words)
    for number, share in enumerate(area_xyxy(boxes).tolist()):
        if share >= LEAST:
            groups.setdefault((number,), set())
    words, absent = [], []
    for group, said in groups.items():
        names = frozenset(photo.boxes[number].name for number in group)
        shown = said | {word for name in names for word in category_words(name)}
        if len(group) == 1:
            shown |= {word for name in names for word in nouns_of(name).pairs[0][0].split()}
        words.append(tuple(vocabulary.encode(shown)))
        absent.append(tuple(vocabulary.encode(_foreign(names) - shown)))
    order = {group: number for number, group in enumerate(groups)}
    merged = [union_xyxy(boxes[list(group)]) for group in groups]
    return RegionTargets(
        boxes=torch.stack(merged) if merged else torch.zeros(0, 4),
        words=tuple(words),
        phrases=tuple((order[phrase.boxes], tuple(vocabulary.encode(phrase.words))) for phrase in phrases),
        absent=tuple(absent),
    )


@cache
def _foreign(names: frozenset[str]) -> frozenset[str]:
    """The words that name things of other classes alone, and the categories that these classes exclude."""
    own = {word for name in names for word in nouns_of(name).words}
    words = {word for nouns in class_nouns().values() for word in nouns.words} - own - _AMBIGUOUS
    categories = {nouns_of(name).category for name in names}
    if categories <= set(EXCLUSIVE):
        words |= {f"<{category}>" for category in EXCLUSIVE if category not in categories}
    return frozenset(words)
