from pathlib import Path

import pytest

from phrasechain.core.errors import DataError
from phrasechain.training.regions.settings import GOING_ON, Recipe, check_recipe, learning_starts, make_recipe, rate_at

PUBLISHED, NETWORK = Path("imagenet.pth"), Path("regions.safetensors")


def test_the_rate_rises_and_falls() -> None:
    rates = [rate_at(step / 100) for step in range(101)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1)
    assert 0 < peak < 10
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.01)


def test_a_rate_may_stay() -> None:
    assert {rate_at(step / 100, last=1.0) for step in range(5, 101)} == {1.0}
    assert rate_at(-0.1, last=1.0) == 0


def test_the_recipe_follows_from_what_a_run_starts_from() -> None:
    assert make_recipe(PUBLISHED) == Recipe()
    assert make_recipe(NETWORK, dimension=None) == GOING_ON
    assert make_recipe(PUBLISHED, dimension=64, seed=3) == Recipe(dimension=64, seed=3)
    with pytest.raises(DataError, match="--size: a network to go on from keeps its own; leave it out"):
        make_recipe(NETWORK, dimension=None, size=448)


@pytest.mark.parametrize("start", [PUBLISHED, NETWORK])
def test_few_epochs_leave_one_for_the_whole_network(start: Path) -> None:
    for epochs in (1, 2, 3, 4, 20):
        recipe = make_recipe(start, epochs)
        check_recipe(recipe)
        assert recipe.epochs == epochs
        assert learning_starts(recipe)[1] == min(learning_starts(make_recipe(start))[1], epochs - 1)
