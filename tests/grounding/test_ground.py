"""The ground command: one photo or many, in every form of input and output; what is wrong is one line."""

import json
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from fake_grounder import FakeGrounder
from ground_command import Run, run_command, write_photo
from phrasechain.cli import grounding
from phrasechain.grounding.ground import NO_PHRASES
from phrasechain.grounding.result import PhotoGrounding

CAPTION = "a man throws a ball to a dog"


@pytest.fixture
def grounder(monkeypatch: pytest.MonkeyPatch) -> FakeGrounder:
    fake = FakeGrounder()
    monkeypatch.setattr(grounding, "_grounder", lambda model, device: fake)
    return fake


@pytest.fixture
def run(
    tmp_path: Path, grounder: FakeGrounder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs the command in a folder with two photos."""
    monkeypatch.chdir(tmp_path)
    write_photo(Path("photo.jpg"))
    write_photo(Path("other.png"), 320, 200)

    return lambda *arguments: run_command(monkeypatch, capsys, *arguments)


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*") if path.is_file()} - {"photo.jpg", "other.png"}


def records(folder: str = "out") -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(folder, "groundings.jsonl").read_text().splitlines()]


def counts(out: str) -> dict[str, int]:
    """The summary of many."""
    rows = [line.split("│")[1:3] for line in out.splitlines() if line.startswith("│")]
    return {name.strip(): int(count) for name, count in rows}


# One photo


def test_a_picture_beside_the_user_and_a_table(run: Run, tmp_path: Path) -> None:
    write_photo(tmp_path / "below" / "photo.jpg")
    status, out, err = run("below/photo.jpg", CAPTION)
    assert (status, err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert rows == [
        ["man", "people", "30 20 60 60", "75.0%", "90.0%"],
        ["ball", "other", "60 20 90 60", "75.0%", "80.0%"],
        ["dog", "animals", "90 20 120 60", "75.0%", "70.0%"],
    ]
    assert out.splitlines()[-1] == "photo.grounded.png"
    assert files() == {"below/photo.jpg", "photo.grounded.png"}
    with Image.open("photo.grounded.png") as picture:
        assert (picture.format, picture.width) == ("PNG", 300)
        assert picture.height > 200


def test_what_is_not_found_has_no_box(run: Run) -> None:
    status, out, _ = run("photo.jpg", CAPTION, "--min-probability", "0.75")
    assert status == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert rows[2] == ["dog", "animals", "not found", "75.0%", "70.0%"]
    without = Path("photo.grounded.png").read_bytes()
    run("photo.jpg", CAPTION)
    assert Path("photo.grounded.png").read_bytes() != without
    record = json.loads(run("photo.jpg", CAPTION, "--json", "--min-probability", "0.75")[1])
    assert [phrase["found"] for phrase in record["phrases"]] == [True, True, False]
    assert record["phrases"][2]["box"] == [90.0, 20.0, 120.0, 60.0]
    status, _, err = run("photo.jpg", CAPTION, "--min-probability", "1.5")
    assert (status, err) == (2, "phrasechain: --min-probability is from 0 to 1, not 1.5\n")


def test_the_picture_replaces_an_older_one(run: Run) -> None:
    Path("photo.grounded.png").write_text("old")
    assert run("photo.jpg", CAPTION)[0] == 0
    assert Path("photo.grounded.png").read_bytes()[:4] == b"\x89PNG"


def test_json_alone(run: Run) -> None:
    status, out, err = run("photo.jpg", CAPTION, "--json", "--decode", "viterbi")
    assert (status, err, files()) == (0, "", set())
    record = json.loads(out)
    assert record["image"] == {"path": "photo.jpg", "width": 300, "height": 200}
    assert (record["caption"], record["model"], record["decode"]) == (CAPTION, "fake", "viterbi")
    assert record["phrases"][0] == {
        "text": "man",
        "start": 2,
        "end": 5,
        "category": "people",
        "box": [30.0, 20.0, 60.0, 60.0],
        "probability": 0.75,
        "presence": 0.9,
        "found": True,
        "alternatives": [{"box": [0.0, 0.0, 150.0, 100.0], "probability": 0.125}],
    }


def test_json_and_a_picture(run: Run) -> None:
    status, out, _ = run("photo.jpg", CAPTION, "--json", "--out", "mine.png")
    assert status == 0
    assert json.loads(out)["caption"] == CAPTION
    assert files() == {"mine.png"}


def test_the_picture_on_stdout(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from io import TextIOWrapper

    stdout = TextIOWrapper(BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run("photo.jpg", CAPTION, "--out", "-")[0] == 0
    stdout.flush()
    with Image.open(BytesIO(stdout.buffer.getvalue())) as picture:  # type: ignore[attr-defined]
        assert picture.width == 300
    monkeypatch.setattr(stdout, "isatty", lambda: True, raising=False)
    status, _, err = run("photo.jpg", CAPTION, "--out", "-")
    assert status == 2
    assert "a terminal cannot show" in err
    assert files() == set()


def test_given_phrases(run: Run) -> None:
    _, out, _ = run("photo.jpg", CAPTION, "--phrase", "a ball", "--phrase", "throws", "--json")
    assert [(phrase["text"], phrase["start"]) for phrase in json.loads(out)["phrases"]] == [
        ("throws", 6),
        ("a ball", 13),
    ]


def test_alternatives(run: Run) -> None:
    plain = run("photo.jpg", CAPTION, "--out", "plain.png")[1]
    status, out, _ = run("photo.jpg", CAPTION, "--out", "more.png", "--alternatives")
    assert status == 0
    assert [line.count("0 0 150 100") for line in out.splitlines() if "12.5%" in line] == [1, 1, 1]
    assert "12.5%" not in plain
    assert Path("plain.png").read_bytes() != Path("more.png").read_bytes()


def test_compare(run: Run) -> None:
    status, out, _ = run("photo.jpg", CAPTION, "--compare")
    assert status == 0
    assert [line.count("*") for line in out.splitlines() if "%" in line] == [0, 1, 1]
    with Image.open("photo.grounded.png") as picture:
        assert picture.width > 600
    record = json.loads(run("photo.jpg", CAPTION, "--compare", "--json")[1])
    assert [phrase["box"][1] for phrase in record["phrases"]] == [20, 20, 20]
    assert [phrase["box"][1] for phrase in record["independent"]] == [20, 100, 100]
    assert record["decode"] == "consensus"


def test_a_caption_without_phrases_says_so(run: Run) -> None:
    assert run("photo.jpg", "it is late") == (0, "", NO_PHRASES + "\n")
    assert files() == set()
    status, out, err = run("photo.jpg", "it is late", "--json")
    assert (status, json.loads(out)["phrases"], err) == (0, [], NO_PHRASES + "\n")


def test_an_animation_is_its_first_frame(run: Run) -> None:
    frames = [Image.new("RGB", (60, 40), colour) for colour in ("red", "blue")]
    frames[0].save("moving.gif", save_all=True, append_images=frames[1:])
    status, _, err = run("moving.gif", CAPTION)
    assert (status, err) == (0, "moving.gif: an animation; its first frame is used\n")
    with Image.open("moving.grounded.png") as picture:
        red, _, blue = picture.getpixel((picture.width - 2, 2))  # type: ignore[misc]
        assert red > 250
        assert blue < 5


def test_a_caption_cannot_steer_the_terminal(run: Run) -> None:
    out = run("photo.jpg", "a \x1b[31mdog \u202e man [red]ball[/red]", "--phrase", "[red]ball[/red]")[1]
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[red]ball[/red]" in out


@pytest.mark.parametrize(("width", "height"), [(200, 150), (60, 40), (3000, 2000), (4000, 200)])
def test_pictures_of_all_sizes(run: Run, width: int, height: int) -> None:
    Image.new("RGB", (width, height), "gray").save("size.png")
    assert run("size.png", CAPTION)[0] == 0
    with Image.open("size.grounded.png") as picture:
        assert picture.width >= max(width, 200 if width > height else 0)
        assert picture.height > height


@pytest.mark.parametrize(("width", "height"), [(200_000, 1), (1, 200_000), (8000, 6000)])
@pytest.mark.parametrize("option", ["--alternatives", "--compare"])
def test_pictures_of_any_photo_are_of_bounded_size(run: Run, width: int, height: int, option: str) -> None:
    Image.new("L", (width, height), "gray").save("size.png")
    assert run("size.png", CAPTION, option)[0] == 0
    with Image.open("size.grounded.png") as picture:
        assert picture.width <= 2 * 4096 + 200
        assert picture.width * picture.height < 10_000_000


def test_a_picture_that_does_not_fit_into_the_memory_is_one_line_and_the_others_follow(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(grounding: PhotoGrounding, **options: object) -> Image.Image:
        if "photo.jpg" in str(grounding.path):
            raise MemoryError
        return Image.new("RGB", (1, 1))

    monkeypatch.setattr(PhotoGrounding, "draw", draw)
    status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out")
    assert (status, len(records())) == (1, 1)
    assert err == "skipped photo.jpg: its picture does not fit into the memory that is left\n"


def test_the_picture_is_not_written_through_a_link(run: Run) -> None:
    Path("secret").write_text("kept")
    Path("photo.grounded.png").symlink_to("secret")
    assert run("photo.jpg", CAPTION)[0] == 0
    assert Path("secret").read_text() == "kept"
    assert not Path("photo.grounded.png").is_symlink()
    Path("named.png").symlink_to("secret")
    assert run("photo.jpg", CAPTION, "--out", "named.png")[0] == 0
    assert Path("secret").read_bytes().startswith(b"\x89PNG")


# What is wrong with one photo is one line, and nothing is written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["photo.jpg"], 'give a photo and a caption, such as photo.jpg "a dog chases a ball"; --help says more'),
        (["https://example.org/a.jpg", CAPTION], "an address; download the photo"),
        (["absent.jpg", CAPTION], "absent.jpg: no such file or folder"),
        (["a" * 5000, CAPTION], "no such file or folder"),
        (["", CAPTION], "'': no such file or folder"),
        (["photo.jpg", "a", "dog"], "a: no such file or folder; a caption of several words stands in quotes"),
        ([CAPTION, "photo.jpg"], "photo.jpg: a photo, but the last of the arguments is the caption"),
        (["text.jpg", CAPTION], "text.jpg: not an image of a known format"),
        (["empty.jpg", CAPTION], "empty.jpg: not an image of a known format"),
        (["cut.jpg", CAPTION], "cut.jpg: cannot be read"),
        (["photo.jpg", "  "], "the caption is empty"),
        (["photo.jpg", CAPTION, "--phrase", "a bal"], "the phrase 'a bal' cuts 'a ball' at (13, 19); give whole words"),
        (["photo.jpg", CAPTION, "--phrase", "a cat"], "the phrase 'a cat' is not in the caption"),
        (["photo.jpg", CAPTION, "--phrase", ""], "a phrase is empty"),
        (["photo.jpg", CAPTION, "--out", "no/such/a.png"], "cannot be written: there is no folder no/such"),
        (["photo.jpg", CAPTION, "--out", "folder"], "folder: cannot be written: it is a folder"),
        (["photo.jpg", CAPTION, "--out", "a.jpg"], "pictures are written as PNG"),
        (["photo.jpg", CAPTION, "--out", "a.xyz"], "a.xyz: pictures are written as PNG; give a name that ends with"),
        (["photo.jpg", CAPTION, "--out", "text.jpg/a.png"], "cannot be written: text.jpg is not a folder"),
        (["--captions", "text.jpg", "--json"], "none of the 1 lines of text.jpg can be used; the first: text.jpg:1: "),
        (["other.png", CAPTION, "--out", "./other.png"], "other.png: the photo itself"),
        (["photo.jpg", CAPTION, "--out", "-", "--json"], "--out - is for the picture of one photo, without --json"),
        (["photo.jpg", CAPTION, "--compare", "--alternatives"], "do not fit into one picture"),
        (
            ["photo.jpg", CAPTION, "--compare", "--decode", "independent"],
            "--compare shows what the chain changes",
        ),
        (["photo.jpg", CAPTION, "--decode", "viterby"], "no decoder named 'viterby'; there are: "),
        (["photo.jpg", CAPTION, "--shard", "3/2"], "a shard is i/n with i from 1 to n"),
        (["photo.jpg", "other.png", CAPTION], "many pictures need a folder: give --out FOLDER"),
        (["folder", CAPTION, "--out", "out"], "folder: no photos there"),
        ([".", CAPTION, "--out", "."], "the photos are there; choose another folder"),
        (["--captions", "absent.tsv", "--json"], "absent.tsv: cannot be read: No such file"),
        (["--captions", "empty.jpg", "--phrase", "a dog", "--json"], "--phrase and --captions do not go together"),
        (["photo.jpg", "other.png", CAPTION, "--out", "text.jpg"], "text.jpg: cannot be written: it is not a folder"),
        (["--captions", "empty.jpg", "--json"], "empty.jpg: no caption there\n"),
        (["photo.jpg", "--captions", "empty.jpg", "--json"], "empty.jpg: no caption there of these photos\n"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    Path("folder").mkdir()
    Path("text.jpg").write_text("no photo")
    Path("empty.jpg").touch()
    Path("cut.jpg").write_bytes(Path("photo.jpg").read_bytes()[:3000])
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("phrasechain: ")
    assert err.count("\n") == 1
    assert files() == {"text.jpg", "empty.jpg", "cut.jpg"}


# Many


def test_several_photos_and_one_caption(run: Run) -> None:
    status, out, err = run("photo.jpg", "other.png", CAPTION, "--out", "out")
    assert (status, err) == (0, "")
    assert [record["image"]["path"] for record in records()] == ["photo.jpg", "other.png"]  # type: ignore[index]
    pictures = [Path("out", str(record["picture"])) for record in records()]
    assert {str(path) for path in pictures} == files() - {"out/groundings.jsonl", "out/.lock"}
    for path, width in zip(pictures, (300, 320), strict=True):
        with Image.open(path) as picture:
            assert picture.width == width
    assert "│ grounded        │     2 │" in out


def test_a_folder_that_has_the_output_below_it(run: Run, grounder: FakeGrounder) -> None:
    for _ in range(2):
        assert run(".", CAPTION, "--out", "out")[0] == 0
    assert [name for name, _ in grounder.asked] == ["other.png", "photo.jpg"]


def test_pictures_of_an_earlier_run_are_left_out(run: Run, grounder: FakeGrounder) -> None:
    assert run(".", CAPTION, "--out", "old")[2] == ""
    assert run("photo.jpg", CAPTION)[0] == 0
    grounder.asked.clear()
    status, _, err = run(".", CAPTION, "--out", "new")
    assert (status, [name for name, _ in grounder.asked]) == (0, ["other.png", "photo.jpg"])
    assert err == "left out 3 pictures that grounding wrote (photo.grounded.png); name one to have it grounded\n"
    Path("photo.grounded.png").unlink()
    status, out, err = run("old", ".", CAPTION, "--json")
    assert (status, out) == (2, "")
    assert "old: no photos there but pictures that grounding wrote; name those that you mean" in err


def test_animations_among_many_are_told(run: Run) -> None:
    frames = [Image.new("RGB", (60, 40), colour) for colour in ("red", "blue")]
    for name in ("moving.gif", "b.gif"):
        frames[0].save(name, save_all=True, append_images=frames[1:])
    lines = [f"{name}\t{caption}\n" for name in ("moving.gif", "photo.jpg", "b.gif") for caption in ("a dog", "a ball")]
    Path("captions.tsv").write_text("".join(lines))
    told = "moving.gif: an animation; its first frame is used\nb.gif: an animation; its first frame is used\n"
    status, out, err = run("--captions", "captions.tsv", "--json")
    assert (status, err, len(out.splitlines())) == (0, told, 6)
    assert run("--captions", "captions.tsv", "--out", "out")[::2] == (0, told)
    assert run("--captions", "captions.tsv", "--out", "out")[::2] == (0, "")  # none of them was looked at again


def test_a_captions_file_with_tabs(run: Run) -> None:
    write_photo(Path("photos/sub/one.jpg"))
    Path("captions.tsv").write_text("image\tcaption\nsub/one.jpg\ta dog\r\n\nsub/one.jpg\ta ball\twith a tab\n")
    assert run("photos", "--captions", "captions.tsv", "--out", "out")[0] == 0
    assert [(record["image"]["path"], record["caption"]) for record in records()] == [  # type: ignore[index]
        ("sub/one.jpg", "a dog"),
        ("sub/one.jpg", "a ball\twith a tab"),
    ]


def test_a_captions_file_of_json_lines(run: Run) -> None:
    lines = [
        {"image": "photo.jpg", "caption": CAPTION},
        {"image": "photo.jpg", "caption": CAPTION, "phrases": ["throws", [0, 5]]},
    ]
    Path("captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, _ = run("--captions", "captions.jsonl", "--json")
    assert status == 0
    texts = [[phrase["text"] for phrase in json.loads(line)["phrases"]] for line in out.splitlines()]
    assert texts == [["man", "ball", "dog"], ["a man", "throws"]]
    assert files() == {"captions.jsonl"}


def test_bad_lines_and_photos_are_named_and_the_rest_goes_on(run: Run) -> None:
    Path("text.jpg").write_text("no photo")
    lines = [
        b'{"image": "photo.jpg", "caption": "a dog"}',
        b'{"image": "photo.jpg", "caption": "a dog"',
        b'{"image": "photo.jpg", "captions": "a dog"}',
        b'{"image": "absent.jpg", "caption": "a dog"}',
        b'{"image": "text.jpg", "caption": "a dog"}',
        b'{"image": "photo.jpg", "caption": "a dog", "phrases": ["a cat"]}',
        b'{"image": "photo.jpg", "caption": "a dog", "phrases": "a dog"}',
        b'{"image": "http://a.org/b.jpg", "caption": "a dog"}',
        b'{"image": "photo.jpg", "caption": 1}',
        b'["photo.jpg", "a dog"]',
        b'\xff{"image": "photo.jpg", "caption": "a dog"}',
        b'{"image": "photo.jpg", "caption": "nothing"}',
        b'{"image": "other.png", "caption": "a dog"}',
    ]
    Path("captions.jsonl").write_bytes(b"\n".join(lines))
    status, out, err = run("--captions", "captions.jsonl", "--out", "out")
    assert status == 1
    assert [(record["image"]["path"], record.get("picture") is None) for record in records()] == [  # type: ignore[index]
        ("photo.jpg", False),
        ("photo.jpg", True),
        ("other.png", False),
    ]
    skipped = sorted(int(line.split(":")[1]) for line in err.splitlines() if line.startswith("skipped captions.jsonl:"))
    assert skipped == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert len(err.splitlines()) == 10
    assert [line.split("│")[2].strip() for line in out.splitlines() if line.startswith("│")] == [
        "2",
        "1",
        "0",
        "0",
        "10",
    ]


def test_tab_lines_that_are_none(run: Run) -> None:
    Path("captions.tsv").write_bytes(b"photo.jpg a dog\n\ta dog\nphoto.jpg\t\nphoto.jpg\t\xff\nphoto.jpg\ta dog\n")
    status, out, err = run("--captions", "captions.tsv", "--json")
    assert status == 1
    assert len(out.splitlines()) == 1
    assert sorted(line.split(": ")[0] for line in err.splitlines()) == [
        f"skipped captions.tsv:{n}" for n in (1, 2, 3, 4)
    ]


def test_photos_choose_lines(run: Run, grounder: FakeGrounder) -> None:
    Path("captions.tsv").write_text("photo.jpg\ta dog\nother.png\ta ball\nphoto.jpg\ta man\n")
    assert run("photo.jpg", "--captions", "captions.tsv", "--json")[0] == 0
    assert grounder.asked == [("photo.jpg", "a dog"), ("photo.jpg", "a man")]
    write_photo(Path("below/photo.jpg"))
    status, _, err = run("photo.jpg", "below/photo.jpg", "--captions", "captions.tsv", "--json")
    assert (status, err.count("\n")) == (2, 1)
    assert "has the same name" in err


def test_an_interrupt_keeps_what_is_done_and_a_second_run_goes_on(run: Run, grounder: FakeGrounder) -> None:
    captions = [f"a dog and a ball {number}" for number in range(6)]
    Path("captions.tsv").write_text("".join(f"photo.jpg\t{caption}\n" for caption in captions))
    grounder.stop_after = 3
    status, _, err = run("--captions", "captions.tsv", "--out", "out")
    assert (status, err) == (130, "phrasechain: interrupted\n")
    assert [record["caption"] for record in records()] == captions[:3]
    with Path("out/groundings.jsonl").open("ab") as file:
        file.write(b'{"image": {"path": "pho')  # what a kill leaves
    grounder.stop_after = None
    status, out, _ = run("--captions", "captions.tsv", "--out", "out")
    assert status == 0
    assert [caption for _, caption in grounder.asked] == captions
    assert [record["caption"] for record in records()] == captions
    assert all(Path("out", str(record["picture"])).exists() for record in records())
    assert "│ already there   │     3 │" in out


def test_what_failed_is_tried_again(run: Run) -> None:
    Path("late.png").touch()
    assert run("photo.jpg", "late.png", CAPTION, "--out", "out")[0] == 1
    write_photo(Path("late.png"))
    assert run("photo.jpg", "late.png", CAPTION, "--out", "out")[0] == 0
    assert [record["image"]["path"] for record in records()] == ["photo.jpg", "late.png"]  # type: ignore[index]


def test_a_folder_is_of_one_model_and_decoding(run: Run, grounder: FakeGrounder) -> None:
    run("photo.jpg", ".", CAPTION, "--limit", "1", "--out", "out")
    before = Path("out/groundings.jsonl").read_bytes()
    status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out", "--decode", "viterbi")
    assert status == 2
    assert "out holds groundings of fake by consensus, not of fake by viterbi; choose another folder" in err
    assert Path("out/groundings.jsonl").read_bytes() == before
    assert len(list(Path("out").glob("*.png"))) == 1


@pytest.mark.parametrize(
    ("options", "other"), [(["--decode", "viterbi"], "viterbi"), (["--compare"], "consensus beside independent")]
)
def test_another_way_is_refused_even_if_all_is_there(run: Run, options: list[str], other: str) -> None:
    assert run("photo.jpg", "other.png", CAPTION, "--out", "out")[0] == 0
    status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out", *options)
    assert status == 2
    assert f"out holds groundings of fake by consensus, not of fake by {other};" in err
    assert run("photo.jpg", "other.png", CAPTION, "--out", "out2", *options)[0] == 0
    assert run("photo.jpg", "other.png", CAPTION, "--out", "out2", *options)[0] == 0


@pytest.mark.parametrize("end", ["\n", "", "\nhalf"])
@pytest.mark.parametrize("line", ["[1]", "{}", '{"image": 1}', "nonsense"])
def test_a_file_of_something_else_is_left_alone(run: Run, line: str, end: str) -> None:
    Path("out").mkdir()
    Path("out/groundings.jsonl").write_text(line + end)
    status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out")
    assert (status, err.count("\n")) == (2, 1)
    assert "out/groundings.jsonl:1: " in err
    assert Path("out/groundings.jsonl").read_text() == line + end


@pytest.mark.parametrize("content", ['{"image": {"path": "x', "", None])
def test_a_link_in_place_of_the_lines_is_refused(run: Run, content: str | None) -> None:
    Path("out").mkdir()
    if content is not None:
        Path("other.jsonl").write_text(content)
    Path("out/groundings.jsonl").symlink_to(Path("other.jsonl").absolute())
    status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out")
    assert (status, err) == (2, "phrasechain: out/groundings.jsonl: not a plain file; choose another folder\n")
    assert (Path("other.jsonl").read_text() if Path("other.jsonl").exists() else None) == content


def test_photos_that_cannot_be_read_are_listed_with_the_others_of_a_folder(run: Run) -> None:
    Path("photos").mkdir()
    write_photo(Path("photos/a.jpg"))
    Path("photos/b.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    Path("photos/c.avif").write_bytes(b"\0\0\0\x18ftypavif\0\0\0\0mif1avif")
    Path("photos/d.png").touch()
    status, _, err = run("photos", CAPTION, "--out", "out")
    assert (status, len(records())) == (1, 1)
    assert [line.split(":")[0] for line in err.splitlines()] == [
        f"skipped photos/{name}" for name in ("b.heic", "c.avif", "d.png")
    ]
    assert "pip install pillow-heif" in err


def test_parts_make_the_whole(run: Run) -> None:
    lines = [f"{name}\ta dog {number}\n" for number in range(2) for name in ("photo.jpg", "other.png", "third.jpg")]
    write_photo(Path("third.jpg"))
    Path("captions.tsv").write_text("".join(lines))
    run("--captions", "captions.tsv", "--out", "whole")
    for part in (1, 2, 3):
        assert run("--captions", "captions.tsv", "--out", f"part-{part}", "--shard", f"{part}/3")[0] == 0
    parts = [line for part in (1, 2, 3) for line in Path(f"part-{part}/groundings.jsonl").read_text().splitlines()]
    assert sorted(parts) == sorted(Path("whole/groundings.jsonl").read_text().splitlines())
    names = [path.name for part in (1, 2, 3) for path in Path(f"part-{part}").glob("*.png")]
    assert sorted(names) == sorted(path.name for path in Path("whole").glob("*.png"))
    homes = [{record["image"]["path"] for record in records(f"part-{part}")} for part in (1, 2, 3)]  # type: ignore[index]
    assert sum(map(len, homes)) == 3  # all captions of a photo are in one part


def test_limit(run: Run, grounder: FakeGrounder) -> None:
    run("photo.jpg", "other.png", CAPTION, "--json", "--limit", "1")
    assert grounder.asked == [("photo.jpg", CAPTION)]


def test_one_process_at_a_time(run: Run) -> None:
    from filelock import FileLock

    Path("out").mkdir()
    with FileLock("out/.lock"):
        status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out")
    assert (status, err.count("\n")) == (2, 1)
    assert "another process is writing there" in err


def test_a_full_disk_ends_the_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phrasechain.grounding.folder.write_atomically", full)
    status, _, err = run("photo.jpg", "other.png", CAPTION, "--out", "out")
    assert (status, err) == (2, "phrasechain: out: cannot write: No space left on device; fix that and run again\n")
    assert records() == []


def test_the_same_pair_twice_is_one(run: Run, grounder: FakeGrounder) -> None:
    Path("captions.tsv").write_text("photo.jpg\ta dog\nphoto.jpg\ta ball\nphoto.jpg\ta dog\n")
    out = run("--captions", "captions.tsv", "--out", "out")[1]
    assert len(records()) == len(grounder.asked) == 2
    assert counts(out) == {"grounded": 2, "without phrases": 0, "already there": 0, "repeated": 1, "skipped": 0}
    out = run("--captions", "captions.tsv", "--out", "out")[1]
    assert counts(out) == {"grounded": 0, "without phrases": 0, "already there": 2, "repeated": 1, "skipped": 0}
