"""What a model is given: the regions of a few images, the captions about them, and where their phrases stand.

Axes: I images, B captions, P phrases of all captions one after the other, T phrases of the longest chain, K regions
of the image with most, D features. Nothing is padded beyond the batch and phrases are not padded at all: what is
computed per phrase has P rows, and ``Batch.to_chains`` lays it out as (B, T, ...) for the chain. Captions of one image
share its regions. What a model learns from is apart, in ``targets``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from phrasechain.core.boxes import spatial_features_xyxy
from phrasechain.core.errors import DataError, require_name
from phrasechain.core.schema import Caption, Example, Phrase, Regions
from phrasechain.data.regimes import chain_phrases
from phrasechain.phrases.finder import FoundPhrase
from phrasechain.text.base import TextEncoder

Item = tuple[Example, Caption]
#: What always stays together: an image with all its captions, whose regions are then scored once, or one caption.
Group = tuple[Item, ...]
BY = ("image", "caption", "draw")
_MOST_CATEGORIES = 62  # bits of a number that a tensor holds


@dataclass(frozen=True, slots=True)
class GroundQuery:
    """One chain: the phrases of a caption, and the regions that they may name."""

    regions: Regions
    tokens: tuple[str, ...]
    phrases: Sequence[Phrase | FoundPhrase]
    caption: int = 0  # its index among the captions of the image


class RegionSource(Protocol):
    """A store of regions, or a dict of them."""

    def __getitem__(self, image: str, /) -> Regions: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one batch; ``tokens``, ``images`` and ``captions`` stay with the host."""

    images: tuple[str, ...]  # I image ids
    sizes: Tensor  # (I, 2) float32: width, height
    boxes: Tensor  # (I, K, 4) float32, zeros where there is no region
    features: Tensor  # (I, K, D) as stored
    spatial: Tensor  # (I, K, 5) float32
    region_mask: Tensor  # (I, K) bool
    captions: tuple[int, ...]  # B indices of captions in their image
    tokens: tuple[tuple[str, ...], ...]  # B captions
    caption_image: Tensor  # (B,) int64
    lengths: Tensor  # (B,) int64 ≥ 1: phrases in the chain
    steps: int  # T
    phrase_caption: Tensor  # (P,) int64
    phrase_step: Tensor  # (P,) int64: the place in the chain
    token_spans: Tensor  # (P, 2) int64: [first, end) in the caption's tokens
    spans: Tensor  # (P, 2) int64: [start, end) in the caption's characters
    categories: Tensor  # (P,) int64: a bit for each category of the phrase, the same for all phrases of the batch
    read: tuple[tuple[str, ...], ...] = ()  # R captions that a text encoder reads, also without phrases; (): ``tokens``
    rows: tuple[int, ...] = ()  # B places of the captions among them

    def token_vectors(self, encoder: TextEncoder) -> Tensor:
        """The vectors of the captions' tokens: (B, L, e), L the tokens of the longest caption that is read."""
        vectors: Tensor = encoder(self.read or self.tokens)
        return vectors[list(self.rows)] if self.read else vectors

    @property
    def label_mask(self) -> Tensor:
        """Which regions a caption's chain may take: (B, K) bool."""
        return self.region_mask[self.caption_image]

    @property
    def phrase_image(self) -> Tensor:
        """The image of each phrase: (P,)."""
        return self.caption_image[self.phrase_caption]

    def to_chains(self, values: Tensor) -> Tensor:
        """Lay out one row per phrase, (P, ...), as (B, T, ...) with zeros past each chain's end."""
        chains = values.new_zeros(len(self.lengths), self.steps, *values.shape[1:])
        return chains.index_put((self.phrase_caption, self.phrase_step), values)

    def to_phrases(self, chains: Tensor) -> Tensor:
        """One row per phrase, (P, ...), of what is laid out as (B, T, ...)."""
        return chains[self.phrase_caption, self.phrase_step]

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in pinned memory; a DataLoader calls this."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        moved: dict[str, Any] = {name: function(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)


def collate(queries: Sequence[GroundQuery]) -> Batch:
    """Make a batch of queries, each with one phrase or more. Queries on one image share its regions."""
    regions = {query.regions.image: query.regions for query in queries}
    image_index = {image: index for index, image in enumerate(regions)}
    found = list(regions.values())
    sizes = torch.tensor([(each.width, each.height) for each in found], dtype=torch.float32)
    boxes = _pad([each.boxes for each in found]).float()  # (I, K, 4)
    lengths = torch.tensor([len(query.phrases) for query in queries])
    phrase_caption = torch.repeat_interleave(torch.arange(len(queries)), lengths)
    phrases = [phrase for query in queries for phrase in query.phrases]
    counts = torch.tensor([len(each.boxes) for each in found])
    return Batch(
        images=tuple(regions),
        sizes=sizes,
        boxes=boxes,
        features=_pad([each.features for each in found]),
        spatial=spatial_features_xyxy(boxes, sizes[:, None]),
        region_mask=torch.arange(boxes.shape[1]) < counts[:, None],
        captions=tuple(query.caption for query in queries),
        tokens=tuple(query.tokens for query in queries),
        caption_image=torch.tensor([image_index[query.regions.image] for query in queries]),
        lengths=lengths,
        steps=int(lengths.max()),
        phrase_caption=phrase_caption,
        phrase_step=torch.arange(len(phrases)) - (lengths.cumsum(0) - lengths)[phrase_caption],
        token_spans=torch.tensor([(phrase.first_token, phrase.end_token) for phrase in phrases]),
        spans=torch.tensor([(phrase.start, phrase.end) for phrase in phrases]),
        categories=_category_bits(phrases),
    )


