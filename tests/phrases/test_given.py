"""Given phrases: their spans, and the errors for phrases that are not in the caption."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.core.schema import PHRASE_LIMIT
from phrasechain.phrases.given import Given, locate_phrases
from phrasechain.text.tokens import tokenise

TEXT = "A man in a red-striped shirt sees a man's dog, a Dog."


def found(text: str, *phrases: Given) -> list[str]:
    return [text[span.start : span.end] for span in locate_phrases(text, phrases)]


def refusal(text: str, *phrases: Given) -> str:
    with pytest.raises(DataError) as caught:
        locate_phrases(text, phrases)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_text_is_found_wherever_it_stands() -> None:
    spans = locate_phrases(TEXT, ["man", "a red-striped  shirt"])
    assert [(span.start, span.end) for span in spans] == [(2, 5), (9, 28), (36, 39)]
    assert [(span.first_token, span.end_token) for span in spans] == [(1, 2), (3, 6), (8, 9)]


def test_case_counts_only_where_it_can() -> None:
    assert found(TEXT, "Dog") == ["Dog"]
    assert found(TEXT, "dog") == ["dog"]
    assert found(TEXT, "DOG") == ["dog", "Dog"]
    assert found(TEXT, "a man") == ["a man"]
    assert found("Ein STRASSENHUND", "strassenhund") == ["STRASSENHUND"]


def test_a_text_given_again_adds_nothing() -> None:
    assert found(TEXT, "man", "man") == ["man", "man"]


def test_spans_are_code_points_and_space_at_their_ends_is_cut() -> None:
    text = "👩‍👧 a 🐕 and a cat"
    start = text.index("🐕")
    assert found(text, (start - 3, start + 2), (0, 3)) == ["👩‍👧", "a 🐕"]
    assert locate_phrases("a dog", [(2, 5)])[0].first_token == 1


def test_a_phrase_may_be_an_abbreviation_or_a_sign() -> None:
    assert found("In the U.S. near St. Paul!", "U.S.", "St. Paul", "!") == ["U.S.", "St. Paul", "!"]


def test_nothing_given_is_nothing_found() -> None:
    assert locate_phrases("", []) == []


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        (["a woman"], "the phrase 'a woman' is not in the caption; did you mean 'a man'?"),
        (
            ["red striped shirt"],
            "the phrase 'red striped shirt' is not in the caption; did you mean 'red-striped shirt'?",
        ),
        (["xylophone"], f"the phrase 'xylophone' is not in the caption: {TEXT!r}"),
        (["striped shirt"], "the phrase 'striped shirt' cuts 'red-striped shirt' at (11, 28); give whole words"),
        (["ma"], "the phrase 'ma' cuts 'man' at (2, 5); give whole words"),
        (["  "], "a phrase is empty; give words of the caption, or omit it"),
        (["A man", "man"], "the phrases 'A man' and 'man' overlap, at (0, 5) and (2, 5)"),
        ([(2, 5), (2, 5)], "the phrases 'man' and 'man' overlap, at (2, 5) and (2, 5)"),
        (["man", (0, 5)], "the phrases 'A man' and 'man' overlap"),
        ([(3, 4)], "the span (3, 4) cuts 'man' at (2, 5); give whole words"),
        ([(3, 8)], "the span (3, 8) cuts 'man in' at (2, 8); give whole words"),
        ([(1, 2)], "the span (1, 2) contains only white space"),
        ([(5, 5)], "the span (5, 5) is empty or outside the caption: 0 ≤ start < end ≤ 53"),
        ([(5, 2)], "the span (5, 2) is empty or outside"),
        ([(-3, 2)], "the span (-3, 2) is empty or outside"),
        ([(50, 54)], "the span (50, 54) is empty or outside"),
        ([(0, True)], "(0, True) is not a phrase; give a text, or (start, end) in characters of the caption"),
        ([(0, 1, 2)], "(0, 1, 2) is not a phrase"),
        ([None], "None is not a phrase"),
        (["x" * 100_000], "is not in the caption"),
        (["man"] * (PHRASE_LIMIT + 1), "1,001 phrases, more than 1,000; give fewer"),
    ],
)
def test_what_is_refused(phrases: list[Given], message: str) -> None:
    said = refusal(TEXT, *phrases)
    assert message in said
    assert len(said) < 300


def test_one_text_is_no_list() -> None:
    with pytest.raises(DataError, match="put it into a list"):
        locate_phrases(TEXT, "man")
    for other in (5, iter(["man"])):
        with pytest.raises(DataError, match=r"spans, not (int|list_iterator)$"):
            locate_phrases(TEXT, other)  # type: ignore[arg-type]


def test_a_long_text_is_shown_in_part() -> None:
    said = refusal("a dog runs " * 500, "xylophone")
    assert said.endswith("…'")
    assert len(said) < 150


@given(st.data(), st.text(st.sampled_from("aB '.-\u0301🐕\n"), min_size=1, max_size=30))
def test_spans_and_texts_against_all_tokens(data: st.DataObject, text: str) -> None:
    """A span is taken just where it is made of whole tokens and space; so is a text that occurs once."""
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    tokens = tokenise(text)
    inner = text[start:end].strip()
    left = start + text[start:end].find(inner)
    first = [place for place, token in enumerate(tokens) if token.start == left]
    last = [place for place, token in enumerate(tokens) if token.end == left + len(inner)]
    if inner and first and last and first[0] <= last[0]:
        [span] = locate_phrases(text, [(start, end)])
        assert (span.start, span.end, span.first_token, span.end_token) == (
            *(left, left + len(inner), first[0], last[0] + 1),
        )
        if text.count(inner) == 1:
            assert locate_phrases(text, [inner]) == [span]
    else:
        refusal(text, (start, end))
