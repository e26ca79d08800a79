"""spaCy's noun chunks as phrases; spaCy itself is played by objects of the same form."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from phrasechain.errors import DataError
from phrasechain.schema import CATEGORIES
from phrasechain.text.finder import PhraseFinder
from phrasechain.text.spacy_finder import DEFAULT_MODEL, SpacyFinder

TEXT = "She sees a red-haired man's dog and a big dog."


def chunk(text: str, pos: str = "NOUN") -> SimpleNamespace:
    start = TEXT.index(text)
    return SimpleNamespace(start_char=start, end_char=start + len(text), root=SimpleNamespace(pos_=pos))


@pytest.fixture
def own() -> PhraseFinder:
    torch.manual_seed(0)
    return PhraseFinder(("a",), word_dimension=4, buckets=8, ngram_dimension=4, hidden=4).eval()


def test_chunks_become_phrases_with_our_categories(own: PhraseFinder) -> None:
    """Pronouns go, a cut word is made whole, and of chunks that then overlap the first stays."""
    chunks = [chunk("She", "PRON"), chunk("haired man's"), chunk("red"), chunk("a big dog")]
    found = SpacyFinder(lambda _: SimpleNamespace(noun_chunks=iter(chunks)), own).find(TEXT)
    assert [phrase.text for phrase in found] == ["red-haired man's", "a big dog"]
    assert [(phrase.first_token, phrase.end_token) for phrase in found] == [(3, 6), (8, 11)]
    assert all(phrase.category in CATEGORIES for phrase in found)


def test_a_text_without_chunks(own: PhraseFinder) -> None:
    assert SpacyFinder(lambda _: SimpleNamespace(noun_chunks=iter(())), own).find("") == []


def test_a_pipeline_is_loaded_by_its_name(own: PhraseFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: str, exclude: list[str]) -> Any:
        if model != DEFAULT_MODEL:
            raise OSError(f"[E050] Can't find model '{model}'.\nIt doesn't seem to be a Python package.")
        return lambda text: SimpleNamespace(noun_chunks=iter([chunk("a big dog")]))

    fake = ModuleType("spacy")
    fake.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", fake)
    assert [phrase.text for phrase in SpacyFinder.from_pretrained(finder=own).find(TEXT)] == ["a big dog"]
    with pytest.raises(DataError, match=r"cannot load 'xx' \(python -m spacy download xx\): \[E050\]") as caught:
        SpacyFinder.from_pretrained("xx", own)
    assert "\n" not in str(caught.value)


def test_without_spacy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(DataError, match="spaCy is not installed: pip install spacy, or use the embedded phrase finder"):
        SpacyFinder.from_pretrained()


def test_a_pipeline_without_a_parser_is_refused(own: PhraseFinder) -> None:
    class Unparsed:
        @property
        def noun_chunks(self) -> None:
            raise ValueError("[E029] `noun_chunks` requires the dependency parse,\nwhich requires a model.")

    with pytest.raises(DataError, match=r"finds no noun chunks: \[E029\]") as caught:
        SpacyFinder(lambda _: Unparsed(), own).find(TEXT)
    assert "\n" not in str(caught.value)