def collate_annotated(
    items: Sequence[Item], regions: RegionSource, regime: str = "gold", read_all: bool = False
) -> tuple[Batch, list[Phrase]]:
    """A batch of annotated captions and its phrases; captions without a phrase in their chain are left out.

    With ``read_all`` the text encoder reads those too, each in a row of its own, as that of the authors does. The
    regions of an image are read once, whatever the number of its captions.
    """
    chains = [(example, caption, phrases) for example, caption in items if (phrases := chain_phrases(caption, regime))]
    if not chains:
        raise DataError(f"none of the {len(items)} captions of a batch has a phrase in its chain (regime {regime!r})")
    examples = {example.image: example for example, _, _ in chains}
    found = {image: _checked(regions[image], example) for image, example in examples.items()}
    queries = [
        GroundQuery(found[example.image], caption.tokens, phrases, caption.index)
        for example, caption, phrases in chains
    ]
    batch = collate(queries)
    if read_all:
        rows = tuple(row for row, (_, caption) in enumerate(items) if chain_phrases(caption, regime))
        batch = replace(batch, read=tuple(caption.tokens for _, caption in items), rows=rows)
    return batch, [phrase for _, _, phrases in chains for phrase in phrases]


def keep_phrases(batch: Batch, keep: Tensor) -> Batch:
    """The batch with the phrases of ``keep`` (P,) bool alone, and without the captions that lose all of theirs.

    Images stay, and so do the captions that are read.
    """
    lengths = torch.zeros_like(batch.lengths).index_add(0, batch.phrase_caption, keep.long())  # (B,)
    captions = lengths.nonzero()[:, 0]
    lengths = lengths[captions]
    places = captions.tolist()
    starts = lengths.cumsum(0) - lengths
    phrase_caption = torch.repeat_interleave(torch.arange(len(captions), device=keep.device), lengths)
    return replace(
        batch,
        captions=tuple(batch.captions[place] for place in places),
        tokens=tuple(batch.tokens[place] for place in places),
        caption_image=batch.caption_image[captions],
        lengths=lengths,
        steps=int(lengths.max()),
        phrase_caption=phrase_caption,
        phrase_step=torch.arange(len(phrase_caption), device=keep.device) - starts[phrase_caption],
        token_spans=batch.token_spans[keep],
        spans=batch.spans[keep],
        rows=tuple(batch.rows[place] for place in places) if batch.read else (),
        categories=batch.categories[keep],
    )


def make_groups(
    examples: Sequence[Example], by: str = "image", regime: str = "gold", phraseless: bool = False
) -> list[Group]:
    """The captions with a phrase in their chain or an absent one, or all; an image's together unless by ``caption``."""
    require_name("way to batch", by, BY)
    images = [
        tuple((example, caption) for caption in example.captions if phraseless or _is_asked(caption, regime))
        for example in examples
    ]
    if by == "caption":
        return [(item,) for group in images for item in group]
    return [group for group in images if group]


def _is_asked(caption: Caption, regime: str) -> bool:
    return bool(chain_phrases(caption, regime)) or any(phrase.is_absent for phrase in caption.phrases)


def require_finite(batches: Iterable[Batch]) -> None:
    """Name the image whose region features are not finite, if one is."""
    for batch in batches:
        finite = batch.features.isfinite().all(-1).all(-1)  # (I,)
        if not bool(finite.all()):
            image = batch.images[int(finite.int().argmin())]
            raise DataError(f"image {image}: its region features are not finite; extract them again")


def _checked(regions: Regions, example: Example) -> Regions:
    if len(regions.boxes) == 0:
        raise DataError(f"image {example.image!r} has no regions; leave it out or extract some")
    if (regions.width, regions.height) != (example.width, example.height):
        raise DataError(
            f"image {example.image!r}: its regions are of a {regions.width}×{regions.height} image, its annotation of "
            f"a {example.width}×{example.height} one; extract the regions from the annotated image"
        )
    return regions


def _category_bits(phrases: Sequence[Phrase | FoundPhrase]) -> Tensor:
    """The categories of each phrase as a bit each: (P,). Past 62 different ones, the others have none."""
    names = [phrase.categories if isinstance(phrase, Phrase) else (phrase.category,) for phrase in phrases]
    place = {name: number for number, name in enumerate(dict.fromkeys(name for each in names for name in each))}
    bits = [sum({1 << place[name] for name in each if place[name] < _MOST_CATEGORIES}) for each in names]
    return torch.tensor(bits, dtype=torch.int64)


def _pad(arrays: Sequence[np.ndarray]) -> Tensor:
    """Stack arrays (K_i, F) to (I, K, F), zeros at the end of the shorter ones."""
    padded = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), dtype=arrays[0].dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(padded)
