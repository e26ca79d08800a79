from phrasechain.training.finder.sentences import TaggedSentence
from phrasechain.training.finder.steps import FinderBatches


def test_every_epoch_has_every_caption_once_and_alike_ones_together() -> None:
    sentences = [
        (TaggedSentence((f"w{number}",) * (1 + number % 7), (0,) * (1 + number % 7)),) for number in range(100)
    ]
    batches = FinderBatches(sentences, batch=8)
    orders = []
    for epoch in range(2):
        steps = [batches[epoch * batches.per_epoch + place][0] for place in range(batches.per_epoch)]
        seen = [sentence.tokens[0].lower() for step in steps for sentence in step]
        assert sorted(seen) == sorted(f"w{number}" for number in range(100))
        assert sum(len({len(sentence.tokens) for sentence in step}) for step in steps) <= 2 * len(steps)
        orders.append(seen)
    assert orders[0] != orders[1]
    assert batches[3] == FinderBatches(sentences, batch=8)[3]


def test_some_batches_are_paragraphs() -> None:
    sentences = [(TaggedSentence(("a",), (0,)),)] * 800
    batches = FinderBatches(sentences, batch=8, paragraphs=0.2)
    joined = [{len(sentence.tokens) for sentence in batches[step][0]} for step in range(batches.per_epoch)]
    assert {frozenset(sizes) for sizes in joined} == {frozenset({1}), frozenset({4})}
    assert 8 <= joined.count({4}) <= 34


def test_some_captions_are_changed() -> None:
    sentence = TaggedSentence(("A", "man", "runs", "."), (1, 2, 0, 0))
    batches = FinderBatches([(sentence,)] * 800, batch=8, unlike=0.25)
    found = [one for step in range(batches.per_epoch) for one in batches[step][0]]
    usual = sum(" ".join(one.tokens).lower() in ("a man runs .", "a man runs") for one in found)
    assert abs(usual / 800 - 0.75) < 0.05
