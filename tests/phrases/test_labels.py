"""Texts that may be lists of labels, and what the embedded finder makes of them."""

import pytest

from phrasechain.phrases.finder import PhraseFinder
from phrasechain.phrases.labels import label_parts
from phrasechain.text.tokens import tokenise


def texts(text: str) -> list[str]:
    tokens = tokenise(text)
    return [text[tokens[first].start : tokens[end - 1].end] for first, end in label_parts(text, tokens)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dog, red car; tree", ["dog", "red car", "tree"]),
        ("dog,cat", ["dog", "cat"]),
        ("dog\n\ncat\r\ntraffic light\n", ["dog", "cat", "traffic light"]),
        ("- dog\n- cat", ["dog", "cat"]),
        ("1. dog\n2. cat", ["dog", "cat"]),
        ("Dog. Cat.", ["Dog", "Cat"]),
        ("dog | cat", ["dog", "cat"]),
        ("dog", []),
        ("a dog,", []),
        (", ;", []),
        ("", []),
        ("a dog, and a man who wears a hat of red wool", []),
    ],
)
def test_parts(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


@pytest.fixture(scope="module")
def finder() -> PhraseFinder:
    return PhraseFinder.from_pretrained()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dog, cat, tree", ["dog", "cat", "tree"]),
        ("dog\ncat\ntree", ["dog", "cat", "tree"]),
        ("dog,cat,tree", ["dog", "cat", "tree"]),
        ("person, red shirt, traffic light", ["person", "red shirt", "traffic light"]),
        ("elephant", ["elephant"]),
        ("the dog runs, the cat sleeps", ["the dog", "the cat"]),
        ("A man in a red hat, a dog", ["A man", "a red hat", "a dog"]),
        ("A woman sits\non a bench", ["A woman", "a bench"]),
    ],
)
def test_labels_are_found_and_sentences_stay_sentences(finder: PhraseFinder, text: str, expected: list[str]) -> None:
    found = finder.find(text)
    assert [phrase.text for phrase in found] == expected
    tokens = tokenise(text)
    for phrase in found:
        assert text[phrase.start : phrase.end] == phrase.text
        assert (tokens[phrase.first_token].start, tokens[phrase.end_token - 1].end) == (phrase.start, phrase.end)


@pytest.mark.parametrize(
    ("text", "known"), [("Dogs!", True), ("ein Hund und eine Katze", False), ("собака", False), ("le 12 ?", False)]
)
def test_whether_a_word_is_known(finder: PhraseFinder, text: str, known: bool) -> None:
    assert finder.knows_a_word(text) is known
