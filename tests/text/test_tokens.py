"""Tokens: those of Flickr30k's captions, of text as people write it, and of anything at all."""

import gzip
import time
import unicodedata
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.data.markup import parse_caption
from phrasechain.text.tokens import CHARACTER_LIMIT, TOKEN_LIMIT, plain, tokenise, written


def words(text: str) -> list[str]:
    return [token.text for token in tokenise(text)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A man throws a ball.", "A|man|throws|a|ball|."),
        ("The man's dog", "The|man|'s|dog"),
        ("The man’s dog", "The|man|’s|dog"),
        ("two kids' toys", "two|kids|'|toys"),
        ("I can't, won't and don't", "I|ca|n't|,|wo|n't|and|do|n't"),
        ("ISN'T IT? IT'S!", "IS|N'T|IT|?|IT|'S|!"),
        ("they've I'm you're we'll he'd", "they|'ve|I|'m|you|'re|we|'ll|he|'d"),
        ("a bird's-eye-view", "a|bird|'s-eye-view"),
        ("rock 'n' roll at 5 o'clock", "rock|'n'|roll|at|5|o'clock"),
        ("a red-haired girl in a t-shirt - alone", "a|red-haired|girl|in|a|t-shirt|-|alone"),
        ('a sign that says "Stop."', 'a|sign|that|says|"|Stop|.|"'),
        ("a sign that says ‘Stop’", "a|sign|that|says|‘|Stop|’"),
        ("(a dog) [a cat]", "(|a|dog|)|[|a|cat|]"),
        ("Texas A&M & friends", "Texas|A&M|&|friends"),
        ("$37,000 at 4:06pm, 3.5% of #12", "$|37,000|at|4:06pm|,|3.5|%|of|#|12"),
        ("costs $.99. Cheap", "costs|$|.99|.|Cheap"),
        ("1/2 man/woman", "1/2|man|/|woman"),
        ("Mr. Smith of the U.S. Army on Main St.", "Mr.|Smith|of|the|U.S.|Army|on|Main|St|."),
        ("a ball.The dog", "a|ball|.|The|dog"),
        ("see rees.com or https://a.org/b?c=d.", "see|rees.com|or|https://a.org/b?c=d|."),
        ("wait... what?! no—yes", "wait|...|what|?|!|no|—|yes"),
        ("@home a_b", "@|home|a_b"),
    ],
)
def test_text_as_people_write_it(text: str, tokens: str) -> None:
    assert words(text) == tokens.split("|")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a dog🐕🐕 runs", ["a", "dog", "🐕🐕", "runs"]),
        ("👩‍👩‍👧 and 👍🏽", ["👩‍👩‍👧", "and", "👍🏽"]),
        ("a\x00man\x1b[0m\tsits\r\n", ["a", "man", "[", "0m", "sits"]),
        ("cafe\u0301 na\u00efve", ["cafe\u0301", "na\u00efve"]),
        ("a\u200bman\ufeff \u200fsits\u200e.", ["a", "man", "sits", "."]),
        ("\u2067كلب يجري\u2069.", ["كلب", "يجري", "."]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("一个男人，一只狗。", ["一个男人", "，", "一只狗", "。"]),
        ("no\u00a0break\u3000space", ["no", "break", "space"]),
        ("soft\u00adhyphen\u200d", ["soft\u00adhyphen\u200d"]),
        ("\u0301 \u200d", []),
        ("lone \ud800 surrogate", ["lone", "\ud800", "surrogate"]),
        ("𝐓𝐡𝐞 𝑚𝑎𝑛'𝑠 Ⓓⓞⓖ ①②", ["𝐓𝐡𝐞", "𝑚𝑎𝑛", "'𝑠", "Ⓓⓞⓖ", "①②"]),
        ("", []),
        (" \n\u2003 ", []),
    ],
)
def test_any_unicode(text: str, tokens: list[str]) -> None:
    assert words(text) == tokens


