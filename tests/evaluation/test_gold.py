"""The table of gold phrases, and predictions put beside it."""

import numpy as np
import pytest

from builders import make_caption, make_example
from phrasechain.core.errors import DataError
from phrasechain.evaluation.gold import UNSCORED, collect_gold, match_predictions
from phrasechain.evaluation.predictions import Prediction

A, B = (0.0, 0.0, 4.0, 4.0), (6.0, 1.0, 9.0, 8.0)
MEN = ("two men", "1", ("people",), (A, B))
MAN = ("a man", "1", ("people",), (A,))
HAT = ("a hat", None, ("clothing", "hats"), (B,))
CAP = ("a cap", None, ("clothing",), (B,))
SKY = ("the sky", "4", ("scene",), None)
WAY = ("the way", "0", ("notvisual",), (A,))
EXAMPLES = [
    make_example("x", make_caption(0, MEN, SKY, HAT), make_caption(4, WAY, MAN)),
    make_example("y", make_caption(0, HAT, CAP, MAN)),
]


def test_rows_are_the_visual_phrases_with_a_box() -> None:
    gold = collect_gold(EXAMPLES, "gold")
    assert gold.rows == {
        ("x", 0, 0, 7): 0,
        ("x", 0, 12, 19): UNSCORED,
        ("x", 0, 24, 29): 1,
        ("x", 4, 12, 17): 2,
        ("y", 0, 0, 5): 3,
        ("y", 0, 10, 15): 4,
        ("y", 0, 20, 25): 5,
    }
    assert gold.image.tolist() == [0, 0, 0, 1, 1, 1]
    assert gold.caption.tolist() == [0, 0, 1, 2, 2, 2]
    assert gold.caption_index.tolist() == [0, 0, 4, 0, 0, 0]
    assert gold.owner.tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert gold.merged[:2].tolist() == [[0, 0, 9, 8], list(B)]


def test_an_entity_is_one_within_its_image_and_phrases_without_one_differ() -> None:
    entity = collect_gold(EXAMPLES, "gold").entity.tolist()
    assert entity[0] == entity[2]
    assert len(set(entity)) == 5


def test_categories_are_the_official_ones_in_order_then_one_s_own() -> None:
    gold = collect_gold(EXAMPLES, "gold")
    assert gold.category_names == ("people", "clothing", "hats")
    assert gold.categories.int().tolist() == [[1, 0, 0], [0, 1, 1], [1, 0, 0], [0, 1, 1], [0, 1, 0], [1, 0, 0]]


def test_the_regime_decides_how_long_a_chain_is() -> None:
    assert collect_gold(EXAMPLES, "gold").chain_length.tolist() == [2, 2, 1, 3, 3, 3]
    assert collect_gold(EXAMPLES, "all").chain_length.tolist() == [3, 3, 1, 3, 3, 3]


def test_a_phrase_annotated_twice_is_refused() -> None:
    with pytest.raises(DataError, match="image 'y', caption 0, characters 0 to 5 is annotated twice"):
        collect_gold([*EXAMPLES, EXAMPLES[1]], "gold")


def test_no_examples_give_an_empty_table() -> None:
    gold = collect_gold([], "gold")
    assert len(gold) == 0
    assert gold.merged.shape == (0, 4)


def test_predictions_find_their_rows_in_any_order() -> None:
    gold = collect_gold(EXAMPLES, "gold")
    regions = np.array([[0.0, 0, 1, 1], [0.0, 0, 2, 2]])
    matched = match_predictions(
        gold,
        [
            Prediction("y", 0, 0, 5, A, regions[:1], np.ones(1), line=1),
            Prediction("x", 0, 12, 19, A, regions, np.ones(2), line=2),
            Prediction("x", 0, 12, 18, A, line=3),
            Prediction("x", 0, 0, 7, B, regions, np.ones(2), line=4),
            Prediction("z", 0, 0, 7, B, line=5),
        ],
    )
    assert matched.found.tolist() == [True, False, False, True, False, False]
    assert matched.boxes.tolist() == [list(B), [0] * 4, [0] * 4, list(A), [0] * 4, [0] * 4]
    assert matched.region_counts.tolist() == [2, 0, 0, 1, 0, 0]
    assert matched.regions.tolist() == [[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 1, 1]]
    assert (matched.unscored, matched.unknown) == (1, 2)
    assert matched.first_unknown is not None
    assert matched.first_unknown.line == 3


@pytest.mark.parametrize("span", [(0, 7), (12, 19)])
def test_a_second_prediction_for_a_phrase_is_refused(span: tuple[int, int]) -> None:
    twice = [Prediction("x", 0, *span, A, line=line) for line in (3, 9)]
    with pytest.raises(DataError, match=r"^p\.jsonl:9: image 'x', caption 0, characters .* again, after line 3"):
        match_predictions(collect_gold(EXAMPLES, "gold"), twice, "p.jsonl")


def test_predictions_for_other_data_are_refused() -> None:
    with pytest.raises(DataError, match=r"^p\.jsonl: none of its 1 predictions is for a phrase"):
        match_predictions(collect_gold(EXAMPLES, "gold"), [Prediction("z", 0, 0, 7, A)], "p.jsonl")
