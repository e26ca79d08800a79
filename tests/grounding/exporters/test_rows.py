"""Rows: flat, one for each phrase, all with the same columns."""

from phrasechain.grounding.exporters import EXPORTERS
from phrasechain.grounding.exporters.rows import rows_of
from phrasechain.grounding.result import PhotoGrounding
from records import DOG, FOUND


def test_a_row_is_flat() -> None:
    (row,) = FOUND.to_rows()
    assert row == {
        "image": "photo.jpg",
        "width": 400,
        "height": 300,
        "caption": FOUND.caption,
        "text": "a dog",
        "start": 2,
        "end": 7,
        "category": "animals",
        "probability": 0.75,
        "presence": None,
        "found": True,
        "x0": 1.5,
        "y0": 2.0,
        "x1": 30.0,
        "y1": 40.0,
        "model": "small",
        "decode": "consensus",
    }


def test_many_groundings_are_one_table() -> None:
    failed = PhotoGrounding("gone.jpg", 0, 0, "a dog", "small", "viterbi", error="gone.jpg: missing")
    two = PhotoGrounding(None, 40, 30, "a dog, a dog", "small", "viterbi", (DOG, DOG))
    rows = EXPORTERS["rows"](each.to_dict() for each in (FOUND, failed, two))
    assert [row["image"] for row in rows] == ["photo.jpg", None, None]
    assert len({tuple(row) for row in rows}) == 1


def test_what_a_phrase_says_more_becomes_a_column() -> None:
    record = FOUND.to_dict()
    record["phrases"][0] |= {"presence": 0.25, "found": False}
    assert rows_of([record])[0]["presence"] == 0.25