@given(st.text(st.characters(), max_size=80))
@example("'n't 's.com...''``\x02\x01a\x02")
def test_tokens_cover_all_that_is_not_space(text: str) -> None:
    tokens = tokenise(text)
    assert all(text[token.start : token.end] == token.text != "" for token in tokens)
    assert all(one.end <= other.start for one, other in pairwise(tokens))
    assert not any(sign.isspace() for token in tokens for sign in token.text)
    covered = {place for token in tokens for place in range(token.start, token.end)}
    left = {text[place] for place in range(len(text)) if place not in covered}
    assert all(unicodedata.category(sign)[0] in "ZCM" or sign.isspace() for sign in left - set("🏻🏼🏽🏾🏿"))


FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000}


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40))
@example("The man's t-shirt isn't $37,000!! (see www.a.com) 1/2 o'clock")
def test_full_width_text_is_split_like_plain_text(text: str) -> None:
    wide = text.translate(FULL_WIDTH)
    assert [(token.start, token.end) for token in tokenise(wide)] == [(t.start, t.end) for t in tokenise(text)]
    assert [plain(token.text) for token in tokenise(wide)] == [token.text for token in tokenise(text)]


@pytest.mark.parametrize("piece", ["a", "a.", "a-", "a'", "n't", "'", "1,", "www.", "a.a.co", "\u0301", "🐕", "a "])
def test_the_worst_text_takes_no_longer_than_others(piece: str) -> None:
    text = (piece * CHARACTER_LIMIT)[:CHARACTER_LIMIT]
    begun = time.process_time()
    with suppress(DataError):  # of too many tokens
        tokenise(text)
    assert time.process_time() - begun < 1


def test_what_is_no_caption_is_refused() -> None:
    with pytest.raises(DataError, match=r"^the text has 20,001 characters; 20,000 are the most, so split it$"):
        tokenise("a" * (CHARACTER_LIMIT + 1))
    with pytest.raises(DataError, match=r"^the text has 10,000 words and signs; 2,000 are the most, so split it$"):
        tokenise("a " * 10_000)
    assert len(tokenise("a " * TOKEN_LIMIT)) == TOKEN_LIMIT
    with pytest.raises(DataError, match="a caption is a text, not bytes"):
        tokenise(b"a dog")  # type: ignore[arg-type]


def test_plain() -> None:
    assert [plain(token) for token in ("dog", "’s", "“", "ＤＯＧ", "e\u0301", "a\u00adb")] == [
        *("dog", "'s", '"', "DOG", "é", "ab"),
    ]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("A man throws a ball .", "A man throws a ball."),
        ("Do n't , he says ; it 's red !", "Don't, he says; it's red!"),
        ('a sign says " Stop . "', 'a sign says "Stop."'),
        ('" Stop " and " Go "', '"Stop" and "Go"'),
        ("a ' Free Hugs ' sign", "a 'Free Hugs' sign"),
        ("the kids ' toys", "the kids' toys"),
        ("one ( red ) of 50 % or $ 12 , # 7", "one (red) of 50% or $12, #7"),
        ("rock - climbing & Co", "rock - climbing & Co"),
        ("a bird 's-eye-view ...", "a bird's-eye-view..."),
        ("", ""),
    ],
)
def test_written(tokens: str, text: str) -> None:
    parts = tokens.split()
    found, spans = written(parts)
    assert found == text
    assert [found[start:end] for start, end in spans] == parts
    assert words(found) == parts


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=5), max_size=10))
def test_written_tokens_are_where_it_says(tokens: list[str]) -> None:
    text, spans = written(tokens)
    assert [text[start:end] for start, end in spans] == tokens
    assert text.replace(" ", "") == "".join(tokens)


def test_the_captions_of_flickr30k(shared_folder: Path) -> None:
    """Stored and written, all but a few typing errors have the tokens of the file."""
    with gzip.open(shared_folder / "flickr30k-sentences.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
        captions = [parse_caption(line.split("\t")[2].rstrip("\n")).tokens for line in islice(file, 5_000)]
    for texts in ([" ".join(tokens) for tokens in captions], [written(tokens)[0] for tokens in captions]):
        same = sum(words(text) == list(tokens) for text, tokens in zip(texts, captions, strict=True))
        assert same >= 0.999 * len(captions)
