"""Rows, tables and tests fit together, and a row that would repeat another says what it needs."""

import pytest

from phrasechain.core.settings import with_texts
from phrasechain.evaluation.predict import InferenceOptions
from phrasechain.training.compare import rows
from phrasechain.training.compare.rows import FIRST, REFERENCE, ROWS, TABLES, TESTS, options_of, unavailable
from tiny_grounding import tiny_config

WORDS = tiny_config()
GLOVE = tiny_config("text.vectors=glove.txt")
ELMO = tiny_config("text.encoder=elmo", "text.options=o.json", "text.weights=w.hdf5", "text.vectors=glove.txt")


def test_every_line_has_its_row_every_row_a_line_and_every_setting_a_key() -> None:
    assert {asked.row for lines in TABLES.values() for asked in lines} == set(ROWS)
    assert {asked.row for pair in TESTS for asked in pair} <= set(ROWS)
    for settings in ROWS.values():
        with_texts(WORDS, settings)
    assert with_texts(WORDS, ROWS[REFERENCE]).model == WORDS.model


def test_names_hold_no_commas() -> None:
    labels = [asked.label for lines in TABLES.values() for asked in lines]
    labels += [asked.label for pair in TESTS for asked in pair]
    assert not [name for name in (*ROWS, *labels) if "," in name]
    for lines in TABLES.values():
        assert len({asked.label for asked in lines}) == len(lines)


def test_table_1_is_the_papers() -> None:
    """In its order, with its figures."""
    found = {asked.row: asked.published for asked in TABLES["Table 1: models"]}
    assert found == {
        "Structured Matching": 42.08,
        "Phrase-Region CCA": 55.85,
        "QRC Net": 65.14,
        "BAN": 69.69,
        "DDPN": 73.3,
        "HL (GloVe)": 71.88,
        "HL": 72.21,
        "SL": 74.29,
        "HL-CCRF": 72.26,
        "SL-CCRF": 74.69,
    }
    assert list(found) == list(FIRST) == list(ROWS)[:10]


def test_the_ways_of_a_row() -> None:
    assert options_of("BAN") == [InferenceOptions(), InferenceOptions("all")]
    assert InferenceOptions(decode="consensus") in options_of("SL-CCRF")
    assert InferenceOptions(box_regression=False) in options_of("SL-CCRF")


def test_hl_with_glove_differs_from_hl_only_by_elmo() -> None:
    reason = unavailable("HL (GloVe)", GLOVE)
    assert reason is not None
    assert reason.startswith("needs ELMo weights for the other rows")
    assert unavailable("HL (GloVe)", ELMO) is None
    assert unavailable("HL (GloVe)", with_texts(ELMO, ["text.vectors="])) == "needs word vectors (text.vectors)"
    settings = with_texts(ELMO, ROWS["HL (GloVe)"]), with_texts(ELMO, ROWS["HL"])
    assert [config.text.encoder for config in settings] == ["words", "elmo"]
    assert (settings[0].loss, settings[0].model) == (settings[1].loss, settings[1].model)


def test_learned_words_differ_only_where_vectors_are_given() -> None:
    assert unavailable("SL-CCRF learned words", GLOVE) is None
    for base in (WORDS, ELMO):
        assert "SL-CCRF again" in str(unavailable("SL-CCRF learned words", base))


def test_systems_without_their_libraries_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "find_spec", lambda name: None)
    assert unavailable("BAN", WORDS) is None
    assert unavailable("Phrase-Region CCA", WORDS) == "needs scipy and sklearn: pip install 'phrasechain[baselines]'"
