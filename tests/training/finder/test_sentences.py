"""Training sentences: marked-up captions as labelled tokens, and the ways in which they are written."""

import numpy as np

from phrasechain.data.markup import parse_caption
from phrasechain.phrases.finder import LABELS, phrases_of
from phrasechain.training.finder.sentences import (
    CASES,
    MarkedText,
    TaggedSentence,
    as_stored,
    as_written,
    join,
    tag_sentence,
    vary,
    without,
)

LINE = '[/EN#1/people The man \'s] [/EN#2/clothing/other hat] is on [/EN#0/notvisual top] of [/EN#3/other " it "] .'


def spelled(sentence: TaggedSentence) -> str:
    return " ".join(f"{token}/{LABELS[label]}" for token, label in zip(sentence.tokens, sentence.labels, strict=True))


def test_both_writings_have_the_same_labels() -> None:
    caption = parse_caption(LINE)
    stored, written = as_stored(caption), as_written(caption)
    assert stored.text == 'The man \'s hat is on top of " it " .'
    assert written.text == 'The man\'s hat is on top of "it".'
    assert [written.text[start:end] for start, end, _ in written.phrases] == ["The man's", "hat", "top", '"it"']
    assert tag_sentence(stored) == tag_sentence(written)
    assert spelled(tag_sentence(written)) == (
        "The/B-people man/I-people 's/I-people hat/B-clothing is/O on/O top/B-notvisual of/O "
        '"/B-other it/I-other "/I-other ./O'
    )


def test_a_cut_token_belongs_to_its_phrase_and_the_first_phrase_wins() -> None:
    marked = MarkedText("red-hot dog", ((4, 11, ("animals",)), (0, 3, ("other",)), (8, 11, ("people",))))
    assert spelled(tag_sentence(marked)) == "red-hot/B-animals dog/I-animals"


def test_without_tokens_a_phrase_begins_with_what_is_left() -> None:
    sentence = TaggedSentence(('"', "it", '"', "he", "."), (1, 2, 2, 1, 0))
    assert without(sentence, {0, 2, 4}) == TaggedSentence(("it", "he"), (1, 1))
    assert without(sentence, {0, 1, 2}) == TaggedSentence(("he", "."), (1, 0))
    assert without(sentence, range(5)) == sentence


def test_sentences_vary_as_often_as_they_should() -> None:
    sentence = tag_sentence(as_written(parse_caption(LINE.replace("top", "a , top"))))
    rng = np.random.default_rng(0)
    varied = [vary(sentence, rng) for _ in range(4000)]
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
    one, other = TaggedSentence(("a",), (1,)), TaggedSentence(("b", "."), (3, 0))
    assert join([one, other]) == TaggedSentence(("a", "b", "."), (1, 3, 0))
