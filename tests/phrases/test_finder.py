"""The phrase finder: what it finds, what it says about given spans, and its file."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, save_file

from phrasechain.core.errors import DataError
from phrasechain.core.schema import CATEGORIES, NOT_VISUAL
from phrasechain.data.markup import parse_caption
from phrasechain.phrases import finder as module
from phrasechain.phrases.finder import CLASSES, LABELS, PhraseFinder, begin, inside, phrases_of
from phrasechain.phrases.given import locate_phrases
from phrasechain.text.tokens import Span, tokenise
from phrasechain.text.vectors import WordVectors
from phrasechain.training.finder.sentences import as_written, tag_sentence

SMALL = {"word_dimension": 12, "buckets": 64, "ngram_dimension": 8, "hidden": 16}
LINES = (
    "[/EN#1/people A man] in [/EN#2/clothing a red hat] pets [/EN#3/animals a dog] .",
    "[/EN#1/animals The dog] chases [/EN#2/other a ball] .",
    "[/EN#1/people Two women] do [/EN#0/notvisual a trick] on [/EN#2/scene the street] .",
    "[/EN#1/people The man] throws [/EN#2/other a red ball] .",
    "[/EN#1/clothing A hat] on [/EN#2/animals a dog] , [/EN#3/people two women] .",
)


def random_finder(seed: int = 0, scale: float = 1.0) -> PhraseFinder:
    torch.manual_seed(seed)
    finder = PhraseFinder(("a", "man", "dog"), **SMALL).eval()
    with torch.no_grad():
        finder.emissions.weight.mul_(10 * scale)
        finder.tagger.transitions.normal_(std=scale)
        finder.tagger.start.normal_(std=scale)
        finder.tagger.end.normal_(std=scale)
    return finder


@pytest.fixture(scope="module")
def taught() -> PhraseFinder:
    """A finder that knows the sentences above."""
    torch.manual_seed(0)
    lessons = [tag_sentence(as_written(parse_caption(line))) for line in LINES]
    words = sorted({token.lower() for lesson in lessons for token in lesson.tokens})
    finder = PhraseFinder(words, **SMALL, word_dropout=0.1)
    optimizer = torch.optim.Adam(finder.parameters(), 0.02)
    labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(lesson.labels) for lesson in lessons], batch_first=True)
    for _ in range(80):
        optimizer.zero_grad()
        finder([lesson.tokens for lesson in lessons]).nll(labels).sum().backward()
        optimizer.step()
    return finder.eval()


# ---- finding ----


def test_phrases_are_found_in_the_text_as_it_is_written(taught: PhraseFinder) -> None:
    text = "A man in  a RED hat pets a dog."
    phrases = taught.find(text)
    assert [(phrase.text, phrase.category) for phrase in phrases] == [
        ("A man", "people"),
        ("a RED hat", "clothing"),
        ("a dog", "animals"),
    ]
    tokens = tokenise(text)
    for phrase in phrases:
        assert text[phrase.start : phrase.end] == phrase.text
        assert (phrase.start, phrase.end) == (tokens[phrase.first_token].start, tokens[phrase.end_token - 1].end)


def test_what_cannot_be_seen_is_left_out(taught: PhraseFinder) -> None:
    text = "Two women do a trick on the street."
    [labels] = taught.label([[token.text for token in tokenise(text)]])
    assert NOT_VISUAL in [name for _, _, name in phrases_of(labels)]
    assert [phrase.text for phrase in taught.find(text)] == ["Two women", "the street"]


@pytest.mark.parametrize("text", ["", "  \n", "\u200b", "\x00"])
def test_nothing_is_found_in_nothing(taught: PhraseFinder, text: str) -> None:
    assert taught.find(text) == []


@given(st.text(st.one_of(st.sampled_from("aman dog.,'"), st.characters()), max_size=60))
def test_any_text_has_phrases_of_whole_tokens_in_order(text: str) -> None:
    phrases = FINDER.find(text)
    ends = [0]
    for phrase in phrases:
        assert text[phrase.start : phrase.end] == phrase.text != ""
        assert phrase.category in CATEGORIES
        assert ends[-1] <= phrase.first_token < phrase.end_token
        ends.append(phrase.end_token)


FINDER = random_finder(3)


def test_labels_follow_the_rules() -> None:
    tokens = [["a", "man"] * 20, ["dog", "x", "?"] * 9]
    for seed in range(5):
        for row in random_finder(seed, 3.0).label(tokens):
            for before, label in zip([0, *row], row, strict=False):
                if label and label % 2 == 0:
                    assert before in (label - 1, label)


def test_a_batch_is_its_captions_one_by_one() -> None:
    captions = [["a", "dog"], [], ["A", "man", "unknown", "?"], ["DOG"], ["x"] * 7]
    assert FINDER.label(captions) == [FINDER.label([caption])[0] for caption in captions]
    assert [len(row) for row in FINDER.label(captions)] == [2, 0, 4, 1, 7]
    full = [caption for caption in captions if caption]
    together = FINDER(full).log_partition
    alone = torch.cat([FINDER([caption]).log_partition for caption in full])
    torch.testing.assert_close(together, alone)


def test_2000_tokens_are_labelled() -> None:
    assert len(FINDER.label([["dog"] * 2000])[0]) == 2000


def test_words_are_looked_up_in_lower_case_and_signs_in_ascii() -> None:
    ids = FINDER._token_ids([["Dog", "DOG", "dog", "ｄｏｇ", "dogs", "’", "'"]])
    assert ids.words.tolist() == [[3, 3, 3, 3, 0, 0, 0]]
    shapes = ids.shapes[0].tolist()
    assert shapes[5] == shapes[6]
    assert len({*shapes[:3], shapes[5]}) == 4
    assert shapes[2] == shapes[3] == shapes[4]


@pytest.mark.parametrize(
    "kind", ["a man é", "! ... 🐕", "3 42", "3rd mp3 B2", "A Z", "TV T-SHIRT", "Tom"], ids=lambda kind: kind.split()[0]
)
def test_tokens_of_a_shape(kind: str) -> None:
    shapes = {module._features(token, 8)[1] for token in kind.split()}
    assert len(shapes) == 1
    assert shapes != {module._features("iPod", 8)[1]}


def test_word_dropout_is_for_training_alone() -> None:
    finder = PhraseFinder(("a",), **SMALL, word_dropout=0.5)
    torch.manual_seed(0)
    first, second = (finder([["a"] * 30]).log_partition for _ in range(2))
    assert not torch.equal(first, second)
    finder.eval()
    assert torch.equal(finder([["a"] * 30]).log_partition, finder([["a"] * 30]).log_partition)


# ---- given spans ----


def all_paths(finder: PhraseFinder, words: list[str]) -> dict[tuple[int, ...], float]:
    """The probability of every label sequence that the rules allow, in float64, one by one."""
    with torch.no_grad():
        emissions = finder._emissions([words])[0][0].double().numpy()
    tagger = finder.tagger
    transitions, start, end = (x.detach().double().numpy() for x in (tagger.transitions, tagger.start, tagger.end))
    scores = {}
    for labels in product(range(len(LABELS)), repeat=len(words)):
        if not any(
            label and label % 2 == 0 and before not in (label - 1, label) for before, label in pairwise((0, *labels))
        ):
            score = start[labels[0]] + end[labels[-1]] + sum(emissions[t, label] for t, label in enumerate(labels))
            scores[labels] = score + sum(transitions[before, label] for before, label in pairwise(labels))
    total = np.logaddexp.reduce(list(scores.values()))
    return {labels: float(np.exp(score - total)) for labels, score in scores.items()}


def slow_category(paths: dict[tuple[int, ...], float], first: int, end: int) -> tuple[str, bool]:
    """The rule, from all paths; and whether the best one has a phrase there."""
    for one, stop, name in phrases_of(max(paths, key=lambda labels: paths[labels])):
        if name != NOT_VISUAL and one < end and stop > first:
            return name, True
    mass = {
        name: sum(
            p * sum(label in (begin(name), inside(name)) for label in path[first:end]) for path, p in paths.items()
        )
        for name in CATEGORIES
    }
    return max(mass, key=lambda name: mass[name]), False


def test_categories_of_given_spans_are_those_of_all_paths() -> None:
    text, words = "a dog ran", ["a", "dog", "ran"]
    tokens, kinds = tokenise(text), set()
    for seed in range(8):
        finder = random_finder(seed)
        paths = all_paths(finder, words)
        for first, end in [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)]:
            [phrase] = finder.categorise(text, [Span(tokens[first].start, tokens[end - 1].end, first, end)])
            category, seen = slow_category(paths, first, end)
            assert phrase.category == category
            assert (phrase.first_token, phrase.end_token) == (first, end)
            assert text[phrase.start : phrase.end] == phrase.text
            kinds.add(seen)
    assert kinds == {True, False}


def test_given_phrases_have_the_categories_that_were_learnt(taught: PhraseFinder) -> None:
    text = "A man in a red hat pets a dog."
    found = taught.categorise(text, locate_phrases(text, ["man", "hat", "a dog"]))
    assert [(phrase.text, phrase.category) for phrase in found] == [
        ("man", "people"),
        ("hat", "clothing"),
        ("a dog", "animals"),
    ]
    [phrase] = taught.categorise(text, locate_phrases(text, ["A man in a red hat"]))
    assert phrase.category == "people"
    assert taught.categorise(text, []) == []


# ---- beginning with given vectors ----


def test_given_vectors_are_kept_up_to_a_rotation_and_a_scale() -> None:
    rng = np.random.default_rng(0)
    vectors = WordVectors(("dog", "absent", "a", "man"), rng.normal(size=(4, 5)).astype(np.float32))
    finder = PhraseFinder(("a", "man", "dog"), **SMALL)
    finder.begin_with(vectors)
    own = finder.word_vectors.weight[[3, 1, 2]].detach().numpy()[:, :4]  # four centred vectors span three dimensions
    centred = (vectors.vectors - vectors.vectors.mean(0))[[0, 2, 3]]
    ratio = (own @ own.T) / (centred @ centred.T)
    np.testing.assert_allclose(ratio, np.full((3, 3), ratio[0, 0]), rtol=1e-3)


# ---- files ----


def test_a_file_gives_the_same_finder_and_has_the_same_bytes(tmp_path: Path) -> None:
    """In every process, whatever the order of its sets is."""
    path = tmp_path / "finder.safetensors"
    FINDER.save(path)
    program = (
        "import sys; from pathlib import Path; from phrasechain.phrases.finder import PhraseFinder;"
        "PhraseFinder.load(Path(sys.argv[1])).save(Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", program, path, tmp_path / "again"], check=True, env={"PYTHONHASHSEED": "7"})
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    before = torch.get_rng_state()
    loaded = PhraseFinder.from_pretrained(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert not loaded.training
    assert loaded.words == FINDER.words
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, dict(FINDER.named_parameters())[name].half().float()), name
    assert all(tensor.dtype == torch.float16 for tensor in load(path.read_bytes()).values())


def test_an_installation_without_weights_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "files", lambda _: tmp_path)
    with pytest.raises(
        DataError, match=r"finder\.safetensors: missing from this installation; .*give the phrases yourself"
    ):
        PhraseFinder.from_pretrained()
    FINDER.save(tmp_path / "finder.safetensors")
    assert PhraseFinder.from_pretrained().words == FINDER.words


def broken_files() -> Iterator[tuple[str, str, object]]:
    yield "other labels", "not a phrase finder of this version", {"labels": ["O"]}
    yield (
        "other format",
        r"not a phrase finder of this version \(phrasechain finder 0, not phrasechain finder 1\)",
        {"format": "phrasechain finder 0"},
    )
    yield "no words", "its vocabulary is no list of words", {"words": "abc"}
    yield "word of another kind", "its vocabulary is no list of words", {"words": ["a", 1, "b"]}
    yield "word twice", "a word stands twice", {"words": ["a", "man", "a"]}
    yield (
        "fewer words",
        r"does not fit its shape: word_vectors\.weight has shape \(\d+, \d+\), not \(2, \d+\)",
        {"words": ["a"]},
    )
    yield "huge", "its hidden must be a number from 1 to 1,024", {"shape": {**FINDER.shape, "hidden": 10**9}}
    yield "no number", "its layers must be a number", {"shape": {**FINDER.shape, "layers": True}}
    yield "no shape", "broken phrase finder: ", {"shape": {}}
    yield (
        "more layers",
        r"does not fit its shape: lstm\.bias_hh_l1 has shape none, not",
        {"shape": {**FINDER.shape, "layers": 2}},
    )


@pytest.mark.parametrize(("message", "change"), [pytest.param(*case[1:], id=case[0]) for case in broken_files()])
def test_a_broken_file_is_refused(tmp_path: Path, message: str, change: dict[str, object]) -> None:
    path = tmp_path / "finder.safetensors"
    FINDER.save(path)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["finder"])
    save_file(load(path.read_bytes()), path, {"finder": json.dumps(about | change)})
    with pytest.raises(DataError, match=message) as caught:
        PhraseFinder.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "finder.safetensors"
    FINDER.save(path)
    whole = path.read_bytes()
    with safe_open(path, "pt") as file:
        about = file.metadata()
    infinite = load(path.read_bytes()) | {"emissions.bias": torch.full((len(LABELS),), torch.inf).half()}
    for content in (b"", b"nonsense" * 9, whole[:-9], whole[:50]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="broken phrase finder: "):
            PhraseFinder.load(path)
    save_file(infinite, path, about)
    with pytest.raises(DataError, match=r"broken phrase finder: emissions\.bias is not finite"):
        PhraseFinder.load(path)
    save_file({"x": torch.zeros(1)}, path, {"finder": "[]"})
    with pytest.raises(DataError, match="broken phrase finder: "):
        PhraseFinder.load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(DataError, match="not a phrase finder of this version"):
        PhraseFinder.load(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        PhraseFinder.from_pretrained(str(tmp_path / "absent"))


def test_labels_are_what_files_rely_on() -> None:
    assert LABELS[0] == "O"
    assert [LABELS[begin(name)] for name in CLASSES] == [f"B-{name}" for name in CLASSES]
    assert [LABELS[inside(name)] for name in CLASSES] == [f"I-{name}" for name in CLASSES]
    assert len(LABELS) == 19
