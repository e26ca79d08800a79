"""The grounder: the same answers as the evaluator's, alone or among many, and one line for whatever cannot be done."""

import copy
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image

import phrasechain
import phrasechain.cli.grounding
from file_opens import counted_opens
from ground_command import run_command
from official_layout import write_image
from phrasechain import cli
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.core.images import ORIENTATION
from phrasechain.data.dataset import load_examples
from phrasechain.evaluation.predict import InferenceOptions, decode_examples
from phrasechain.grounding.grounder import Grounder
from phrasechain.grounding.result import PhotoGrounding
from phrasechain.model.decode import DECODERS
from phrasechain.model.model import GroundingModel
from phrasechain.regions.extract import extract
from phrasechain.regions.runtime import torch_runtime
from phrasechain.store.reader import FeatureStore
from phrasechain.text.tokens import TOKEN_LIMIT
from tiny_grounder import CAPTION, MODEL, PHRASES, assert_same, tiny_grounder, write_grounder
from tiny_regions import write_photo


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> Grounder:
    return tiny_grounder(tmp_path_factory.mktemp("grounder") / "model")


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo(tmp_path_factory.mktemp("photos") / "photo.png", seed=7, size=(90, 60))


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PHRASECHAIN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_the_package_exports_it() -> None:
    assert phrasechain.Grounder is Grounder
    assert "Grounder" in dir(phrasechain)


def test_only_what_is_needed_is_loaded(grounder: Grounder, photo: Path, tmp_path: Path) -> None:
    """The compiler alone would double the time from the start of a process to its first answer."""
    grounder.save_pretrained(tmp_path / "model")
    code = f"""if True:
        import sys
        from phrasechain import Grounder
        Grounder.from_pretrained({str(tmp_path / "model")!r}).ground({str(photo)!r}, {CAPTION!r})
        heavy = {{"torch._dynamo", "sympy", "matplotlib", "huggingface_hub", "accelerate", "typer", "rich"}}
        for name in ("store.writer", "store.reader", "regions.detectors", "regions.extract", "draw", "evaluation"):
            heavy.add(f"phrasechain.{{name}}")
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("decode", DECODERS)
def test_boxes_are_those_of_the_evaluator(grounder: Grounder, tmp_path: Path, decode: str) -> None:
    """By a store of the photo's regions and the annotation's phrases, tokens and spans."""
    sentences = (
        "[/EN#1/people A man] with [/EN#2/other a red ball] sees [/EN#3/animals the dog] .\n",
        "[/EN#3/animals the dog] 's [/EN#2/other ball] .\n",
    )
    data = tmp_path / "data"
    objects = [([name], [(5, 5, 30, 40)], {}) for name in ("1", "2", "3")]
    for number in range(3):
        write_image(data, str(number), "".join(sentences), objects)
        write_photo(data / "images" / f"{number}.jpg", seed=number, size=(100, 80))
    (data / "train.txt").write_text("0\n1\n2\n")
    examples = load_examples(data, "train")
    paths = {example.image: data / "images" / f"{example.image}.jpg" for example in examples}
    extract(paths, tmp_path / "store", grounder.parts.extractor)
    store = FeatureStore.open(tmp_path / "store")
    found = decode_examples(grounder.model, examples, store, InferenceOptions("gold", decode))
    wanted = torch.cat([decoded.boxes for _, _, decoded in found]).tolist()
    mine = [
        phrase.box
        for example in examples
        for caption in example.captions
        for phrase in grounder.ground(
            paths[example.image], caption.text, [(each.start, each.end) for each in caption.phrases], decode
        ).phrases
    ]
    np.testing.assert_allclose(mine, wanted, atol=1e-3)


@pytest.mark.parametrize("decode", DECODERS)
def test_many_are_as_one_by_one(grounder: Grounder, tmp_path: Path, decode: str) -> None:
    captions = (CAPTION, "the dog", "a red ball with a man and a dog and the man and the red ball", "a man sees")
    given = (PHRASES, None, ["a red ball", "the man"], [(0, 5)])
    pairs = [
        (
            write_photo(tmp_path / f"{number}.png", seed=number % 5, size=(40 + number, 50)),
            captions[number % 4],
            given[number % 4],
        )
        for number in range(7)
    ]
    alone = [grounder.ground(*pair, decode=decode, top_k=3) for pair in pairs]
    fresh = Grounder(grounder.parts, "cpu", photos=0)
    for batch_size, workers in ((4, 2), (100, 3)):
        many = list(fresh.ground_many(iter(pairs), batch_size, workers=workers, decode=decode, top_k=3))
        assert [each.path for each in many] == [str(path) for path, _, _ in pairs]
        for one, other in zip(many, alone, strict=True):
            assert_same(one, other)


def test_what_a_grounding_says(grounder: Grounder, photo: Path) -> None:
    found = grounder.ground(photo, CAPTION, PHRASES)
    assert (found.path, found.width, found.height, found.caption) == (str(photo), 90, 60, CAPTION)
    assert (found.decode, found.error) == ("consensus", None)
    assert [phrase.text for phrase in found.phrases] == list(PHRASES)
    for phrase in found.phrases:
        assert CAPTION[phrase.start : phrase.end] == phrase.text
        chances = [other.probability for other in phrase.alternatives]
        assert all(0 <= each <= 1 for each in (phrase.probability, *chances))
        assert chances == sorted(chances, reverse=True)
        assert 1 <= len(chances) <= 5
        boxes = torch.tensor([phrase.box, *(other.box for other in phrase.alternatives)])
        assert all(iou_xyxy(boxes[a], boxes[b]) <= 0.5 for a, b in combinations(range(len(boxes)), 2))
        assert (boxes >= 0).all()
        assert (boxes <= torch.tensor([90.0, 60, 90, 60])).all()
    assert [len(phrase.alternatives) for phrase in grounder.ground(photo, CAPTION, PHRASES, top_k=0).phrases] == [0] * 3
    written = found.to_dict()["phrases"][0]
    np.testing.assert_allclose(written["box"], found.phrases[0].box, atol=5e-4)
    assert all(len(str(end).partition(".")[2]) <= 3 for end in written["box"])
    picture = found.draw(probabilities=True, alternatives=2)
    assert picture.width >= 90
    assert picture.height > 60


def test_phrases_are_found(grounder: Grounder, photo: Path) -> None:
    """Spans are code points of the user's text, whatever it is made of."""
    for caption in (CAPTION, "👍🏽 A man\u200b with\ta red ball!\x07 שלום הכלב the dog", "DOG", "the café 犬"):
        found = grounder.ground(photo, caption)
        wanted = grounder.parts.finder.find(caption)
        assert [(phrase.start, phrase.end, phrase.category) for phrase in found.phrases] == [
            (phrase.start, phrase.end, phrase.category) for phrase in wanted
        ]
        assert all(caption[phrase.start : phrase.end] == phrase.text for phrase in found.phrases)
    assert len(grounder.ground(photo, CAPTION).phrases) > 1


