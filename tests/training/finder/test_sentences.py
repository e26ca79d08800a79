"""Lessons: marked-up captions as labelled tokens, and the ways in which they are written."""

import numpy as np

from phrasechain.data.markup import parse_caption
from phrasechain.phrases.finder import LABELS, phrases_of
from phrasechain.training.finder.sentences import (
    CASES,
    Lesson,
    MarkedText,
    as_stored,
    as_written,
    join,
    read_lesson,
    vary,
    without,
)

LINE = '[/EN#1/people The man \'s] [/EN#2/clothing/other hat] is on [/EN#0/notvisual top] of [/EN#3/other " it "] .'


def spelled(lesson: Lesson) -> str:
    return " ".join(f"{token}/{LABELS[label]}" for token, label in zip(lesson.tokens, lesson.labels, strict=True))


def test_both_writings_have_the_same_lesson() -> None:
    caption = parse_caption(LINE)
    stored, written = as_stored(caption), as_written(caption)
    assert stored.text == 'The man \'s hat is on top of " it " .'
    assert written.text == 'The man\'s hat is on top of "it".'
    assert [written.text[start:end] for start, end, _ in written.phrases] == ["The man's", "hat", "top", '"it"']
    assert read_lesson(stored) == read_lesson(written)
    assert spelled(read_lesson(written)) == (
        "The/B-people man/I-people 's/I-people hat/B-clothing is/O on/O top/B-notvisual of/O "
        '"/B-other it/I-other "/I-other ./O'
    )


def test_a_cut_token_belongs_to_its_phrase_and_the_first_phrase_wins() -> None:
    marked = MarkedText("red-hot dog", ((4, 11, ("animals",)), (0, 3, ("other",)), (8, 11, ("people",))))
    assert spelled(read_lesson(marked)) == "red-hot/B-animals dog/I-animals"


def test_without_tokens_a_phrase_begins_with_what_is_left() -> None:
    lesson = Lesson(('"', "it", '"', "he", "."), (1, 2, 2, 1, 0))
    assert without(lesson, {0, 2, 4}) == Lesson(("it", "he"), (1, 1))
    assert without(lesson, {0, 1, 2}) == Lesson(("he", "."), (1, 0))
    assert without(lesson, range(5)) == lesson


def test_lessons_vary_as_often_as_they_should() -> None:
    lesson = read_lesson(as_written(parse_caption(LINE.replace("top", "a , top"))))
    chance = np.random.default_rng(0)
    varied = [vary(lesson, chance) for _ in range(4000)]
    for one in varied:
        assert [name for _, _, name in phrases_of(one.labels)] == ["people", "clothing", "notvisual", "other"]
        assert all(one.labels[place] % 2 for place, label in enumerate(one.labels) if label and not place)
    first_words = [one.tokens[:2] for one in varied]
    for name, words in {"as it is": ("The", "man"), "lower": ("the", "man"), "upper": ("THE", "MAN")}.items():
        assert abs(first_words.count(words) / 4000 - CASES[name][0]) < 0.03
    assert abs(first_words.count(("The", "Man")) / 4000 - CASES["title"][0]) < 0.03
    assert abs(sum("," not in one.tokens for one in varied) / 4000 - 0.05) < 0.02
    assert abs(sum("," in one.tokens and one.tokens[-1] != "." for one in varied) / 4000 - 0.15 * 0.95) < 0.02


def test_a_paragraph_is_its_captions() -> None:
    one, other = Lesson(("a",), (1,)), Lesson(("b", "."), (3, 0))
    assert join([one, other]) == Lesson(("a", "b", "."), (1, 3, 0))
