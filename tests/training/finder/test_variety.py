"""Sentences unlike captions: labels stay with their words, and every way is taken as often as it should be."""

from collections import Counter

import numpy as np
import pytest

from phrasechain.data.markup import parse_caption
from phrasechain.phrases.finder import phrases_of
from phrasechain.text.tokens import tokenise
from phrasechain.training.finder import variety
from phrasechain.training.finder.sentences import TaggedSentence, as_written, is_word, tag_sentence
from phrasechain.training.finder.variety import (
    WAYS,
    beside_other_text,
    named,
    owned,
    requested,
    unlike_captions,
    with_aside,
    with_signs,
)

SENTENCE = tag_sentence(
    as_written(parse_caption("[/EN#1/people A man] pets [/EN#2/animals the dog] for [/EN#0/notvisual fun] ."))
)
BARE = TaggedSentence(("It", "rains"), (0, 0))


def marked(sentence: TaggedSentence) -> list[tuple[str, str]]:
    """The phrases and their classes."""
    return [(" ".join(sentence.tokens[first:end]), name) for first, end, name in phrases_of(sentence.labels)]


def many(way, sentence: TaggedSentence = SENTENCE, count: int = 300) -> list[TaggedSentence]:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    return [way(sentence, rng) for _ in range(count)]


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("sentence", [SENTENCE, BARE, TaggedSentence((".",), (0,)), TaggedSentence(("Dogs",), (7,))])
def test_every_token_has_a_label_and_no_phrase_begins_inside(name: str, sentence: TaggedSentence) -> None:
    for one in many(WAYS[name][1], sentence):
        assert len(one.tokens) == len(one.labels) > 0
        assert all(one.tokens)
        for before, label in zip((0, *one.labels), one.labels, strict=False):
            assert label % 2 or label == 0 or before in (label - 1, label)


def test_a_name_takes_the_place_of_a_person() -> None:
    names = set()
    for one in many(named):
        (name, people), *others = marked(one)
        assert people == "people"
        assert 1 <= len(name.split()) <= 2
        assert name == name.title()
        assert others == [("the dog", "animals"), ("fun", "notvisual")]
        assert one.tokens[len(name.split()) :] == SENTENCE.tokens[2:]
        names.add(name)
    assert len(names) > 150
    assert set(many(named, BARE)) == {BARE}


def test_articles_become_possessives() -> None:
    firsts, caption = Counter[str](), " ".join(SENTENCE.tokens[1:3])
    for one in many(owned):
        assert one.labels == SENTENCE.labels
        assert (" ".join(one.tokens[1:3]), one.tokens[4:]) == (caption, SENTENCE.tokens[4:])
        firsts.update([one.tokens[0], one.tokens[3]])
    assert {"A", "the", "My", "my", "Our", "that"} < firsts.keys()
    assert abs(firsts["A"] / 300 - 0.3) < 0.08
    assert set(many(owned, BARE)) == {BARE}


def test_a_request_keeps_the_phrases_from_one_on() -> None:
    kinds = Counter()
    for one in many(requested):
        phrases = marked(one)
        assert phrases in ([("a man", "people"), *marked(SENTENCE)[1:]], marked(SENTENCE)[1:])
        start = next(place for place, label in enumerate(one.labels) if label)
        opening = " ".join(one.tokens[:start])
        assert opening in (variety._REQUESTS if one.tokens[-1] == "?" else variety._STATEMENTS)
        kinds[one.tokens[-1]] += 1
    assert kinds.keys() == {"?", "."}
    assert abs(kinds["?"] / 300 - 0.4) < 0.1


def test_an_aside_is_in_no_phrase() -> None:
    before = 0
    for one in many(with_aside):
        assert marked(one) in (marked(SENTENCE), [("a man", "people"), *marked(SENTENCE)[1:]])
        assert one.tokens[-1] == "."
        assert len(one.tokens) > len(SENTENCE.tokens)
        before += one.labels[0] == 0
    assert abs(before / 300 - 0.4) < 0.1
    for one in many(with_aside, BARE):
        assert one.tokens[:2] == BARE.tokens or ("," in one.tokens and one.tokens[-2:] == ("it", "rains"))


def test_signs_stand_outside_of_phrases() -> None:
    ends = Counter()
    for one in many(with_signs):
        assert marked(one) == marked(SENTENCE)
        added = [token for token in one.tokens if token not in SENTENCE.tokens]
        assert len(added) == 1
        assert not is_word(added[0])
        ends[one.tokens[-1]] += 1
    assert {"!", "?", "...", "."} < ends.keys()


def test_emoji_are_one_token_as_the_text_is_split() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        emoji = variety._emoji(rng)
        assert [token.text for token in tokenise(f"a {emoji} b")] == ["a", emoji, "b"]


@pytest.mark.parametrize("patterns", ["_REQUESTS", "_STATEMENTS", "_ASIDES", "_SENTENCES"])
def test_words_are_tokens_as_the_text_is_split(patterns: str) -> None:
    rng = np.random.default_rng(0)
    for pattern in getattr(variety, patterns):
        plain = variety._plain(pattern, rng)
        assert [token.text for token in tokenise(" ".join(plain.tokens))] == list(plain.tokens)
        assert set(plain.labels) == {0}
        assert not set(plain.tokens) & variety._WORDS.keys()


def test_a_sentence_without_phrases_stands_alone_before_or_after() -> None:
    kinds = Counter()
    for one in many(beside_other_text):
        if marked(one):
            assert marked(one) == marked(SENTENCE)
            kinds["after" if one.labels[0] else "before"] += 1
        else:
            kinds["alone"] += 1
    assert min(kinds["after"], kinds["before"], kinds["alone"]) > 70


def test_ways_are_taken_as_often_as_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(share for share, _ in WAYS.values()) == pytest.approx(1)
    asked: Counter[str] = Counter()
    for name, (share, _) in list(WAYS.items()):

        def ask(sentence: TaggedSentence, _: np.random.Generator, name: str = name) -> TaggedSentence:
            asked[name] += 1
            return sentence

        monkeypatch.setitem(WAYS, name, (share, ask))
    many(unlike_captions, count=4000)
    for name, (share, _) in WAYS.items():
        assert abs(asked[name] / 4000 - share) < 0.03
