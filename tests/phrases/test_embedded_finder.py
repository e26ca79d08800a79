"""The embedded phrase finder on captions, on other text, and on malformed input."""

import gc
import time
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import phrasechain.phrases
from phrasechain.core.errors import DataError
from phrasechain.core.schema import CATEGORIES
from phrasechain.data.markup import parse_caption
from phrasechain.phrases.finder import FoundPhrase, PhraseFinder
from phrasechain.text.tokens import CHARACTER_LIMIT, TOKEN_LIMIT, tokenise
from phrasechain.training.finder.task import score

FINDER = PhraseFinder.from_pretrained()
CAPTION = "A man in a red shirt throws a frisbee to a dog"
FOUND = ["A man/people", "a red shirt/clothing", "a frisbee/other", "a dog/animals"]


def spelled(text: str) -> list[str]:
    return [f"{phrase.text}/{phrase.category}" for phrase in found(text)]


def found(text: str) -> list[FoundPhrase]:
    """The phrases, once it is clear that they are pieces of the text: whole tokens in their order."""
    phrases, tokens = FINDER.find(text), tokenise(text)
    for phrase in phrases:
        assert phrase.text == text[phrase.start : phrase.end] != ""
        assert phrase.category in CATEGORIES
        assert (phrase.start, phrase.end) == (tokens[phrase.first_token].start, tokens[phrase.end_token - 1].end)
    assert all(before.end_token <= after.first_token for before, after in pairwise(phrases))
    return phrases


# ---- the file ----


def test_the_file_is_small_and_soon_read() -> None:
    path = Path(phrasechain.phrases.__file__).with_name("finder.safetensors")
    assert path.stat().st_size <= 4_000_000
    assert all(tensor.dtype == torch.float16 for tensor in load_file(path).values())
    times = []
    for _ in range(5):
        gc.collect()
        start = time.process_time()
        PhraseFinder.from_pretrained()
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_it_is_as_good_as_it_should_be_on_images_that_were_held_out(shared_folder: Path) -> None:
    folder = shared_folder / "flickr8k-entities"
    lines = [
        line
        for image in (folder / "val.txt").read_text().split()[:80]
        for line in (folder / "Sentences" / f"{image}.txt").read_text(encoding="utf-8").splitlines()
    ]
    scores = score(FINDER, [parse_caption(line) for line in lines])
    for writing in ("stored", "written"):
        assert scores[f"{writing} F1"] > 96
        assert scores[f"{writing} category"] > 97


# ---- captions, in many ways of writing ----


@pytest.mark.parametrize("end", ["", ".", " .", "!", "!!!", "?", "…", "\n"])
def test_a_caption_with_any_end(end: str) -> None:
    assert spelled(CAPTION + end) == FOUND


def test_a_caption_in_other_letters() -> None:
    for write in (str.lower, str.upper, str.title):
        assert [phrase.lower() for phrase in spelled(write(CAPTION))] == [phrase.lower() for phrase in FOUND]


FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {ord(" "): 0x3000}
BOLD = {ord(letter): 0x1D400 + place for place, letter in enumerate(ascii_uppercase + ascii_lowercase)}


@pytest.mark.parametrize("form", [FULL_WIDTH, BOLD], ids=["full-width", "bold"])
def test_a_caption_in_letters_of_another_form(form: dict[int, int]) -> None:
    """Phrases are pieces of the text as it is written; their words are those of plain letters."""
    plain = "The woman's dog chases a man in a red t-shirt"
    text = plain.translate(form)
    places = [(phrase.start, phrase.end, phrase.category) for phrase in found(text)]
    assert places == [(phrase.start, phrase.end, phrase.category) for phrase in found(plain)]
    assert len(places) == 3


