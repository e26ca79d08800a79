"""Labels are inside, apart and at their boxes, and are given up only where every place is taken."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.draw.frames import chip_size
from phrasechain.draw.panel import choose_font_size
from phrasechain.draw.places import LABEL_LIMIT, Label, Rectangle, Size, place_labels


def boxes_in(picture: Size, most: int) -> st.SearchStrategy[list[Rectangle]]:
    sides = [st.tuples(st.integers(0, side - 1), st.integers(1, side)) for side in picture]
    ends = [side.map(lambda pair: (min(pair), max(*pair, min(pair) + 1))) for side in sides]
    return st.lists(st.tuples(*ends).map(lambda xy: (xy[0][0], xy[1][0], xy[0][1], xy[1][1])), max_size=most)


def differ(first: Rectangle, second: Rectangle) -> bool:
    return first[2] <= second[0] or second[2] <= first[0] or first[3] <= second[1] or second[3] <= first[1]


def touches(label: Rectangle, box: Rectangle) -> bool:
    return label[0] <= box[2] and box[0] <= label[2] and label[1] <= box[3] and box[1] <= label[3]


def check(labels: list[Label | None], boxes: list[Rectangle], sizes: list[list[Size]], picture: Size) -> None:
    placed = [label.rectangle for label in labels if label]
    assert all(differ(*pair) for pair in combinations(placed, 2))
    for label, box, choices in zip(labels, boxes, sizes, strict=True):
        if label:
            x0, y0, x1, y1 = label.rectangle
            assert x0 >= 0
            assert y0 >= 0
            assert x1 <= picture[0]
            assert y1 <= picture[1]
            assert (x1 - x0, y1 - y0) == choices[label.choice]
            assert touches(label.rectangle, box)


@settings(max_examples=60)
@given(st.data(), st.integers(200, 4000), st.integers(200, 4000))
def test_labels_of_any_boxes_are_apart_and_inside(data: st.DataObject, width: int, height: int) -> None:
    picture, font_size = (width, height), choose_font_size(width, height)
    boxes = data.draw(boxes_in(picture, 40))
    texts = data.draw(st.lists(st.text("mil ", min_size=1, max_size=20), min_size=40, max_size=40))
    sizes = [[chip_size(text, font_size), chip_size(text[:6], font_size), chip_size("7", font_size)] for text in texts]
    sizes = sizes[: len(boxes)]
    check(place_labels(boxes, sizes, picture), boxes, sizes, picture)


def is_free(box: Rectangle, size: Size, picture: Size, taken: list[Rectangle]) -> bool:
    """Whether any of all the places in the picture would do."""
    for x in range(picture[0] - size[0] + 1):
        for y in range(picture[1] - size[1] + 1):
            place = (x, y, x + size[0], y + size[1])
            if touches(place, box) and all(differ(place, other) for other in taken):
                return True
    return False


small_sizes = st.tuples(st.integers(1, 14), st.integers(1, 6))


@settings(max_examples=60)
@given(st.data(), st.integers(4, 16), st.integers(4, 12))
def test_a_label_shrinks_or_is_left_out_only_where_no_place_of_all_is_free(
    data: st.DataObject, width: int, height: int
) -> None:
    picture = (width, height)
    boxes = data.draw(boxes_in(picture, 7))
    sizes = data.draw(st.lists(st.lists(small_sizes, min_size=1, max_size=3), min_size=len(boxes), max_size=len(boxes)))
    labels = place_labels(boxes, sizes, picture)
    check(labels, boxes, sizes, picture)
    taken: list[Rectangle] = []
    for label, box, choices in zip(labels, boxes, sizes, strict=True):
        passed_over = choices[: label.choice] if label else choices
        assert not any(is_free(box, size, picture, taken) for size in passed_over)
        taken += [label.rectangle] if label else []


def test_a_label_stands_on_its_box_at_the_left() -> None:
    assert place_labels([(30, 40, 90, 80)], [[(25, 10)]], (200, 100)) == [Label(0, (30, 30, 55, 40))]


def test_at_the_top_a_label_of_a_large_box_goes_inside_and_of_a_small_one_below() -> None:
    assert place_labels([(30, 0, 150, 90)], [[(25, 10)]], (200, 100)) == [Label(0, (30, 0, 55, 10))]
    assert place_labels([(30, 0, 50, 12)], [[(25, 10)]], (200, 100)) == [Label(0, (30, 12, 55, 22))]


def test_a_label_spares_a_small_box_that_stands_above_its_own() -> None:
    found = place_labels([(30, 28, 50, 40), (30, 40, 90, 80)], [[(10, 8)], [(25, 10)]], (200, 100))
    assert found[1] is not None
    assert differ(found[1].rectangle, (30, 28, 50, 40))


def test_a_label_stays_in_line_with_its_box_if_that_hides_little() -> None:
    behind = (20, 0, 60, 100)  # at the picture's left end, the label would cover less of it
    found = place_labels([(10, 40, 90, 80), behind], [[(25, 10)], [(5, 5)]], (200, 100))
    assert found[0] == Label(0, (10, 30, 35, 40))


def test_there_are_no_more_labels_than_the_limit() -> None:
    boxes = [(0, 0, 1000, 1000)] * (LABEL_LIMIT + 3)
    labels = place_labels(boxes, [[(5, 5)]] * len(boxes), (1000, 1000))
    assert all(labels[:LABEL_LIMIT])
    assert labels[LABEL_LIMIT:] == [None] * 3
    assert place_labels([], [], (10, 10)) == []
