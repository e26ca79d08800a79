"""The index gives back the examples, and is not used for another state of the files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phrasechain.core.schema import Example
from phrasechain.data.index import Index, IndexBuilder, IndexedExamples, load_index, save_index
from phrasechain.data.markup import Entity, parse_caption

number = st.floats(-1e6, 1e6)
entities = st.dictionaries(
    st.sampled_from(["1", "2", "x"]),
    st.builds(
        Entity, st.lists(st.tuples(number, number, number, number), max_size=2).map(tuple), st.booleans(), st.booleans()
    ),
)
word = st.text(st.characters(exclude_characters=" []\t\r\n\f\v", codec="utf-8"), min_size=1, max_size=4)
mark_up = st.builds(
    lambda entity, categories, words: f"[/EN#{entity}{categories} {' '.join(words)}]",
    st.sampled_from(["0", "1", "2", "3", "x"]),
    st.sampled_from(["/people", "/people/clothing", "/notvisual"]),
    st.lists(word, min_size=1, max_size=3),
)
lines = st.lists(mark_up | word, max_size=5).map(" ".join)


@st.composite
def examples(draw: st.DrawFn) -> list[Example]:
    known = draw(entities)
    count = draw(st.integers(0, 3))
    return [
        Example(
            str(image),
            draw(st.sampled_from([None, Path("photo.jpg")])),
            draw(st.integers(1, 10**6)),
            draw(st.integers(1, 10**6)),
            tuple(parse_caption(line, index, known) for index, line in enumerate(draw(st.lists(lines, max_size=3)))),
        )
        for image in range(count)
    ]


@given(examples())
def test_examples_come_back_from_the_bytes(wanted: list[Example]) -> None:
    builder = IndexBuilder()
    for example in wanted:
        builder.add(example)
    builder.add_problem("7", "broken")
    index = Index.from_bytes(builder.build().to_bytes())
    photos = {example.image: str(example.path) for example in wanted if example.path}
    ids = [example.image for example in wanted]
    assert list(IndexedExamples(index, ids, photos)) == wanted
    assert list(IndexedExamples(index, ["none", *reversed(ids)], photos)) == wanted[::-1]
    assert index.problems == [("7", "broken")]


def test_an_index_of_another_state_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "x.index"
    save_index(path, "state 1", IndexBuilder().build())
    assert load_index(path, "state 1") is not None
    assert load_index(path, "state 2") is None
    assert load_index(tmp_path / "none.index", "state 1") is None


def test_positions_past_the_end_are_refused() -> None:
    with pytest.raises(IndexError):
        IndexedExamples(IndexBuilder().build(), [], {})[0]