def test_full_width_words_are_read_as_plain_ones(grounder: Grounder, photo: Path) -> None:
    wide = CAPTION.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})
    wanted = grounder.ground(photo, CAPTION, PHRASES).phrases
    found = grounder.ground(photo, wide, [(phrase.start, phrase.end) for phrase in wanted]).phrases
    assert [phrase.text for phrase in found] == [wide[phrase.start : phrase.end] for phrase in wanted]
    assert [(phrase.category, phrase.box) for phrase in found] == [(phrase.category, phrase.box) for phrase in wanted]


def test_a_caption_without_phrases(grounder: Grounder, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grounder.parts.finder, "find", lambda text: [])
    found = grounder.ground(photo, "is it so ?")
    assert (found.phrases, found.error, found.width) == ((), None, 90)
    mixed = list(grounder.ground_many([(photo, "is it so ?"), (photo, CAPTION, PHRASES), (photo, "no")]))
    assert [len(each.phrases) for each in mixed] == [0, 3, 0]


def test_what_is_not_found(tmp_path: Path, photo: Path) -> None:
    """A model with the label ∅ has a presence, and what is below the threshold is not found; boxes stay as they are."""
    mine = Grounder.from_pretrained(write_grounder(tmp_path / "model", settings=replace(MODEL, absent=True)), "cpu")
    everything = mine.ground(photo, CAPTION, PHRASES)
    presence = [phrase.presence for phrase in everything.phrases]
    assert all(each is not None and 0 < each < 1 for each in presence)
    assert all(phrase.found for phrase in everything.phrases)  # without a calibration the threshold is 0
    middle = sorted(each or 0.0 for each in presence)[1]
    some = mine.ground(photo, CAPTION, PHRASES, min_probability=middle)
    assert [phrase.found for phrase in some.phrases] == [(each or 0.0) >= middle for each in presence]
    assert [phrase.box for phrase in some.phrases] == [phrase.box for phrase in everything.phrases]
    assert all(phrase.probability <= (phrase.presence or 0.0) for phrase in some.phrases)
    (again,) = mine.ground_many([(photo, CAPTION, PHRASES)], min_probability=middle)
    assert [phrase.found for phrase in again.phrases] == [phrase.found for phrase in some.phrases]
    assert some.draw().tobytes() != everything.draw().tobytes()
    mine.save_pretrained(tmp_path / "again")
    assert_same(Grounder.from_pretrained(tmp_path / "again", "cpu").ground(photo, CAPTION, PHRASES), everything, 0.05)


