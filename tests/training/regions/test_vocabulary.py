import torch

from builders import make_caption, make_example
from phrasechain.training.regions.vocabulary import (
    Vocabulary,
    build_region_vocabulary,
    mirror,
    phrase_words,
    read_targets,
)

MAN = ((0.0, 0.0, 50.0, 80.0),)
DOGS = ((50.0, 40.0, 70.0, 80.0), (80.0, 40.0, 100.0, 60.0))
EXAMPLE = make_example(
    "1",
    make_caption(0, ("A man", "1", ("people",), MAN), ("Two brown dogs", "2", ("animals",), DOGS)),
    make_caption(1, ("the left man", "1", ("people",), MAN), ("a hat", "3", ("clothing",), None)),
)


def test_empty_words_are_left_out_and_categories_are_words() -> None:
    caption = EXAMPLE.captions[0]
    assert phrase_words(caption.phrases[1], caption.tokens) == ["two", "brown", "dogs", "<animals>"]


def test_the_vocabulary_counts_phrases_with_a_box() -> None:
    assert set(build_region_vocabulary([EXAMPLE], 1).words) == {
        *("man", "<people>", "two", "brown", "dogs", "<animals>", "left"),
    }
    assert set(build_region_vocabulary([EXAMPLE], 2).words) == {"man", "<people>"}


def test_targets_hold_merged_boxes_first_and_every_word_of_each() -> None:
    vocabulary = Vocabulary(("man", "left", "dogs", "brown"))
    targets = read_targets(EXAMPLE, vocabulary)
    expected = [[0, 0, 0.5, 1], [0.5, 0.5, 1, 1], [0.5, 0.5, 0.7, 1], [0.8, 0.5, 1, 0.75]]
    torch.testing.assert_close(targets.boxes, torch.tensor(expected, dtype=torch.float32))
    assert targets.words == ((0, 1), (2, 3))
    assert targets.phrases == ((0, (0,)), (1, (2, 3)), (0, (0, 1)))


def test_a_mirror_changes_sides_in_boxes_and_words() -> None:
    vocabulary = Vocabulary(("man", "left", "right", "dogs"))
    targets = read_targets(EXAMPLE, vocabulary)
    seen = mirror(targets, vocabulary)
    torch.testing.assert_close(seen.boxes[0], torch.tensor([0.5, 0, 1, 1]))
    torch.testing.assert_close(seen.boxes[3], torch.tensor([0.0, 0.5, 0.2, 0.75]))
    assert seen.words[0] == (0, 2)
    again = mirror(seen, vocabulary)
    torch.testing.assert_close(again.boxes, targets.boxes)
    assert (again.words, again.phrases) == (targets.words, targets.phrases)


def test_a_side_whose_opposite_is_unknown_is_forgotten_in_the_mirror() -> None:
    vocabulary = Vocabulary(("man", "left"))
    assert mirror(read_targets(EXAMPLE, vocabulary), vocabulary).words == ((0,), ())


def test_an_image_without_boxes_teaches_nothing() -> None:
    targets = read_targets(
        make_example("2", make_caption(0, ("a hat", "3", ("clothing",), None))), Vocabulary(("hat",))
    )
    assert targets.boxes.shape == (0, 4)
    assert (targets.words, targets.phrases) == ((), ())
