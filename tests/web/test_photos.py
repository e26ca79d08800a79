"""Photos are kept for a while, a bounded number of them, without their pixels."""

from pathlib import Path

import pytest

from phrasechain.grounding.grounder import Grounder
from phrasechain.web.errors import ApiError
from phrasechain.web.photos import PhotoStore


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_longest_unused_goes_first(grounder: Grounder, picture: Path) -> None:
    clock = Clock()
    store, photo = PhotoStore(2, 60.0, clock), grounder.encode(picture)
    first, second = store.add(photo), store.add(photo)
    assert store.get(first).source is None, "no pixels are kept"
    third = store.add(photo)
    assert len(store) == 2
    with pytest.raises(ApiError, match="send it again") as caught:
        store.get(second)
    assert caught.value.status == 404
    clock.now = 59.0
    store.get(third)
    clock.now = 61.0
    with pytest.raises(ApiError):
        store.get(first)
    assert (len(store), store.get(third).regions) == (1, photo.regions)
    clock.now = 200.0
    assert len(store) == 0


def test_an_id_cannot_be_guessed(grounder: Grounder, picture: Path) -> None:
    store, photo = PhotoStore(100, 60.0), grounder.encode(picture)
    names = {store.add(photo) for _ in range(50)}
    assert len(names) == 50
    assert {len(name) for name in names} == {24}, "18 random bytes"
