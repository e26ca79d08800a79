"""The linear program against every matching of small problems."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phrasechain.baselines.matching import (
    Array,
    Relation,
    assign,
    best_regions,
    gold_assignment,
    match,
    solve_program,
)


def score_of(path: tuple[int, ...], scores: Array, relations: list[Relation]) -> float:
    total = sum(scores[t, k] for t, k in enumerate(path))
    for each in relations:
        i, j = (each.left_regions == path[each.left]), (each.right_regions == path[each.right])
        total += float(each.scores[i][:, j].sum())
    return total


def brute_force(scores: Array, relations: list[Relation]) -> float:
    T, K = scores.shape
    return max(score_of(path, scores, relations) for path in itertools.permutations(range(K), T))


def make_relation(rng: np.random.Generator, left: int, right: int, K: int, weight: float) -> Relation:
    lists = [rng.permutation(K)[: rng.integers(1, K + 1)] for _ in range(2)]
    return Relation(left, right, *lists, weight * rng.random((len(lists[0]), len(lists[1]))))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), T=st.integers(1, 4), spare=st.integers(0, 3))
def test_without_relations_it_is_the_best_assignment(seed: int, T: int, spare: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(T, T + spare))
    wanted = brute_force(scores, [])
    for found in (match(scores), solve_program(scores, ())):
        assert found.score == pytest.approx(wanted, abs=1e-7)
        assert found.is_integral
        assert len(set(best_regions(found, scores).tolist())) == T


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6), T=st.integers(2, 4), spare=st.integers(0, 2), weight=st.sampled_from([0.1, 1.0, 4.0])
)
def test_with_relations_it_is_at_least_brute_force_and_equal_where_integral(
    seed: int, T: int, spare: int, weight: float
) -> None:
    rng = np.random.default_rng(seed)
    K = T + spare
    scores = rng.normal(size=(T, K))
    relations = [make_relation(rng, left, left + 1, K, weight) for left in range(T - 1)]
    found, wanted = match(scores, relations), brute_force(scores, relations)
    assert found.score >= wanted - 1e-7
    path = tuple(best_regions(found, scores).tolist())
    assert len(set(path)) == T
    if found.is_integral and all((z.round() == z.round(6)).all() for z in found.z):
        assert found.score == pytest.approx(wanted, abs=1e-6)
        assert score_of(path, scores, relations) == pytest.approx(wanted, abs=1e-6)


def test_solutions_are_integral_for_the_most_part() -> None:
    rng = np.random.default_rng(0)
    problems = [(rng.normal(size=(3, 6)), [make_relation(rng, 0, 2, 6, 0.1)]) for _ in range(50)]
    solved = [match(*problem) for problem in problems]
    assert sum(each.is_integral for each in solved) >= 45
    for (scores, relations), each in zip(problems, solved, strict=True):
        assert each.score == pytest.approx(brute_force(scores, relations), abs=1e-6) or not each.is_integral


def test_variables_left_out_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from phrasechain.baselines import matching

    rng = np.random.default_rng(1)
    problems = []
    for _ in range(10):
        scores = rng.normal(size=(3, 30))
        lists = [np.argsort(-scores[t])[:10] for t in (0, 1)]
        problems.append((scores, [Relation(0, 1, *lists, 0.5 * rng.random((10, 10)))]))
    short = [match(*problem).score for problem in problems]
    monkeypatch.setattr(matching, "_kept", lambda scores, relations: np.ones_like(scores, dtype=bool))
    assert short == pytest.approx([match(*problem).score for problem in problems], abs=1e-7)


def test_more_phrases_than_regions_share_them() -> None:
    scores = np.array([[1.0, 0.0], [3.0, 2.0], [0.0, 1.0]])
    assert assign(scores)[1].tolist() == [0, 0, 1]
    relation = Relation(0, 1, np.array([0, 1]), np.array([0, 1]), np.array([[0.0, 0.5], [0.0, 0.0]]))
    found = match(scores, [relation])
    assert found.score == pytest.approx(5.0)
    assert best_regions(found, scores).tolist() == [0, 0, 1]


def test_gold_is_a_matching_of_most_phrases_then_of_highest_overlap() -> None:
    iou = np.array([[0.9, 0.6, 0.0], [0.8, 0.0, 0.0], [0.7, 0.4, 0.3]])
    assert gold_assignment(iou, 0.5).tolist() == [1, 0, -1]
    assert gold_assignment(np.array([[0.2, 0.3]]), 0.5).tolist() == [-1]
    assert sorted(gold_assignment(np.full((3, 2), 0.9), 0.5).tolist()) == [-1, 0, 1]
