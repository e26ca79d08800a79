"""Annotations and the files, against hand-made files; broken ones are named with their line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_layout import annotation_xml, write_image
from phrasechain.core.errors import DataError
from phrasechain.data.flickr30k import (
    AUTHORS,
    CORRECTED,
    Compatibility,
    DatasetFiles,
    list_dataset,
    read_annotation,
    read_image,
)
from phrasechain.data.markup import Entity

REAL_LOOKING = annotation_xml(
    [
        (["12"], [(1, 1, 10, 20)], {}),
        (["12", "13"], [(5, 6, 7, 8)], {}),
        (["14"], [], {"scene": 1, "nobndbox": 1}),
        (["15"], [], {"scene": 0, "nobndbox": 1}),
        (["14"], [(2, 2, 3, 3)], {"scene": 0, "nobndbox": 0}),
    ]
)
SENTENCES = "[/EN#12/people A man] and [/EN#13/people a boy] .\n\n[/EN#99/other Dogs] at [/EN#14/scene a park] .\n"


def write_xml(folder: Path, text: str | bytes) -> Path:
    path = folder / "1.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_name_gets_every_box_of_its_objects(tmp_path: Path) -> None:
    annotation = read_annotation(write_xml(tmp_path, REAL_LOOKING))
    assert (annotation.width, annotation.height) == (100, 80)
    assert annotation.entities == {
        "12": Entity(((0, 0, 10, 20), (4, 5, 7, 8))),
        "13": Entity(((4, 5, 7, 8),)),
        "14": Entity(((1, 1, 3, 3),), is_scene=True, is_boxless=True),
        "15": Entity(is_boxless=True),
    }


@pytest.mark.parametrize(
    ("compatibility", "boxes"),
    [
        (Compatibility(first_name=True), {"12": ((0, 0, 10, 20), (4, 5, 7, 8))}),
        (Compatibility(plus_one=True), {"12": ((1, 1, 11, 21), (5, 6, 8, 9)), "13": ((5, 6, 8, 9),)}),
        (AUTHORS, {"12": ((1, 1, 11, 21), (5, 6, 8, 9))}),
    ],
)
def test_the_authors_reading(tmp_path: Path, compatibility: Compatibility, boxes: dict[str, object]) -> None:
    entities = read_annotation(write_xml(tmp_path, REAL_LOOKING), compatibility).entities
    assert {name: entities[name].boxes for name in ("12", "13") if name in entities} == boxes


def test_windows_line_ends_a_mark_of_order_and_floats(tmp_path: Path) -> None:
    text = REAL_LOOKING.replace("\n", "\r\n").replace("<xmin>1<", "<xmin> 1.5 <")
    annotation = read_annotation(write_xml(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert annotation.entities["12"].boxes[0] == (0.5, 0, 10, 20)


def test_unknown_elements_are_passed_over(tmp_path: Path) -> None:
    extra = "<object><part><name>7</name><bndbox><xmin>9</xmin></bndbox></part><name>1</name></object>"
    annotation = read_annotation(
        write_xml(tmp_path, annotation_xml([]).replace("</annotation>", extra + "</annotation>"))
    )
    assert annotation.entities == {"1": Entity()}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "broken XML: no element found"),
        ("<annotation>\n<size>", 2, "broken XML"),
        ("<annotation>\n</size>", 2, "mismatched tag"),
        ("<html>\n</html>", 1, "root is <html>"),
        ("<annotation>\n</annotation>", 2, "no <size>"),
        ("\n<!DOCTYPE a [<!ENTITY b 'c'>]>\n<annotation/>", 2, "document type"),
        (annotation_xml([([], [(1, 1, 2, 2)], {})]), 15, "without <name>"),
        (annotation_xml([(["1"], [(5, 1, 4, 2)], {})]), 15, "ends before it starts: 5, 1, 4, 2"),
        (annotation_xml([]).replace("<width>100", "<width>wide"), 4, "<width> is 'wide'"),
        (annotation_xml([]).replace("<width>100", "<width>nan"), 4, "<width> is 'nan'"),
        (annotation_xml([]).replace("<width>100", "<width>0"), 8, "no <size>"),
        (annotation_xml([]).replace("<width>100", "<width>1e300"), 4, "not a number within"),
        (annotation_xml([(["1"], [(1, 1, 4, 2)], {})]).replace("<ymax>2</ymax>", ""), 15, "a box without <ymax>"),
        ("<annotation>" + "<a>" * 50, 1, "nested"),
        ("<annotation>\n\xe9", 2, "broken XML"),
    ],
)
def test_broken_xml_is_named_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = write_xml(tmp_path, text.encode("latin-1"))
    with pytest.raises(DataError) as error:
        read_annotation(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_entities_do_not_expand_and_nothing_is_fetched(tmp_path: Path) -> None:
    laughs = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    for reference in ("&b;", "&f;"):
        with pytest.raises(DataError, match="document type"):
            read_annotation(write_xml(tmp_path, f"{laughs}<annotation>{reference}</annotation>"))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = write_xml(tmp_path, "<annotation>" + " " * (1 << 18))
    with pytest.raises(DataError, match="larger than 262,144 bytes"):
        read_annotation(path)


def test_an_image_with_its_captions(tmp_path: Path) -> None:
    write_image(tmp_path, "7", b"\xef\xbb\xbf" + SENTENCES.replace("\n", "\r\n").encode(), photo=(100, 80))
    (tmp_path / "Annotations/7.xml").write_text(REAL_LOOKING)
    example, problems = read_image(list_dataset(tmp_path), "7", CORRECTED)
    assert problems == []
    assert example is not None
    assert (example.image, example.width, example.height) == ("7", 100, 80)
    assert example.path == tmp_path / "images" / "7.jpg"
    assert [(caption.index, caption.text) for caption in example.captions] == [
        (0, "A man and a boy ."),
        (2, "Dogs at a park ."),
    ]
    assert [phrase.boxes for caption in example.captions for phrase in caption.phrases] == [
        ((0, 0, 10, 20), (4, 5, 7, 8)),
        ((4, 5, 7, 8),),
        None,
        ((1, 1, 3, 3),),
    ]


def test_a_broken_caption_is_left_out_and_named(tmp_path: Path) -> None:
    write_image(tmp_path, "7", b"A man .\n[/EN#1/people A\n\xff\xfe\nA dog .")
    example, problems = read_image(list_dataset(tmp_path), "7", CORRECTED)
    assert example is not None
    assert [caption.index for caption in example.captions] == [0, 3]
    path = tmp_path / "Sentences" / "7.txt"
    assert [problem.message for problem in problems] == [
        f"{path}:2: a '[' is never closed; the line may be truncated",
        f"{path}:3: byte 1 is not UTF-8; save the file as UTF-8",
    ]


@pytest.mark.parametrize("sentences", ["", " \r\n\n", "\ufeff"])
def test_an_image_without_captions_is_left_out_and_named(tmp_path: Path, sentences: str) -> None:
    write_image(tmp_path, "7", sentences)
    example, problems = read_image(list_dataset(tmp_path), "7", CORRECTED)
    assert example is None
    assert "contains no caption" in problems[0].message


def test_an_image_without_annotation_is_left_out_and_named(tmp_path: Path) -> None:
    write_image(tmp_path, "7", SENTENCES)
    (tmp_path / "Annotations/7.xml").unlink()
    example, problems = read_image(list_dataset(tmp_path), "7", CORRECTED)
    assert example is None
    assert [problem.image for problem in problems] == ["7"]
    assert "7.xml: missing" in problems[0].message


@pytest.fixture(scope="module")
def one_image(tmp_path_factory: pytest.TempPathFactory) -> DatasetFiles:
    root = tmp_path_factory.mktemp("fuzz")
    write_image(root, "7", SENTENCES)
    return list_dataset(root)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file that was cut, or in which some bytes were overwritten, doubled or lost."""
    data = bytearray(whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 40)))
        data[start:end] = draw(
            st.binary(max_size=8) | st.sampled_from([b"<", b"</object>", b"[/EN#", b"]", b"&a;", b"9" * 400])
        )
    return bytes(data)


def assert_read_or_named(files: DatasetFiles) -> None:
    example, problems = read_image(files, "7", AUTHORS)
    assert example is not None or problems
    assert all("\n" not in problem.message for problem in problems)
    for caption in example.captions if example else ():
        for phrase in caption.phrases:
            assert caption.text[phrase.start : phrase.end] == phrase.text


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300) | damaged(REAL_LOOKING.encode()))
def test_any_annotation_is_read_or_named(one_image: DatasetFiles, data: bytes) -> None:
    Path(one_image.annotations["7"].path).write_bytes(data)
    assert_read_or_named(one_image)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300) | damaged(SENTENCES.encode()))
def test_any_sentences_are_read_or_named(one_image: DatasetFiles, data: bytes) -> None:
    Path(one_image.annotations["7"].path).write_text(REAL_LOOKING)
    Path(one_image.sentences["7"].path).write_bytes(data)
    assert_read_or_named(one_image)
