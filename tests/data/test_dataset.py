"""Splits, problems, the cached index and the counts of the real data."""

import copy
import json
import os
import pickle
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from official_layout import write_image
from phrasechain.core.errors import DataError
from phrasechain.data import dataset as dataset_module
from phrasechain.data.dataset import Dataset, is_dev, load_examples, open_dataset, unexpected_count
from phrasechain.data.flickr30k import AUTHORS


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four images: two of train, one of val, one in no split."""
    root = tmp_path / "data"
    for image in ("10", "11", "12", "13"):
        sentences = f"[/EN#{image}/people A man] sees [/EN#9/other a dog] .\n"
        write_image(root, image, sentences, [([image], [(1, 1, 5, 5)], {})])
    (root / "train.txt").write_text("12\n10\n")
    (root / "val.txt").write_bytes(b"\xef\xbb\xbf11\r\n\r\n")
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the images that are parsed from here on."""
    parsed: list[str] = []
    original = dataset_module.read_image

    def read_image(layout, image, compatibility):  # type: ignore[no-untyped-def]
        parsed.append(image)
        return original(layout, image, compatibility)

    monkeypatch.setattr(dataset_module, "read_image", read_image)
    return parsed


def ids(examples: object) -> list[str]:
    return [example.image for example in examples]  # type: ignore[attr-defined]


def test_a_split_has_the_order_of_its_file(data: Path, cache: Path) -> None:
    assert ids(load_examples(data, "train", cache=cache)) == ["12", "10"]
    assert ids(load_examples(str(data), "val", cache=cache)) == ["11"]
    assert (
        ids(load_examples(data, cache=cache))
        == ids(load_examples(data, "all", cache=cache))
        == ["10", "11", "12", "13"]
    )


def test_hidden_files_are_no_data(data: Path, cache: Path) -> None:
    for name in ("Sentences/._10.txt", "Annotations/._10.xml", "images/._10.jpg", "Sentences/.DS_Store"):
        (data / name).write_bytes(b"\0\5\x16\7")
    dataset = open_dataset(data, cache=cache)
    assert dataset.images == ("10", "11", "12", "13")
    assert dataset.problems == ()


def test_a_missing_split_is_answered_with_those_that_exist(data: Path, cache: Path) -> None:
    with pytest.raises(DataError) as error:
        load_examples(data, "vall", cache=cache)
    message = "no split named 'vall'; there are: train, val, fit, dev, all (did you mean 'val'?)"
    assert str(error.value) == f"{data}: {message}"


def test_the_hash_never_changes() -> None:
    known = [image for image in map(str, range(1000, 1030)) if is_dev(image)]
    assert known == ["1000", "1002", "1006", "1009", "1013", "1019", "1020", "1024"]
    assert sum(is_dev(str(image)) for image in range(60_000)) == 10_059


def test_fit_and_dev_files_take_the_place_of_the_hash(data: Path, cache: Path) -> None:
    (data / "dev.txt").write_text("13\n")
    assert open_dataset(data, cache=cache).splits == {"train": ("12", "10"), "val": ("11",), "dev": ("13",)}


def test_a_listed_image_without_sentences_stops_or_is_skipped(data: Path, cache: Path) -> None:
    (data / "val.txt").write_text("11\n../11\n99\n11\n")
    dataset = open_dataset(data, cache=cache)
    with pytest.raises(
        DataError, match=r"val.txt:2: ../11 is listed but .* \(and 2 more: phrasechain check lists them\)"
    ):
        dataset.examples("val")
    assert ids(dataset.examples("val", on_error="skip")) == ["11"]
    assert ids(dataset.examples("train")) == ["12", "10"]
    assert [problem.image for problem in dataset.problems_of(["11"])] == ["11"]


def test_a_broken_image_stops_its_own_splits_alone(data: Path, cache: Path) -> None:
    (data / "Annotations" / "11.xml").write_text("<annotation>")
    (data / "Sentences" / "10.txt").unlink()
    for _ in ("parsed", "cached"):
        dataset = open_dataset(data, cache=cache)
        with pytest.raises(DataError, match=r"11\.xml:1: broken XML"):
            dataset.examples("val")
        with pytest.raises(DataError, match=r"train\.txt:2: 10 is listed"):
            dataset.examples("train")
        assert ids(dataset.examples(on_error="skip")) == ["12", "13"]
        assert any("10.xml: has no Sentences/10.txt" in problem.message for problem in dataset.problems)


def test_the_index_gives_what_parsing_gave(data: Path, cache: Path, parses: list[str]) -> None:
    first = load_examples(data, cache=cache)
    again = load_examples(data, cache=cache)
    assert len(parses) == 4
    assert list(again) == list(first) == list(load_examples(data, cache=False))
    phrase, unknown = again[0].captions[0].phrases
    assert (phrase.boxes, phrase.entity, phrase.categories) == (((0, 0, 5, 5),), "10", ("people",))
    assert unknown.boxes is None
    assert hash(again[0]) == hash(first[0])
    assert again[-1] is again[3]
    assert again[1:3] == [again[1], again[2]]
    assert list(pickle.loads(pickle.dumps(again))) == list(copy.deepcopy(again)) == list(again)