def test_a_model_that_cannot_tell_presence_finds_everything(grounder: Grounder, photo: Path) -> None:
    found = grounder.ground(photo, CAPTION, PHRASES)
    assert [(phrase.presence, phrase.found) for phrase in found.phrases] == [(None, True)] * 3
    least = found.phrases[0].probability
    again = grounder.ground(photo, CAPTION, PHRASES, min_probability=least)
    assert [phrase.found for phrase in again.phrases] == [phrase.probability >= least for phrase in found.phrases]
    with pytest.raises(DataError, match="min_probability must be from 0 to 1, not 2"):
        grounder.ground(photo, CAPTION, min_probability=2)


def test_a_caption_without_a_known_word(grounder: Grounder, photo: Path) -> None:
    found = grounder.ground(photo, "ein Hund")
    assert found.phrases == ()
    assert "English" in found.to_dict()["hint"]
    assert "hint" not in grounder.ground(photo, CAPTION).to_dict()
    assert len(grounder.ground(photo, "ein Hund", ["Hund"]).phrases) == 1


def test_decoders_differ(grounder: Grounder, photo: Path) -> None:
    found = {method: grounder.ground(photo, CAPTION, PHRASES, method) for method in DECODERS}
    assert {method: each.decode for method, each in found.items()} == {method: method for method in DECODERS}
    assert len({tuple(phrase.box for phrase in each.phrases) for each in found.values()}) > 1


def test_a_photo_is_a_path_an_image_or_an_array(grounder: Grounder, photo: Path) -> None:
    wanted = grounder.ground(photo, CAPTION, PHRASES)
    with Image.open(photo) as image:
        for source in (str(photo), image, np.array(image)):
            found = grounder.ground(source, CAPTION, PHRASES)
            assert_same(found, wanted)
            assert found.draw().size == wanted.draw().size
            assert found.path == (str(photo) if isinstance(source, str) else None)


def test_boxes_are_in_pixels_as_displayed(grounder: Grounder, tmp_path: Path) -> None:
    """A photo that EXIF turns is grounded as the turned one."""
    with Image.open(write_photo(tmp_path / "plain.png", seed=3, size=(80, 40))) as image:
        exif = Image.Exif()
        exif[ORIENTATION] = 6
        image.save(tmp_path / "turned.png", exif=exif)
        image.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "upright.png")
    turned, upright = (grounder.ground(tmp_path / f"{name}.png", CAPTION, PHRASES) for name in ("turned", "upright"))
    assert (turned.width, turned.height) == (40, 80)
    assert_same(turned, upright)
    assert turned.draw().size == upright.draw().size


