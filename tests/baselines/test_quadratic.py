"""The quadratic program against every choice of regions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.baselines.quadratic import Array, choose, eliminate

Problem = tuple[list[Array], dict[tuple[int, int], Array]]


def cost_of(path: tuple[int, ...] | list[int], costs: list[Array], pairs: dict[tuple[int, int], Array]) -> float:
    own = sum(cost[k] for cost, k in zip(costs, path, strict=True))
    return float(own + sum(table[path[s], path[t]] for (s, t), table in pairs.items()))


def everything(costs: list[Array], pairs: dict[tuple[int, int], Array]) -> dict[tuple[int, ...], float]:
    paths = itertools.product(*(range(len(cost)) for cost in costs))
    return {path: cost_of(path, costs, pairs) for path in paths}


def chain(rng: np.random.Generator, T: int, K: int, weight: float) -> Problem:
    costs = [rng.random(K) for _ in range(T)]
    return costs, {(t, t + 1): weight * rng.random((K, K)) for t in range(T - 1)}


@pytest.mark.parametrize(("weight", "mean", "most", "exact"), [(0.2, 0.002, 0.05, 0.85), (1.0, 0.01, 0.1, 0.5)])
def test_the_gap_to_the_best_of_thirty_regions(weight: float, mean: float, most: float, exact: float) -> None:
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(60):
        (a, b, c), pairs = problem = chain(rng, 3, 30, weight)
        first, second = a[:, None] + pairs[0, 1], pairs[1, 2] + c
        best = (first.min(0) + b + second.min(1)).min()
        worst = (first.max(0) + b + second.max(1)).max()
        gaps.append((cost_of(choose(*problem), *problem) - best) / (worst - best))
    assert min(gaps) > -1e-9
    assert np.mean(gaps) < mean
    assert max(gaps) < most
    assert np.mean(np.array(gaps) < 1e-9) >= exact


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), T=st.integers(1, 4), weight=st.sampled_from([0.0, 0.1, 1.0]), cyclic=st.booleans())
def test_what_is_struck_out_is_in_no_best_choice(seed: int, T: int, weight: float, cyclic: bool) -> None:
    rng = np.random.default_rng(seed)
    costs, pairs = chain(rng, T, 4, weight)
    if cyclic and T > 2:
        pairs[0, T - 1] = weight * rng.random((4, 4))
    every = everything(costs, pairs)
    best = min(every, key=lambda path: every[path])
    neighbours: list[dict[int, Array]] = [{} for _ in costs]
    for (s, t), table in pairs.items():
        neighbours[s][t], neighbours[t][s] = table, table.T
    kept = eliminate(costs, neighbours)
    assert all(k in rows for k, rows in zip(best, kept, strict=True))
    found = cost_of(choose(costs, pairs), costs, pairs)
    assert every[best] - 1e-9 <= found <= every[best] + 0.5 * (max(every.values()) - every[best])
    if weight == 0.0:
        assert found == pytest.approx(every[best])


def test_of_equal_choices_the_one_of_least_own_cost() -> None:
    costs = [np.array([0.5, 0.2]), np.array([0.0])]
    assert choose(costs, {(0, 1): np.array([[0.0], [0.3]])}) == [1, 0]


def test_a_pair_can_turn_what_regions_say() -> None:
    costs = [np.array([0.0, 0.1]), np.array([0.0, 0.1])]
    assert choose(costs, {}) == [0, 0]
    assert choose(costs, {(0, 1): np.array([[1.0, 1.0], [1.0, 0.0]])}) == [1, 1]
