"""The ground command with a real grounder, tiny: what it prints and writes is what the library finds."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from ground_command import Run, run_command, write_photo
from phrasechain.grounding.grounder import Grounder
from tiny_grounder import CAPTION, PHRASES, write_grounder

GIVEN = [part for phrase in PHRASES for part in ("--phrase", phrase)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grounder(tmp_path_factory.mktemp("model") / "grounder")


@pytest.fixture
def run(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    write_photo(Path("photo.jpg"))

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        return run_command(monkeypatch, capsys, "--model", model, "--device", "cpu", *arguments)

    yield call
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_photo(run: Run, model: Path) -> None:
    status, out, err = run("photo.jpg", CAPTION, *GIVEN, "--json", "--out", "out.png", "--decode", "viterbi")
    assert (status, err) == (0, "")
    wanted = Grounder.from_pretrained(model, "cpu").ground("photo.jpg", CAPTION, PHRASES, "viterbi")
    assert json.loads(out) == json.loads(wanted.to_json())
    assert [phrase["text"] for phrase in json.loads(out)["phrases"]] == list(PHRASES)
    with Image.open("out.png") as drawn:
        assert drawn.width == 300


def test_many_are_as_one_by_one(run: Run, model: Path) -> None:
    write_photo(Path("photos/two.png"), 320, 240)
    write_photo(Path("photos/one.jpg"))
    lines = [
        {"image": name, "caption": CAPTION, "phrases": list(PHRASES)} for name in ("two.png", "one.jpg", "two.png")
    ]
    lines[2]["phrases"] = [[0, 5]]
    Path("captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("photos", "--captions", "captions.jsonl", "--out", "out", "--compare")[0] == 0
    found = [json.loads(line) for line in Path("out/groundings.jsonl").read_text().splitlines()]
    grounder = Grounder.from_pretrained(model, "cpu")
    for record, line in zip(found, lines, strict=True):
        phrases = [tuple(phrase) if isinstance(phrase, list) else phrase for phrase in line["phrases"]]
        both = grounder.compare(f"photos/{line['image']}", CAPTION, phrases)
        for one, part in zip(both, ("phrases", "independent"), strict=True):
            boxes = [phrase["box"] for phrase in record[part]]
            assert boxes == [pytest.approx(phrase.box, abs=1e-2) for phrase in one.phrases]
        assert record["image"]["path"] == line["image"]
        assert (Path("out") / record["picture"]).exists()


@pytest.mark.parametrize(
    ("caption", "phrases"),
    [
        ("a \x07dog\x1b[2J with a\tball \u2028 \x00man", ("dog", "ball", "man")),
        (
            "\u05db\u05dc\u05d1 \u202eman sees \u05db\u05d3\u05d5\u05e8",
            ("\u05db\u05dc\u05d1", "man", "\u05db\u05d3\u05d5\u05e8"),
        ),
        ("\udcff man 🐶🐶", ("man", "🐶🐶")),
        ("dog " * 60, ("dog",)),
    ],
)
def test_odd_captions_are_grounded(run: Run, caption: str, phrases: tuple[str, ...]) -> None:
    given = [part for phrase in phrases for part in ("--phrase", phrase)]
    status, out, err = run("photo.jpg", caption, *given, "--alternatives")
    assert (status, err) == (0, "")
    assert not set("\x00\x07\x1b\u2028\u202e\udcff") & set(out)
    assert Path("photo.grounded.png").exists()
    record = json.loads(run("photo.jpg", caption, *given, "--json")[1])
    assert record["caption"] == caption
    assert {phrase["text"] for phrase in record["phrases"]} == set(phrases)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photo.jpg", ""], "the caption is empty; give a sentence about the photo"),
        (["photo.jpg", " \n\x00\u200b"], "the caption is empty; give a sentence about the photo"),
        (["photo.jpg", "dog " * 10_000], "the text has 40,000 characters; 20,000 are the most, so split it"),
        (["photo.jpg", "a " * 9_000], "the text has 9,000 words and signs; 2,000 are the most, so split it"),
        (["photo.jpg", CAPTION, "--phrase", "a cat"], "the phrase 'a cat' is not in the caption"),
        (["photo.jpg", CAPTION, "--phrase", "A man", "--phrase", "man"], "overlap"),
        (["text.jpg", CAPTION], "text.jpg: not an image of a known format"),
        (["none.pgm", CAPTION], "none.pgm: "),
        (["http://a.org/b.jpg", CAPTION], "http://a.org/b.jpg: an address"),
        (["photo.jpg", CAPTION, "--model", "no-such-model"], "no-such-model"),
        (["photo.jpg", CAPTION, "--device", "abacus"], "abacus"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    Path("text.jpg").write_text("no photo")
    Path("none.pgm").write_bytes(b"P5 0 0 255\n")
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not list(Path().glob("*.png"))
