"""The file of marked-up captions: what is read, and what is refused with its line."""

import gzip
from pathlib import Path

import pytest

from phrasechain.core.errors import DataError
from phrasechain.data import sentences
from phrasechain.data.sentences import read_sentences

GOOD = b"1000\t0\t[/EN#1/people A man] sits .\n"


def test_plain_and_gzipped_files_are_read(tmp_path: Path) -> None:
    content = GOOD + b"\n1000\t1\tNobody .\r\n" + "7\t2\t[/EN#1/other/scene Schn\u00e4ppchen]".encode()
    (tmp_path / "a.tsv").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    for name in ("a.tsv", "a.gz"):
        found = read_sentences(tmp_path / name)
        assert [(one.image, one.caption.index, one.caption.text) for one in found] == [
            ("1000", 0, "A man sits ."),
            ("1000", 1, "Nobody ."),
            ("7", 2, "Schn\u00e4ppchen"),
        ]
        assert found[2].caption.phrases[0].categories == ("other", "scene")
        assert read_sentences(tmp_path / name, 1) == found[:1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"1000\tA man .", "not image id, caption index and caption, separated by tabs"),
        (b"1000\tx\tA man .", "not image id"),
        (b"\t0\tA man .", "not image id"),
        (b"1000\t0\t", "the caption is empty; remove the line"),
        (b"1000\t0\t[/EN#1/people A man", "a '\\[' is never closed"),
        (b"1000\t0\t[/EN#1/robots A man]", "'robots' is not a category; there are: people, clothing"),
        (b"1000\t0\tA \xff man .", "byte 10 is not UTF-8; save the file as UTF-8"),
        (b"1000\t0\t" + b"a " * 40_000, "longer than 65,536 bytes, so it is not a caption"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(GOOD + line + b"\n")
    with pytest.raises(DataError, match=rf"a\.tsv:2: .*{message}") as caught:
        read_sentences(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gz"
    for content, message in (
        (b"", "contains no captions"),
        (gzip.compress(GOOD * 1000)[:-20], "broken gzip, download the file again"),
        (b"\x1f\x8b" + b"nonsense" * 10, "cannot be read|broken gzip"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_sentences(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_sentences(tmp_path / "absent")
    monkeypatch.setattr(sentences, "SIZE_LIMIT", 1000)
    path.write_bytes(gzip.compress(GOOD * 1000))
    with pytest.raises(DataError, match=r"a\.gz:29: more than 1,000 bytes so far; split the file"):
        read_sentences(path)
