"""Batches: what is packed, what is padded, and the targets against hand-computed numbers."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from phrasechain.core.errors import DataError
from phrasechain.model.batch import Batch, collate_annotated
from two_images import FIRST, ITEMS, SECOND, STORE


@pytest.fixture
def batch() -> Batch:
    return collate_annotated(ITEMS, STORE, "all")[0]


def test_the_gold_regime_keeps_the_phrases_with_a_box_and_drops_captions_without() -> None:
    batch = collate_annotated(ITEMS, STORE, "gold")[0]
    assert batch.captions == (0, 3, 2)
    assert batch.lengths.tolist() == [2, 1, 1]
    assert batch.token_spans.tolist() == [[0, 2], [6, 8], [0, 2], [0, 2]]
    words = [
        " ".join(batch.tokens[caption][first:end])
        for caption, (first, end) in zip(batch.phrase_caption, batch.token_spans, strict=True)
    ]
    assert words == ["a dog", "two dogs", "a speck", "a dog"]


def test_the_all_regime_keeps_every_visual_phrase(batch: Batch) -> None:
    assert batch.lengths.tolist() == [3, 1, 1, 1]
    assert batch.steps == 3
    assert batch.phrase_caption.tolist() == [0, 0, 0, 1, 2, 3]
    assert batch.phrase_step.tolist() == [0, 1, 2, 0, 0, 0]
    assert batch.phrase_image.tolist() == [0, 0, 0, 0, 1, 1]
    text = FIRST.captions[0].text
    assert [text[start:end] for start, end in batch.spans[:3]] == ["a dog", "the sky", "two dogs"]


def test_regions_are_stored_once_per_image_and_padded_to_the_batch(batch: Batch) -> None:
    assert batch.images == ("x", "y")
    assert batch.caption_image.tolist() == [0, 0, 1, 1]
    assert batch.region_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.label_mask.tolist() == [batch.region_mask.tolist()[image] for image in (0, 0, 1, 1)]
    assert batch.features.dtype == torch.float16
    assert batch.features[1].tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0]]
    assert batch.boxes[1].tolist() == [[0, 0, 20, 40], [10, 0, 40, 40], [0, 0, 0, 0]]
    expected = torch.tensor([[0.0, 0.0, 0.4, 1.0, 0.4], [0.2, 0.0, 0.8, 1.0, 0.6], [0.0] * 5])
    torch.testing.assert_close(batch.spatial[1], expected)


def test_chains_are_laid_out_with_zeros_past_their_end_and_back(batch: Batch) -> None:
    rows = torch.arange(12.0).view(6, 2).requires_grad_()
    chains = batch.to_chains(rows)
    assert chains.tolist() == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [0, 0], [0, 0]],
        [[8, 9], [0, 0], [0, 0]],
        [[10, 11], [0, 0], [0, 0]],
    ]
    assert torch.equal(batch.to_phrases(chains), rows)
    chains.sum().backward()
    assert rows.grad is not None
    assert (rows.grad == 1).all()


def test_moving_moves_every_tensor_and_keeps_the_words(batch: Batch) -> None:
    moved = batch.to("meta")
    for name in Batch.__dataclass_fields__:
        before, after = getattr(batch, name), getattr(moved, name)
        if isinstance(before, torch.Tensor):
            assert (after.device.type, after.shape, after.dtype) == ("meta", before.shape, before.dtype)
        else:
            assert after is before


def test_a_batch_goes_through_a_pickle_as_worker_processes_need(batch: Batch) -> None:
    copy = pickle.loads(pickle.dumps(batch))
    assert copy.tokens == batch.tokens
    assert torch.equal(copy.boxes, batch.boxes)


def test_a_batch_without_a_phrase_is_refused() -> None:
    with pytest.raises(DataError, match="none of the 1 captions"):
        collate_annotated([(SECOND, SECOND.captions[0])], STORE, "gold")[0]


def test_regions_of_another_size_or_none_are_refused() -> None:
    with pytest.raises(DataError, match="'x': its regions are of a 100×80 image, its annotation of a 99×80 one"):
        collate_annotated([(replace(FIRST, width=99), FIRST.captions[0])], STORE)[0]
    empty = replace(STORE["x"], boxes=np.empty((0, 4), np.float32), features=np.empty((0, 3), np.float16))
    with pytest.raises(DataError, match="'x' has no regions"):
        collate_annotated([(FIRST, FIRST.captions[0])], {"x": empty})[0]


def test_an_unknown_regime_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="no regime named 'golden'; there are: gold, all"):
        collate_annotated(ITEMS, STORE, "golden")[0]
