"""Groundings as JSON, in the documented format."""

import json

import pytest

from phrasechain.core.schema import GroundedPhrase
from phrasechain.grounding.result import PhotoGrounding
from records import FOUND, RECORD


def test_a_grounding_is_written_as_documented() -> None:
    assert FOUND.to_dict() == RECORD
    assert list(FOUND.to_dict()) == list(RECORD)
    assert json.loads(FOUND.to_json()) == RECORD


def test_json_is_one_line_of_ascii_whatever_the_caption_holds() -> None:
    line = PhotoGrounding(None, 1, 1, "a\n\u2028é\udcff", "small", "viterbi").to_json()
    assert line.isascii()
    assert len(line.splitlines()) == 1


def test_a_failure_says_why_and_has_no_phrases() -> None:
    failed = PhotoGrounding("gone.jpg", 0, 0, "a dog", "small", "viterbi", error="gone.jpg: missing")
    assert failed.to_dict()["error"] == "gone.jpg: missing"
    assert failed.to_dict()["phrases"] == []


def test_what_json_cannot_say_is_refused() -> None:
    broken = GroundedPhrase("a dog", 0, 5, "animals", (float("nan"), 0.0, 1.0, 1.0), 0.5)
    with pytest.raises(ValueError, match="JSON compliant"):
        PhotoGrounding(None, 1, 1, "a dog", "small", "viterbi", (broken,)).to_json()