def test_the_index_notices_every_change(data: Path, cache: Path, parses: list[str]) -> None:
    times = count(1_700_000_000)

    def changed() -> bool:
        parses.clear()
        load_examples(data, on_error="skip", cache=cache)
        return bool(parses)

    assert changed()
    assert not changed()
    sentences = data / "Sentences" / "10.txt"
    for text in ("A cat .", "A dog ."):  # the second has the size of the first
        sentences.write_text(text)
        os.utime(sentences, (next(times),) * 2)
        assert changed()
        assert load_examples(data, cache=cache)[0].captions[0].text == text
    os.utime(data / "Annotations" / "10.xml", (next(times),) * 2)
    assert changed()
    (data / "Sentences" / "13.txt").rename(data / "Sentences" / "14.txt")
    assert changed()
    assert not changed()


def test_other_switches_have_another_index(data: Path, cache: Path) -> None:
    corrected = load_examples(data, cache=cache)
    authors = load_examples(data, cache=cache, compatibility=AUTHORS)
    assert corrected[0].captions[0].phrases[0].boxes == ((0, 0, 5, 5),)
    assert authors[0].captions[0].phrases[0].boxes == ((1, 1, 6, 6),)


def test_a_damaged_index_is_made_anew(data: Path, cache: Path, parses: list[str]) -> None:
    whole = list(load_examples(data, cache=cache))
    (path,) = (cache / "index").iterdir()
    good = path.read_bytes()
    for damage in (b"", good[:-1], good[: len(good) // 2], good.replace(b"A man", b"A fan"), b"\n\n", os.urandom(100)):
        path.write_bytes(damage)
        parses.clear()
        assert list(load_examples(data, cache=cache)) == whole
        assert len(parses) == 4
        assert path.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_done_without(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert len(load_examples(data, cache=tmp_path / "file")) == 4


@pytest.mark.skipif(os.name == "nt", reason="there is no time of the last change")
def test_an_edit_is_seen_even_where_size_and_time_are_kept(data: Path, cache: Path) -> None:
    load_examples(data, cache=cache)
    path = data / "Sentences" / "10.txt"
    before = path.stat()
    path.write_bytes(path.read_bytes().upper().replace(b"PEOPLE", b"people"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert list(load_examples(data, cache=cache)) == list(load_examples(data, cache=False))


def test_the_data_stays_untouched(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASECHAIN_CACHE", str(cache))
    before = sorted(data.rglob("*"))
    load_examples(data)
    assert sorted(data.rglob("*")) == before
    assert len(list((cache / "index").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent", "no such file or folder"), ("folder", "not a dataset; give"), ("file.txt", "not a dataset; give")],
)
def test_what_is_no_dataset_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(DataError, match=f"{name}: {message}"):
        open_dataset(tmp_path / name)


def test_unexpected_counts_of_the_benchmark() -> None:
    official = Dataset(Path("x"), (), {}, (), lambda ids: [], is_official=True)
    assert unexpected_count(official, "test", 14_481) is None
    assert unexpected_count(official, "train", 1) is None
    assert unexpected_count(official, "val", 10_576) is None
    assert unexpected_count(official, "val", 13_800) == (
        "val has 13,800 phrases with a box where Flickr30k Entities has 14,433"
    )
    assert unexpected_count(replace(official, is_official=False), "val", 13_800) is None


def test_the_real_data_has_its_counts_and_true_spans(shared_folder: Path) -> None:
    dataset = open_dataset(shared_folder / "flickr8k-entities", cache=False)
    assert dataset.problems == ()
    counts = {}
    for split in ("train", "val"):
        captions = [caption for example in dataset.examples(split) for caption in example.captions]
        boxed = [[bool(phrase.boxes) for phrase in caption.phrases] for caption in captions]
        first = [flags for caption, flags in zip(captions, boxed, strict=True) if caption.index == 0]
        counts[split] = (sum(map(sum, boxed)), sum(map(sum, first)))
        for caption in captions:
            assert caption.text == " ".join(caption.tokens)
            for phrase in caption.phrases:
                assert caption.text[phrase.start : phrase.end] == phrase.text
                assert " ".join(caption.tokens[phrase.first_token : phrase.end_token]) == phrase.text
    assert counts == {"train": (62_705, 19_875), "val": (10_576, 3_397)}
    assert {name: len(images) for name, images in dataset.splits.items()} == {
        "train": 5_998,
        "val": 1_000,
        "fit": 4_993,
        "dev": 1_005,
    }


@pytest.mark.parametrize(
    ("splits", "scored"),
    [
        (("train", "val", "test"), "test"),
        (("train", "val"), "val"),
        (("val",), "val"),
        (("train", "dev"), "dev"),  # their own, not ours out of train
        (("train", "mine"), "mine"),
        (("train",), "test"),  # which is then refused, with the splits that there are
        (("train", "val", "mine"), "test"),
    ],
)
def test_the_split_that_is_scored_where_none_is_named(tmp_path: Path, splits: tuple[str, ...], scored: str) -> None:
    caption = {"text": "a dog", "phrases": [{"start": 0, "end": 5, "boxes": [[0, 0, 9, 9]]}]}
    lines = [
        {"image": f"{split}.jpg", "width": 9, "height": 9, "split": split, "captions": [caption]} for split in splits
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert open_dataset(file).split_to_score() == scored
