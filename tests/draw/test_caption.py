"""The wrapped caption says what the caption says, in lines that fit, each phrase in one piece per line."""

from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from phrasechain.draw.caption import Cell, CharSpan, caption_lines, caption_strip, strip_margin
from phrasechain.draw.colours import PALETTE, WHITE
from phrasechain.draw.font import ELLIPSIS, advance, shown
from phrasechain.draw.frames import chip_size

FONT_SIZE = 14
MANY = 10_000


@st.composite
def captions(draw: st.DrawFn) -> tuple[str, list[CharSpan]]:
    """A caption of any signs, surrogates and controls among them, and spans that do not overlap."""
    caption = draw(st.text(st.one_of(st.sampled_from("abw .  \n"), st.characters(exclude_categories=())), max_size=120))
    ends = sorted(draw(st.sets(st.integers(0, len(caption)), max_size=10)))
    return caption, list(zip(ends[::2], ends[1::2], strict=False))


def width(run: Cell) -> int:
    return advance(run.text, FONT_SIZE) if run.phrase is None else chip_size(run.text, FONT_SIZE)[0]


def letters_of(lines: list[list[Cell]], phrase: int | None) -> str:
    return "".join(run.text for line in lines for run in line if run.phrase == phrase).replace(" ", "")


@given(captions(), st.integers(60, 400))
@example(("0 00000¼", [(0, 3)]), 60)  # what is carried over does not fit into one line either
def test_lines_fit_and_every_letter_stays_with_its_phrase(marked: tuple[str, list[CharSpan]], room: int) -> None:
    caption, spans = marked
    lines = caption_lines(caption, spans, room, FONT_SIZE, MANY, {})
    assert all(sum(map(width, line)) <= room for line in lines)
    assert all(line[0].text[:1] != " " and line[-1].text[-1:] != " " for line in lines)
    whole = "".join(run.text for line in lines for run in line)
    assert whole.replace(" ", "") == "".join(map(shown, caption)).replace(" ", "")
    for number, (start, end) in enumerate(spans):
        assert letters_of(lines, number) == "".join(map(shown, caption[start:end])).replace(" ", "")


@given(captions(), st.integers(60, 400), st.integers(0, 3))
def test_too_many_lines_end_with_an_ellipsis(marked: tuple[str, list[CharSpan]], room: int, most: int) -> None:
    full = caption_lines(*marked, room, FONT_SIZE, MANY, {})
    cut = caption_lines(*marked, room, FONT_SIZE, most, {})
    assert len(cut) == min(most, len(full))
    assert all(sum(map(width, line)) <= room for line in cut)
    if 0 < most < len(full):
        assert cut[:-1] == full[: most - 1]
        assert cut[-1][-1].text.endswith(ELLIPSIS)
        last = "".join(run.text for run in cut[-1]).removesuffix(ELLIPSIS)
        assert "".join(run.text for run in full[most - 1]).startswith(last)
    else:
        assert cut == full[:most]


def test_words_are_kept_whole_and_long_ones_are_cut() -> None:
    room = advance("a dog", FONT_SIZE)
    assert caption_lines("a dog runs", [], room, FONT_SIZE, MANY, {}) == [[Cell("a dog", None)], [Cell("runs", None)]]
    long = caption_lines("x" * 100, [], 10 * advance("x", FONT_SIZE), FONT_SIZE, MANY, {})
    assert long == [[Cell("x" * 10, None)]] * 10


def test_spans_count_code_points() -> None:
    lines = caption_lines("🐕\u200d🦺 e\u0301 a ball.", [(6, 13)], 400, FONT_SIZE, MANY, {})
    assert lines == [[Cell("🐕🦺 e", None), Cell(" a ball", 0), Cell(".", None)]]


def test_marks_stand_before_their_phrase_alone() -> None:
    lines = caption_lines("a dog and a cat", [(0, 5), (10, 15)], 400, FONT_SIZE, MANY, {1: "*2"})
    assert lines == [[Cell("a dog", 0), Cell(" and ", None), Cell("*2 a cat", 1)]]


def strip(caption: str, spans: list[CharSpan]) -> Image.Image:
    return caption_strip(caption, spans, 300, FONT_SIZE, 12, {})


def colour_bounds(image: Image.Image, colour: tuple[int, ...]) -> tuple[int, int]:
    """The first and the last column in which the colour occurs."""
    columns = [x for x in range(image.width) for y in range(image.height) if image.getpixel((x, y)) == colour]
    return min(columns), max(columns)


def test_phrases_lie_on_chips_of_their_colours_in_reading_order() -> None:
    picture = strip("a dog and a cat", [(0, 5), (10, 15)])
    first, second = (colour_bounds(picture, colour) for colour in PALETTE[:2])
    margin, chip = strip_margin(FONT_SIZE), chip_size("a dog", FONT_SIZE)[0]
    assert first == (margin, margin + chip - 1)
    assert first[1] < second[0]


def test_a_caption_from_right_to_left_starts_at_the_right() -> None:
    picture = strip("כלב ו חתול", [(0, 3), (6, 10)])
    first, second = (colour_bounds(picture, colour) for colour in PALETTE[:2])
    assert first[1] == 300 - strip_margin(FONT_SIZE) - 1
    assert second[1] < first[0]


def test_nothing_to_show_takes_no_room() -> None:
    assert strip("", []).size == strip(" \n\t\u200b", []).size == (300, 0)
    plain = strip("a", [])
    assert plain.height >= chip_size("a", FONT_SIZE)[1]
    assert plain.getpixel((0, 0)) == WHITE
