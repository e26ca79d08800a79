"""Word vectors from untrusted files: what is written is read, and what is broken is one line that says where."""

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.errors import DataError
from phrasechain.text import vectors
from phrasechain.text.vectors import read_vectors

TEXT = "the 0.5 -1 2e-1\n. . . 1 2 3\nname@x y 4 5 6\n7 7 8 9\nthe 0 0 0\n"


def write(folder: Path, text: str | bytes, name: str = "v.txt") -> Path:
    data = text.encode() if isinstance(text, str) else text
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
def test_every_word_once_with_its_numbers(tmp_path: Path, name: str) -> None:
    found = read_vectors(write(tmp_path, TEXT, name))
    assert found.words == ("the", ". . .", "name@x y", "7")
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, np.float32([[0.5, -1, 0.2], [1, 2, 3], [4, 5, 6], [7, 8, 9]]))


def test_only_the_wanted_words(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    found = read_vectors(path, {"name@x y", "name@x", "7", "absent"})
    assert found.words == ("name@x y", "7")
    np.testing.assert_array_equal(found.vectors, [[4, 5, 6], [7, 8, 9]])
    assert read_vectors(path, {"absent"}).vectors.shape == (0, 3)


def test_a_header_trailing_spaces_and_blank_lines(tmp_path: Path) -> None:
    found = read_vectors(write(tmp_path, "2 3\r\n</s> 1 2 3 \r\nd\u00e9j\u00e0 4 5 6 \r\n\r\n"))
    assert found.words == ("</s>", "d\u00e9j\u00e0")
    assert found.dimension == 3


def test_the_first_line_may_begin_with_a_number_or_with_two_words(tmp_path: Path) -> None:
    assert read_vectors(write(tmp_path, "2019 1 2\nx 3 4\n")).words == ("2019", "x")
    assert read_vectors(write(tmp_path, "at x 1 2\nx 3 4\n")).words == ("at x", "x")


def test_words_that_are_not_utf8_do_no_harm(tmp_path: Path) -> None:
    assert read_vectors(write(tmp_path, b"a\xff 1 2\nb 3 4\n")).words == ("a\ufffd", "b")


WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp", "Nd")), min_size=1, max_size=5)
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.integers(1, 4).flatmap(lambda d: st.dictionaries(WORDS, st.lists(NUMBERS, min_size=d, max_size=d), min_size=1))
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, table: dict[str, list[float]]) -> None:
    table = {word: row for word, row in table.items() if not is_number(word)} or {"x": [1.0]}
    text = "".join(f"{word} {' '.join(map(repr, row))}\n" for word, row in table.items())
    found = read_vectors(write(tmp_path_factory.getbasetemp(), text))
    assert found.words == tuple(table)
    np.testing.assert_array_equal(found.vectors, np.float32(list(table.values())))


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no word vectors"),
        ("5 0\n", "there are 0"),
        ("word\n", "v.txt:1: not a word and then 1 to"),
        ("a 1 2\nb 1\n", "v.txt:2: not a word and then 2 numbers"),
        ("a 1 2\nb 1 x\n", "v.txt:2: 'x' is not a number"),
        ("a 1 2\nb 1 2 3\n", "v.txt:2: more than 2 numbers"),
        ("a 1 2\n 1 2\n", "v.txt:2: not a word"),
        ("a 1 2\nb nan 2\n", "v.txt:2: a number that is not finite"),
        ("a 1 2\nb 1e39 2\n", "v.txt:2: a number that is not finite, or too large"),
        ("3 2\na 1 2\n", "says 3 words, there are 1"),
        ("1 99999999999\na 1 2\n", "v.txt:2: not a word and then"),
        ("a" * (1 << 20), "v.txt:1: longer than 1,048,576 bytes"),
        ("a" + " 1" * 20_000, "v.txt:1: not a word and then 1 to 16,384 numbers"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_vectors(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_line_too_short_is_seen_among_unwanted_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"v\.txt:2"):
        read_vectors(write(tmp_path, "a 1 2\nb 1\n"), {"a"})


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    line = b"a" * 1000 + b" 1\n"
    with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
        read_vectors(write(tmp_path, line * 4000, "v.gz"))


def test_no_more_numbers_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_VALUES", 5)
    path = write(tmp_path, "a 1 2\nb 1 2\nc 1 2\n")
    with pytest.raises(DataError, match=r"v\.txt:3: more than 5 numbers so far; name the words"):
        read_vectors(path)
    assert read_vectors(path, {"a", "c"}).words == ("a", "c")


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_vectors(tmp_path / "absent.txt")
    path = write(tmp_path, "a 1 2\n" * 1000, "v.gz")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match="broken gzip"):
        read_vectors(path)
    with zipfile.ZipFile(tmp_path / "v.zip", "w") as archive:
        archive.writestr("v.txt", "a 1 2\n")
    with pytest.raises(DataError, match="zip archive; unpack it"):
        read_vectors(tmp_path / "v.zip")


def test_real_vectors(shared_folder: Path) -> None:
    path = shared_folder / "glove" / "glove.100d.txt.gz"
    found = read_vectors(path)
    assert found.vectors.shape == (17_525, 100)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for place, line in zip(range(300), file, strict=False):
            word, *numbers = line.split()
            assert found.words[place] == word
            np.testing.assert_array_equal(found.vectors[place], np.float32(numbers))
    some = read_vectors(path, {"dog", "frisbee", "a"})
    assert set(some.words) == {"dog", "frisbee"}  # "a" is not in this file
    np.testing.assert_array_equal(some.vectors[0], found.vectors[found.words.index(some.words[0])])