def test_a_caption_with_other_spaces() -> None:
    phrases = found("  A\tman in a\u00a0red\n\nshirt   throws a frisbee to a dog")
    assert [(phrase.text, phrase.category) for phrase in phrases][:2] == [
        ("A\tman", "people"),
        ("a\u00a0red\n\nshirt", "clothing"),
    ]


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("The woman's dog isn't on the couch.", "The woman's dog/animals|the couch/other"),
        ("a group of people in front of a building", "a group of people/people|a building/scene"),
        ("2 dogs run in the snow", "2 dogs/animals|the snow/scene"),
        ("3 red apples, 2 green pears and 1 knife", "3 red apples/other|2 green pears/other|1 knife/other"),
        ("Is the dog on the couch?", "the dog/animals|the couch/other"),
        ("Where is the red ball next to the chair?", "the red ball/other|the chair/other"),
        ("Can you find the keys next to my backpack?", "the keys/other|my backpack/clothing"),
        ("Show me the bird on top of the lamp post.", "the bird/animals|the lamp post/scene"),
        ("A woman rides a horse. Two kids watch.", "A woman/people|a horse/animals|Two kids/people"),
        ("our puppy 🐾 sleeping on the rug 💤", "our puppy/animals|the rug/other"),
        ("a woman rides a horse 🐎!", "a woman/people|a horse/animals"),
        ("Beatrice hugs her poodle.", "Beatrice/people|her poodle/animals"),
        ("A boy plays the guitar on a bus", "A boy/people|the guitar/instruments|a bus/vehicles"),
        ("Man Bites Dog", "Man/people|Dog/animals"),
        ("dog", "dog/animals"),
    ],
)
def test_what_people_write(text: str, phrases: str) -> None:
    assert spelled(text) == phrases.split("|")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t ",
        ".",
        "?!",
        "\u200b\u200e\u202e",
        "\x00\x07\x1b",
        "Inflation worries economists.",
        "It was raining yesterday.",
        "I do not know why.",
    ],
)
def test_nothing_is_found_where_nothing_is_named(text: str) -> None:
    assert spelled(text) == []


def test_captions_in_a_row_are_as_captions_alone() -> None:
    captions = [CAPTION + ".", "Two women sit on a bench.", "A black cat sleeps under the table.", "A train passes."]
    together = spelled(" ".join(captions))
    assert together == [phrase for caption in captions for phrase in spelled(caption)]


def test_a_pasted_text_up_to_the_limit() -> None:
    sentence = CAPTION + ". "
    times = TOKEN_LIMIT // len(tokenise(sentence))
    assert [phrase.text for phrase in found(sentence * times)] == ["A man", "a red shirt", "a frisbee", "a dog"] * times
    with pytest.raises(DataError, match="2,000 are the most, so split it"):
        FINDER.find(sentence * (times + 1))
    with pytest.raises(DataError, match="20,000 are the most, so split it"):
        FINDER.find("x" * (CHARACTER_LIMIT + 1))
    assert len(found("x" * CHARACTER_LIMIT)) <= 1


# ---- malformed input ----


def test_control_characters_and_marks_of_direction_stand_between_words() -> None:
    dirty = CAPTION.replace(" ", "\x00 \u202e")
    assert [phrase.text.replace("\x00 \u202e", " ") for phrase in found(dirty)] == [
        phrase.split("/")[0] for phrase in FOUND
    ]


def test_right_to_left_text_leaves_the_english_beside_it() -> None:
    text = f"כלב רץ בשלג. {CAPTION}. قطة على السرير"
    assert [phrase.text for phrase in found(text) if phrase.text.isascii()] == [
        phrase.split("/")[0] for phrase in FOUND
    ]


_PIECES = [
    "A man",
    "the",
    "red",
    "dog",
    "in",
    "'s",
    "n't",
    ".",
    ",",
    "?",
    " ",
    "\n",
    "42",
    "$",
    "🐶",
    "é",
    "\u200d",
    "\u202e",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=4)), max_size=40).map("".join))
def test_phrases_of_any_text_are_pieces_of_it(text: str) -> None:
    found(text)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=20).map(" ".join), st.data())
def test_given_spans_of_any_text_keep_their_place(text: str, data: st.DataObject) -> None:
    from phrasechain.phrases.given import locate_phrases

    tokens = tokenise(text)
    if not tokens:
        return
    first = data.draw(st.integers(0, len(tokens) - 1))
    last = data.draw(st.integers(first, len(tokens) - 1))
    [phrase] = FINDER.categorise(text, locate_phrases(text, [(tokens[first].start, tokens[last].end)]))
    assert (phrase.start, phrase.end) == (tokens[first].start, tokens[last].end)
    assert phrase.text == text[phrase.start : phrase.end]
    assert phrase.category in CATEGORIES