def test_a_second_caption_does_not_look_again(
    grounder: Grounder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Grounder(grounder.parts, "cpu", photos=2)
    looks = []
    regions = grounder.parts.extractor.regions
    monkeypatch.setattr(
        type(grounder.parts.extractor), "regions", lambda self, *a: (looks.append(a[0]), regions(*a))[1]
    )
    paths = [write_photo(tmp_path / f"{number}.png", seed=number) for number in range(3)]
    for caption in (CAPTION, "the dog", CAPTION):
        fresh.ground(paths[0], caption)
    assert len(looks) == 1
    for path in (paths[1], paths[0], paths[2], paths[0]):  # 1 is the one that was not asked for longest
        fresh.ground(path, CAPTION)
    assert len(looks) == 3
    fresh.ground(paths[1], CAPTION)
    assert len(looks) == 4


def test_no_answer_is_about_an_older_photo(grounder: Grounder, tmp_path: Path) -> None:
    """Rewritten with the same size and the same time, to the nanosecond; and an array that changed in place."""
    path, before = tmp_path / "photo.bmp", None
    for seed in (1, 2):
        write_photo(tmp_path / "new.bmp", seed=seed)
        path.write_bytes((tmp_path / "new.bmp").read_bytes())
        os.utime(path, ns=(10**18, 10**18))
        found = grounder.ground(path, CAPTION, PHRASES)
        assert_same(found, Grounder(grounder.parts, "cpu").ground(path, CAPTION, PHRASES))
        assert found.phrases != before
        before = found.phrases
    array = np.array(Image.open(path))
    first = grounder.ground(array, CAPTION, PHRASES)
    array[:, : array.shape[1] // 2] = 255 - array[:, : array.shape[1] // 2]
    second = grounder.ground(array, CAPTION, PHRASES)
    assert first.phrases != second.phrases
    assert_same(second, Grounder(grounder.parts, "cpu").ground(array, CAPTION, PHRASES))


def test_a_photo_is_opened_once(grounder: Grounder, tmp_path: Path) -> None:
    """By ``ground``, whatever is drawn after it; by ``ground_many`` once for each grounding."""
    path = write_photo(tmp_path / "photo.png", seed=11)
    fresh = Grounder(grounder.parts, "cpu")
    with counted_opens(path) as opens:
        found = fresh.ground(path, CAPTION, PHRASES)
        pictures = [found.draw(), found.draw(probabilities=True)]
    assert opens == [1]
    with counted_opens(path) as opens:
        (one, other) = fresh.ground_many([(path, CAPTION, PHRASES), (path, "the dog", ["the dog"])])
    assert opens == [2]
    with counted_opens(path) as opens:
        (kept,) = fresh.ground_many([(path, CAPTION, PHRASES)], keep_photos=True)
        assert kept.draw() == pictures[0]
    assert opens == [1]
    assert one.draw() == pictures[0]
    write_photo(path, seed=12)
    assert found.draw() == kept.draw() == pictures[0]
    with pytest.raises(DataError, match=r"photo\.png: has changed since it was grounded"):
        other.draw()
    path.unlink()
    with pytest.raises(DataError, match=r"photo\.png: missing"):
        other.draw()


@pytest.mark.parametrize("options", [(), ("--json",), ("--compare",), ("--alternatives",)])
def test_the_command_opens_a_photo_once(
    grounder: Grounder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(cli.grounding, "_grounder", lambda model, device: Grounder(grounder.parts, "cpu"))
    path, out = write_photo(tmp_path / "photo.png", seed=13), tmp_path / "out.png"
    arguments = (path, CAPTION, "--phrase", "a red ball", "--out", out, *options)
    with counted_opens(path) as opens:
        assert run_command(monkeypatch, capsys, *arguments)[0] == 0
    assert opens == [1]
    if not options:
        found = grounder.ground(path, CAPTION, ["a red ball"]).draw(probabilities=True)
        with Image.open(out) as picture:
            np.testing.assert_array_equal(np.array(picture), np.array(found))


@pytest.mark.parametrize("options", [(), ("--compare",)])
def test_the_command_opens_many_photos_once_each(
    grounder: Grounder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(cli.grounding, "_grounder", lambda model, device: Grounder(grounder.parts, "cpu"))
    paths = [write_photo(tmp_path / f"{number}.png", seed=number) for number in range(2)]
    arguments = (*paths, "a man", "--phrase", "a man", "--out", tmp_path / "out", *options)
    with counted_opens(paths[0]) as first, counted_opens(paths[1]) as second:
        assert run_command(monkeypatch, capsys, *arguments)[0] == 0
    assert (first, second) == ([1], [1])


@pytest.mark.parametrize("method", ["viterbi", "smoothing", "consensus"])
def test_what_is_compared_differs_by_the_chain_alone(grounder: Grounder, photo: Path, method: str) -> None:
    """Joint is what ``ground`` finds, alone what the same model finds by the same decoder without its transitions."""
    joint, alone = grounder.compare(photo, CAPTION, PHRASES, method)
    assert_same(joint, grounder.ground(photo, CAPTION, PHRASES, method))
    parts = copy.deepcopy(grounder.parts)
    assert isinstance(parts.model, GroundingModel)
    parts.model.transition = None
    assert_same(alone, Grounder(parts, "cpu").ground(photo, CAPTION, PHRASES, method))
    assert (joint.decode, alone.decode) == (
        method,
        "independent consensus" if method == "consensus" else "independent",
    )
    if method != "consensus":
        assert_same(alone, grounder.ground(photo, CAPTION, PHRASES, "independent"))


def test_many_are_compared_in_order_and_what_fails_in_its_place(grounder: Grounder, photo: Path) -> None:
    pairs = [(photo, CAPTION, PHRASES), ("absent.jpg", "a dog"), (photo, "of", []), (photo, "the dog", ["the dog"])]
    found = list(grounder.compare_many(pairs))  # type: ignore[arg-type]
    assert [len(joint.phrases) for joint, _ in found] == [3, 0, 0, 1]
    assert [alone.error is not None for _, alone in found] == [False, True, False, False]
    for place in (0, 3):
        for mine, theirs in zip(found[place], grounder.compare(*pairs[place]), strict=True):  # type: ignore[arg-type]
            assert_same(mine, theirs)


def test_many_threads_may_share_one(grounder: Grounder, tmp_path: Path) -> None:
    paths = [write_photo(tmp_path / f"{number}.png", seed=number) for number in range(3)]
    wanted = [grounder.ground(path, CAPTION, PHRASES) for path in paths]
    shared = Grounder(grounder.parts, "cpu", photos=2)
    found: list[tuple[int, PhotoGrounding]] = []

    def ask(place: int) -> None:
        found.extend((place, shared.ground(paths[place], CAPTION, PHRASES)) for _ in range(4))

    threads = [Thread(target=ask, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    for place, each in found:
        assert_same(each, wanted[place])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda grounder: pickle.loads(pickle.dumps(grounder))])
def test_a_copy_is_a_grounder_of_its_own(
    grounder: Grounder, photo: Path, copied: Callable[[Grounder], Grounder]
) -> None:
    original = Grounder(grounder.parts, "cpu", photos=3)
    wanted = original.ground(photo, CAPTION, PHRASES)
    other = copied(original)
    assert other.model is other.parts.model is not original.model
    assert other._photos.extractor is other.parts.extractor is not original.parts.extractor
    assert (len(other._photos._kept), other._photos.size) == (0, 3)
    assert other.ground(photo, CAPTION, PHRASES) == wanted
    other.model.pairs.heads.weight.data.zero_()
    assert original.ground(photo, CAPTION, PHRASES) == wanted


def test_another_process_gives_the_same(grounder: Grounder, photo: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(grounder.ground, photo, CAPTION, PHRASES).result()
    assert_same(found, grounder.ground(photo, CAPTION, PHRASES))
    assert found.draw().width == grounder.ground(photo, CAPTION, PHRASES).draw().width


def test_what_cannot_be_sent_says_so(grounder: Grounder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "phrasechain.regions.extractor.load_runtime", lambda _, network, sha: torch_runtime(network, sha)
    )
    assert grounder.parts.regions_file is not None
    other = Grounder.from_pretrained(grounder.parts.regions_file.parent, "cpu", runtime="onnx")
    for send in (pickle.dumps, copy.deepcopy):
        with pytest.raises(DataError, match=r"whose runtime is onnx cannot be copied or sent .* make one there"):
            send(other)


def bad_photos(folder: Path) -> Iterator[tuple[object, str]]:
    (folder / "text.jpg").write_text("no image")
    (folder / "empty.png").write_bytes(b"")
    cut = io.BytesIO()
    Image.effect_noise((60, 60), 90).save(cut, "PNG")
    (folder / "cut.png").write_bytes(cut.getvalue()[:500])
    yield folder / "text.jpg", "not an image of a known format"
    yield folder / "empty.png", "not an image of a known format"
    yield folder / "cut.png", "cut.png: "
    yield folder / "none.png", "none.png: missing"
    yield folder, "not a file"
    yield "https://example.org/dog.jpg", "an address, not a file; download"
    yield "data:image/png;base64,AAAA", "an address, not a file"
    yield "a\0b.png", "missing"
    yield "a" * 300, "cannot be read: File name too long"
    yield np.zeros((0, 5, 3), np.uint8), "the given array"
    yield np.zeros((5, 5), np.uint8), "not H × W × 3"
    yield Image.new("RGB", (0, 4)), "0 × 4 pixels"
    yield 3, "not of the type int"
    yield None, "not of the type NoneType"


def test_photos_that_cannot_be_used(grounder: Grounder, photo: Path, tmp_path: Path) -> None:
    """One line each; among many, an answer in its place that says so, and the others go on."""
    bad = list(bad_photos(tmp_path))
    for source, message in bad:
        with pytest.raises(DataError) as caught:
            grounder.ground(source, CAPTION)  # type: ignore[arg-type]
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    pairs = [pair for source, _ in bad for pair in ((source, CAPTION), (photo, CAPTION, PHRASES))]
    found = list(grounder.ground_many(pairs, batch_size=5))  # type: ignore[arg-type]
    for (_, message), broken, whole in zip(bad, found[::2], found[1::2], strict=True):
        assert message in str(broken.error)
        assert (broken.width, broken.phrases, broken.caption) == (0, (), CAPTION)
        assert "error" in broken.to_dict()
        assert len(whole.phrases) == 3
        with pytest.raises(DataError, match="nothing to draw"):
            broken.draw()
    with pytest.raises(DataError, match="known format"):
        list(grounder.ground_many(pairs, on_error="raise"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("caption", "phrases", "message"),
    [
        ("", None, "the caption is empty"),
        (" \n\x00\u200b\u202e ", None, "the caption is empty"),
        ("word " * 10_000, None, "20,000 are the most"),
        ("w " * (TOKEN_LIMIT + 1), None, "2,000 are the most"),
        (3, None, "a caption is a text, not int"),
        (CAPTION, ["a cat"], "'a cat' is not in the caption"),
        (CAPTION, [(0, 5), "man"], "overlap"),
        (CAPTION, "A man", "put it into a list"),
        (CAPTION, [(3, 500)], "outside the caption"),
        (CAPTION, [""], "a phrase is empty"),
    ],
)
def test_captions_that_cannot_be_used(
    grounder: Grounder, photo: Path, caption: str, phrases: list[str], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        grounder.ground(photo, caption, phrases)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    (broken, whole) = grounder.ground_many([(photo, caption, phrases), (photo, CAPTION, PHRASES)])
    assert message in str(broken.error)
    assert whole.error is None


def test_options_that_cannot_be_used(grounder: Grounder, photo: Path) -> None:
    for options, message in (
        ({"decode": "vitrebi"}, "no decoder named 'vitrebi'"),
        ({"top_k": -1}, "top_k must be 0 or more"),
        ({"batch_size": 0}, "must be 1 or more"),
        ({"workers": -1}, "workers 0 or more"),
        ({"on_error": "stop"}, "no way with errors named 'stop'"),
    ):
        with pytest.raises(DataError, match=message):
            grounder.ground_many([(photo, CAPTION)], **options)  # type: ignore[arg-type]
    for pair in ((photo,), "ab", None):
        (found,) = grounder.ground_many([pair])  # type: ignore[list-item]
        assert found.error == "a pair is (image, caption), or (image, caption, phrases)"
    with pytest.raises(DataError, match="torch finds no GPU"):
        Grounder(grounder.parts, "cuda")
    for device in ("gpu", "meta", "vulkan"):
        with pytest.raises(DataError, match=f"no device named '{device}'"):
            Grounder(grounder.parts, device)
    with pytest.raises(DataError, match="0 or more, not -1"):
        Grounder(grounder.parts, "cpu", photos=-1)


def test_many_are_asked_for_only_a_little_ahead(grounder: Grounder, photo: Path) -> None:
    taken = 0

    def pairs() -> Iterator[tuple[Path, str]]:
        nonlocal taken
        while True:
            taken += 1
            yield photo, CAPTION

    found = grounder.ground_many(pairs(), batch_size=2, workers=1)
    next(found)
    assert taken <= 6
    found.close()  # type: ignore[attr-defined]


def test_a_long_caption_among_short_ones(grounder: Grounder, photo: Path) -> None:
    """It goes through the model by itself; padded with it, the short ones would fill the memory."""
    long = " and ".join(["a man"] * 300)
    pairs = [(photo, "a man", ["a man"]), (photo, long, ["a man"]), (photo, CAPTION, PHRASES)]
    found = list(grounder.ground_many(pairs))
    assert [len(each.phrases) for each in found] == [1, 300, 3]
    for one, pair in zip(found[::2], pairs[::2], strict=True):
        assert_same(one, grounder.ground(*pair))
