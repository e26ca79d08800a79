"""Spans come from the mark-up itself: every oddity below has its answer worked out by hand."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.data.markup import Entity, parse_caption


def spans(line: str) -> list[tuple[str, int, int, int, int]]:
    found = parse_caption(line).phrases
    return [(phrase.text, phrase.start, phrase.end, phrase.first_token, phrase.end_token) for phrase in found]


def test_a_caption_without_mark_up_is_its_tokens_joined_by_one_space() -> None:
    caption = parse_caption("[/EN#1/people  A   man ] sits\ton[/EN#2/other  a chair]  . \r", index=3)
    assert caption.text == "A man sits ona chair ."
    assert caption.tokens == ("A", "man", "sits", "ona", "chair", ".")
    assert caption.index == 3


def test_a_repeated_phrase_is_where_it_stands() -> None:
    assert spans("[/EN#1/people A man] sees [/EN#2/people a man] and [/EN#3/people a man] .") == [
        ("A man", 0, 5, 0, 2),
        ("a man", 11, 16, 3, 5),
        ("a man", 21, 26, 6, 8),
    ]


def test_a_phrase_within_a_word() -> None:
    assert spans("Two wo[/EN#1/people men] and [/EN#2/people a dog]'s [/EN#3/other bone]s") == [
        ("men", 6, 9, 1, 2),
        ("a dog", 14, 19, 3, 5),
        ("bone", 22, 26, 5, 6),
    ]


def test_brackets_nest() -> None:
    line = "[/EN#1/people A man in [/EN#2/clothing a red [/EN#3/other silk] shirt] ] waves"
    assert parse_caption(line).text == "A man in a red silk shirt waves"
    assert spans(line) == [
        ("A man in a red silk shirt", 0, 25, 0, 7),
        ("a red silk shirt", 9, 25, 3, 7),
        ("silk", 15, 19, 5, 6),
    ]


def test_brackets_of_the_text_stay_in_it() -> None:
    line = "[/EN#1/other a sign [sic]] reads [ stop ]"
    assert parse_caption(line).text == "a sign [sic] reads [ stop ]"
    assert spans(line) == [("a sign [sic]", 0, 12, 0, 3)]


def test_characters_are_code_points_and_a_no_break_space_is_one_of_its_token() -> None:
    line = "[/EN#1/people 𝒜 café’s\u00a0owner] in [/EN#2/scene Gubbängen] \u2028\x85x"
    caption = parse_caption(line)
    assert caption.tokens == ("𝒜", "café’s\u00a0owner", "in", "Gubbängen", "\u2028\x85x")
    assert spans(line) == [("𝒜 café’s\u00a0owner", 0, 14, 0, 2), ("Gubbängen", 18, 27, 3, 4)]


def test_all_categories_the_entity_and_what_is_known_of_it() -> None:
    box = (1.0, 2.0, 3.0, 4.0)
    entities = {"1": Entity((box, box)), "2": Entity(is_scene=True, is_boxless=True)}
    line = (
        "[/EN#1/people/clothing A man] in [/EN#2/scene a park] with [/EN#3/other a ball] , [/EN#0/notvisual each other]"
    )
    man, park, ball, each_other = parse_caption(line, entities=entities).phrases
    assert (man.categories, man.entity, man.boxes) == (("people", "clothing"), "1", (box, box))
    assert (park.boxes, park.is_scene, park.is_boxless) == ((), True, True)
    assert (ball.entity, ball.boxes, ball.is_scene, ball.is_boxless) == ("3", None, False, False)
    assert (each_other.entity, each_other.boxes, each_other.is_visual) == (None, None, False)


def test_first_match_moves_the_tokens_and_not_the_characters() -> None:
    line = "Women watch [/EN#1/people A man] and [/EN#2/people a man] and [/EN#3/people men]"
    found = parse_caption(line, first_match=True).phrases
    assert [(phrase.first_token, phrase.end_token) for phrase in found] == [(2, 4), (2, 4), (0, 1)]
    assert [(phrase.start, phrase.end) for phrase in found] == [(12, 17), (22, 27), (32, 35)]


def test_first_match_within_the_last_word_ends_with_the_caption() -> None:
    (phrase,) = parse_caption("wo[/EN#1/people men]", first_match=True).phrases
    assert (phrase.first_token, phrase.end_token) == (0, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[/EN#1/people A man sits", "never closed"),
        ("A man] sits", "closes no phrase"),
        ("[/EN#1/people ] sits", "no words"),
        ("[/EN#1/people [/EN#2/people  ]] sits", "no words"),
        ("[/EN#1 A man] sits", "broken mark-up at '\\[/EN#1 A man] sits'"),
        ("[/EN#1/people", "broken mark-up"),
        ("[/EN#/people A man]", "broken mark-up"),
        ("[/en#1/people A man]", "broken mark-up"),
        ("[/EN#1/people [/EN#2/people A man]] sits", "same span"),
        ("a [ b", "never closed"),
        ("[/EN#1/people a] " * 1001, "more than 1,000 phrases"),
    ],
)
def test_broken_mark_up_is_named(line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_caption(line)


def test_a_category_given_twice_counts_once() -> None:
    (phrase,) = parse_caption("[/EN#1/people/other/people men]").phrases
    assert phrase.categories == ("people", "other")


word = st.text(st.characters(exclude_characters=" []\t\r\n\f\v", codec="utf-8"), min_size=1, max_size=6)
chunk = st.lists(word, min_size=1, max_size=3).map(" ".join)


@given(st.lists(st.tuples(chunk, st.none() | st.integers(0, 50)), max_size=6), st.sampled_from([" ", "  ", "\t"]))
def test_whole_word_phrases_are_found_where_they_were_put(parts: list[tuple[str, int | None]], space: str) -> None:
    line = space.join(words if entity is None else f"[/EN#{entity}/other {words}]" for words, entity in parts)
    caption = parse_caption(line)
    assert caption.text == " ".join(words for words, _ in parts) == " ".join(caption.tokens)
    assert [phrase.text for phrase in caption.phrases] == [words for words, entity in parts if entity is not None]
    for phrase in caption.phrases:
        assert caption.text[phrase.start : phrase.end] == phrase.text
        assert " ".join(caption.tokens[phrase.first_token : phrase.end_token]) == phrase.text


pieces = st.sampled_from(
    ["[", "]", "[/EN#1/people ", "[/EN#2/other/scene ", "[/EN#", "[/", " ", "  ", "men", "wo", "é", "\t"]
)


@given(st.lists(pieces | st.text(max_size=3), max_size=12).map("".join))
@example("[/EN#1/people a][/EN#2/other b]")
def test_any_line_gives_true_spans_or_a_data_error(line: str) -> None:
    try:
        caption = parse_caption(line)
    except DataError:
        return
    assert caption.text == " ".join(caption.tokens)
    for phrase in caption.phrases:
        assert caption.text[phrase.start : phrase.end] == phrase.text == phrase.text.strip(" ") != ""
        tokens = caption.tokens[phrase.first_token : phrase.end_token]
        assert phrase.text in " ".join(tokens)
        assert len(tokens) == len(phrase.text.split(" "))
