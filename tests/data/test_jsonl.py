"""One's own data: the same examples as the official layout gives, and an error with its line for everything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from phrasechain.core.errors import DataError
from phrasechain.core.schema import Caption, Example, Phrase
from phrasechain.data.dataset import load_examples, open_dataset
from phrasechain.data.jsonl import read_jsonl, token_spans


def record(**changes: Any) -> dict[str, Any]:
    phrase = {"start": 0, "end": 5, "boxes": [[1, 2, 3.5, 4]], "categories": ["people"], "entity": "7"}
    return {
        "image": "a/b.jpg",
        "width": 10,
        "height": 20,
        "captions": [{"text": "A man.", "phrases": [phrase]}],
    } | changes


def with_phrase(**changes: Any) -> dict[str, Any]:
    changed = record()
    changed["captions"][0]["phrases"][0] |= changes
    return changed


def write(folder: Path, *records: Any) -> Path:
    path = folder / "own.jsonl"
    path.write_text("\n".join(json.dumps(value) for value in records), encoding="utf-8")
    return path


def test_a_line_becomes_an_example(tmp_path: Path) -> None:
    phrase = Phrase("A man", 0, 5, 0, 2, "7", ("people",), ((1.0, 2.0, 3.5, 4.0),))
    caption = Caption(0, "A man.", ("A", "man", "."), (phrase,))
    assert list(load_examples(write(tmp_path, record()))) == [Example("b", None, 10, 20, (caption,))]


def test_text_is_kept_and_spans_are_code_points(tmp_path: Path) -> None:
    text = "  𝒜  café-owner’s\u00a0dog (\u200bhungry)"
    start = text.index("owner")
    phrases = [{"start": text.index("dog"), "end": len(text)}, {"start": start, "end": start + 5}]
    (example,) = load_examples(write(tmp_path, record(captions=[{"text": text, "phrases": phrases}])))
    caption = example.captions[0]
    assert caption.text == text
    assert caption.tokens == ("𝒜", "café-owner’s", "dog", "(", "\u200b", "hungry", ")")
    assert [(p.text, p.first_token, p.end_token) for p in caption.phrases] == [
        ("owner", 1, 2),
        ("dog (\u200bhungry)", 2, 7),
    ]


def test_unknown_boxes_are_not_none_at_all(tmp_path: Path) -> None:
    values = [{"boxes": None}, {"boxes": []}, {"boxes": [[0, 0, 1, 1], [2, 2, 3, 3]]}]
    records = [with_phrase(**value) | {"id": str(n)} for n, value in enumerate(values)]
    del records[0]["captions"][0]["phrases"][0]["categories"]
    examples = load_examples(write(tmp_path, *records))
    phrases = [example.captions[0].phrases[0] for example in examples]
    assert [phrase.boxes for phrase in phrases] == [None, (), ((0, 0, 1, 1), (2, 2, 3, 3))]
    assert [phrase.is_boxless for phrase in phrases] == [False, True, False]
    assert [phrase.categories for phrase in phrases] == [(), ("people",), ("people",)]


def test_the_size_is_that_of_the_image_as_displayed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    Image.new("RGB", (30, 20)).save(tmp_path / "a" / "b.jpg", exif=exif)
    values = record()
    del values["width"], values["height"]
    (example,) = load_examples(write(tmp_path, values))
    assert (example.width, example.height, example.path) == (20, 30, tmp_path / "a" / "b.jpg")


def test_splits_come_from_the_lines(tmp_path: Path) -> None:
    records = [record(id=str(n), split="test") if n % 2 else record(id=str(n)) for n in range(40)]
    dataset = open_dataset(write(tmp_path, *records))
    assert [example.image for example in dataset.examples("test")] == [str(n) for n in range(1, 40, 2)]
    assert dataset.splits["train"] == tuple(str(n) for n in range(0, 40, 2))
    assert sorted(dataset.splits["fit"] + dataset.splits["dev"]) == sorted(dataset.splits["train"])
    assert len(dataset.examples()) == len(dataset.examples("all")) == 40


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "not a JSON object"),
        (record(captions=None), '"captions" is not a list'),
        (record(captions=["A man"]), "caption 0 is not a JSON object"),
        (record(caption=[]), "no key named 'caption'; there are: image, .*did you mean 'captions'"),
        (record(image=""), '"image" is not a text'),
        (record(image=5), '"image" is not a text'),
        (record(image="/"), "names no file"),
        (record(width=0), '"width" is not a whole number of 1 or more'),
        (record(width=True), '"width" is not a whole number'),
        (record(height=None), '"height" is not a whole number'),
        (record(id="\ud800"), '"id" is not a printable text'),
        (record(id="a" * 513), "of 1 to 512 characters"),
        (record(split=1), '"split" is not a printable text'),
        (record(split="all"), "\"split\" is 'all', a reserved name"),
        ({"image": "none.jpg", "captions": []}, "the image .*none.jpg is missing"),
        ({"image": "no\0ne.jpg", "captions": []}, '"id", by default .* is not a printable text'),
        ({"image": "no\0ne.jpg", "id": "a", "captions": []}, "is missing"),
        ({"image": "n" * 5000, "id": "a", "captions": []}, "is missing"),
        (with_phrase(start=-1), '"start" is not a whole number'),
        (with_phrase(start=1.0), '"start" is not a whole number'),
        (with_phrase(end=7), "characters 0 to 7 are not within a caption of 6 characters"),
        (with_phrase(start=5, end=5), "not within"),
        (with_phrase(start=1, end=2), "contain no word"),
        (with_phrase(boxes=[[1, 2, 3]]), "caption 0, phrase 0: a box is \\[x0, y0, x1, y1\\]"),
        (with_phrase(boxes=[1, 2, 3, 4]), "a box is"),
        (with_phrase(boxes=[[1, 2, 3, "4"]]), "a box is"),
        (with_phrase(boxes=[[1, 2, 1, 4]]), "is empty"),
        (with_phrase(boxes=[[0, 0, 1e9, 4]]), "within"),
        (with_phrase(boxes=[[0, 0, 10**400, 4]]), "within"),
        (with_phrase(categories="people"), '"categories" is not a list'),
        (with_phrase(categories=[1]), "a category is not a printable text"),
        (with_phrase(categories=["\x1b[31m"]), "a category is not a printable text"),
        (with_phrase(entity=[1]), '"entity" is not a printable text'),
        (with_phrase(box=[1, 2, 3, 4]), "no key named 'box'"),
        (record(captions=[{"text": "ab", "phrases": [{"start": 0, "end": 2}] * 2}]), "are a phrase already"),
        (record(captions=[{"text": "ab", "phrases": [{}] * 1001}]), "1,001 phrases, more than 1,000"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, value: Any, message: str) -> None:
    path = write(tmp_path, record(id="first"), value)
    with pytest.raises(DataError, match=message) as error:
        load_examples(path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert "\n" not in str(error.value)
    assert [example.image for example in load_examples(path, on_error="skip")] == ["first"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "broken JSON: .* at column 2"),
        (b"\xff", "byte 1 is not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 10_000, "too many digits"),
        (b'{"width": NaN}', "NaN is not a number"),
        (b'{"width": -Infinity}', "-Infinity is not a number"),
    ],
)
def test_broken_json_is_named_with_its_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(record()).encode() + b"\r\n\r\n" + line)
    with pytest.raises(DataError, match=message) as error:
        load_examples(path)
    assert str(error.value).startswith(f"{path}:3: ")


def test_a_category_given_twice_counts_once(tmp_path: Path) -> None:
    (example,) = load_examples(write(tmp_path, with_phrase(categories=["people", "other", "people"])))
    assert example.captions[0].phrases[0].categories == ("people", "other")


def test_two_images_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a second image with the id 'b'"):
        load_examples(write(tmp_path, record(), record(image="c/b.png")))


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phrasechain.core.json_lines.LINE_LIMIT", 1000)
    path = tmp_path / "own.jsonl"
    path.write_bytes(b" " * 1001)
    with pytest.raises(DataError, match="longer than 1,000 bytes"):
        load_examples(path)


@given(st.text())
def test_tokens_leave_out_white_space_alone(text: str) -> None:
    spans = token_spans(text)
    assert "".join(text[start:end] for start, end in spans) == "".join(text.split())
    assert spans == sorted(spans)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*record(), "text", "phrases"]), inner),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def fuzz_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200)
    | values.map(lambda value: json.dumps(value).encode())
    | st.tuples(st.sampled_from(["start", "end", "boxes", "categories", "entity"]), values).map(
        lambda change: json.dumps(with_phrase(**{change[0]: change[1]})).encode()
    )
    | st.integers(0, 200).map(lambda cut: json.dumps(record()).encode()[:cut])
)
def test_any_line_is_read_or_named(fuzz_folder: Path, line: bytes) -> None:
    path = fuzz_folder / "own.jsonl"
    path.write_bytes(line)
    examples, _, problems = read_jsonl(path)
    assert all("\n" not in problem.message for problem in problems)
    for caption in (caption for example in examples for caption in example.captions):
        for phrase in caption.phrases:
            assert caption.text[phrase.start : phrase.end] == phrase.text
            assert phrase.first_token < phrase.end_token <= len(caption.tokens)
