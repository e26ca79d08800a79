import pytest

from phrasechain.core.schema import CATEGORIES
from phrasechain.data.class_nouns import NounTable, class_nouns, nouns_of


def test_the_table_has_every_class_once_with_a_known_category() -> None:
    table = class_nouns()
    assert len(table) == 80
    assert {nouns.category for nouns in table.values()} <= set(CATEGORIES)
    assert table["person"].pairs[:2] == (("person", "people"), ("man", "men"))
    for nouns in table.values():
        assert len(set(nouns.pairs)) == len(nouns.pairs), nouns.name
        for singular, plural in nouns.pairs:
            assert singular == singular.strip().lower()
            assert not plural.endswith("mans") or plural == "humans", plural


@pytest.mark.parametrize(
    ("phrase", "classes", "may_be_one", "may_be_many"),
    [
        ("a brown dog", ("dog",), True, False),
        ("two hot dogs", ("hot dog",), False, True),
        ("a young tennis player", ("person",), True, False),
        ("a group of people", ("person",), False, True),
        ("his bike", ("bicycle", "motorcycle"), True, False),
        ("a flock of sheep", ("sheep",), True, True),
        ("the stop sign", ("stop sign",), True, False),
    ],
)
def test_the_noun_that_ends_a_phrase_counts(
    phrase: str, classes: tuple[str, ...], may_be_one: bool, may_be_many: bool
) -> None:
    found = NounTable(list(class_nouns())).look_up(phrase.split())
    assert found is not None
    assert (found.classes, found.may_be_one, found.may_be_many) == (classes, may_be_one, may_be_many)


def test_what_is_no_class_of_the_file_is_not_found() -> None:
    table = NounTable(["dog", "tree"])
    assert table.look_up(["a", "cat"]) is None
    assert table.look_up([]) is None
    found = table.look_up(["tall", "trees"])
    assert found is not None
    assert found.classes == ("tree",)
    assert nouns_of("tree").category is None
