"""What is behind a grounding: marginals that are the chain's, and best groundings that differ, against enumeration."""

from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch

from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.errors import DataError
from phrasechain.grounding.explore import details_of
from phrasechain.grounding.grounder import Grounder
from phrasechain.model.batch import Batch
from phrasechain.model.decode import Decoded, chain
from phrasechain.model.scores import Scores
from tiny_grounder import CAPTION, PHRASES, assert_same, tiny_grounder
from tiny_regions import write_photo


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> Grounder:
    return tiny_grounder(tmp_path_factory.mktemp("grounder") / "model")


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photo(tmp_path_factory.mktemp("photos") / "photo.png", seed=7, size=(90, 60))


@pytest.mark.parametrize("decode", ["consensus", "independent"])
def test_the_grounding_is_the_same(grounder: Grounder, photo: Path, decode: str) -> None:
    plain = grounder.ground(photo, CAPTION, PHRASES, decode)
    explored = grounder.explore(photo, CAPTION, PHRASES, decode, k_best=3)
    assert_same(explored.grounding, plain)
    record = explored.to_dict()
    assert [list(phrase)[-1] for phrase in record["phrases"]] == ["marginals"] * 3
    assert len(record["k_best"]) == 3
    assert "k_best" not in grounder.explore(photo, CAPTION, PHRASES).to_dict()


def test_marginals_sum_to_one_but_for_the_least(grounder: Grounder, photo: Path) -> None:
    for regions in grounder.explore(photo, CAPTION, PHRASES).marginals:
        masses = [region.probability for region in regions]
        assert masses == sorted(masses, reverse=True)
        assert 0.9 < sum(masses) < 1.0001


def test_the_best_groundings_are_those_of_enumeration(grounder: Grounder, photo: Path) -> None:
    """Over regions of which no two agree, all sequences, scored one by one."""
    seen: list[tuple[Scores, Batch, Decoded]] = []
    prepared = grounder._prepare(photo, CAPTION, PHRASES, "viterbi")
    options = grounder._check_options("viterbi", 5, None)
    list(grounder._fill([prepared], options, lambda *scored: seen.append(scored)))
    ((scores, batch, decoded),) = seen
    crf = chain(scores, batch)
    likely: list[list[int]] = []  # for each phrase, greedily
    for p, boxes in zip(decoded.probabilities, decoded.refined, strict=True):
        chosen: list[int] = []
        for region in p.argsort(descending=True).tolist():
            if all(iou_xyxy(boxes[region], boxes[other]) < 0.5 for other in chosen) and p[region] > 0:
                chosen.append(region)
        likely.append(chosen)
    sequences = list(product(*likely))
    with torch.inference_mode():
        values = [float(crf.log_prob(torch.tensor([each]))) for each in sequences]
    order = np.argsort(values)[::-1][:5]
    found = details_of(scores, batch, decoded, 5).k_best
    for mine, place in zip(found, order, strict=True):
        assert mine.probability == pytest.approx(np.exp(values[place]), rel=1e-3)
        wanted = [decoded.refined[number, region].tolist() for number, region in enumerate(sequences[place])]
        np.testing.assert_allclose(mine.boxes, wanted, atol=1e-4)
    for one, other in combinations(found, 2):
        assert (iou_xyxy(torch.tensor(one.boxes), torch.tensor(other.boxes)) < 0.5).any()


def test_more_than_there_are(grounder: Grounder, photo: Path) -> None:
    found = grounder.explore(photo, "the dog", ["the dog"], k_best=500)
    assert 1 <= len(found.k_best) < 500


def test_a_caption_without_phrases(grounder: Grounder, photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(grounder.parts.finder), "find", lambda self, text: [])
    found = grounder.explore(photo, "hello", k_best=2)
    assert (found.marginals, found.k_best, found.to_dict()["phrases"]) == ((), (), [])


def test_a_negative_number_is_refused(grounder: Grounder, photo: Path) -> None:
    with pytest.raises(DataError, match="k_best must be 0 or more"):
        grounder.explore(photo, CAPTION, k_best=-1)
