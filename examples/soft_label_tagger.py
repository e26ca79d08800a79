"""Train a sequence tagger from the votes of several annotators, and see what soft labels gain.

An artificial language has names that may mean a person or an organisation ("Washington"); each name has its own share
of readers who take it for a person. Five annotators tag every sentence, each reading every name anew. The same model is
trained three times with the same schedule:

- one: on the tags of one annotator;
- majority: on the majority of the five;
- soft: on the distribution of the five votes, with ``crf.kl``.

It is then asked about a sixth reader of new sentences: how surprising that reader's tags are (-log p per word), how
often its likeliest tag is that of most readers, and how far its probability for "person" is from the share of readers
who say so. Run it with ``python examples/soft_label_tagger.py``; it takes about ten seconds on one core.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from phrasechain import ChainCRF, ChainTagger

TAGS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG")
OUTSIDE, BEGIN, INSIDE = range(3)  # the spans, before a reader gives them a type
FORBIDDEN = [(0, 2), (0, 4), (1, 4), (2, 4), (3, 2), (4, 2)]
NAMES, WORDS = 60, 120  # names are the words below NAMES
FOLLOW = torch.tensor([[0.6, 0.4, 0.0], [0.45, 0.1, 0.45], [0.6, 0.1, 0.3]])  # spans: from row to column


def sentences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Words (B, T), spans (B, T) and lengths (B,)."""
    spans = [torch.zeros(count, dtype=torch.int64)]
    for _ in range(length - 1):
        spans.append(torch.multinomial(FOLLOW[spans[-1]], 1, generator=generator)[:, 0])
    found = torch.stack(spans, 1)
    name = torch.randint(NAMES, found.shape, generator=generator)
    other = torch.randint(NAMES // 2, WORDS, found.shape, generator=generator)  # some names are common words too
    words = torch.where(found == BEGIN, name, other)
    return words, found, torch.randint(length // 2, length + 1, (count,), generator=generator)


def person_share(words: Tensor, spans: Tensor) -> Tensor:
    """The share of readers (B, T) who take the name that a word belongs to for a person."""
    share = torch.rand(NAMES, generator=torch.Generator().manual_seed(1))
    found = [torch.zeros(len(words))]
    for t in range(words.shape[1]):
        begins = spans[:, t] == BEGIN
        found.append(torch.where(begins, share[words[:, t].clamp(max=NAMES - 1)], found[-1]))
    return torch.stack(found[1:], 1)


def tags_of_a_reader(spans: Tensor, share: Tensor, generator: torch.Generator) -> Tensor:
    """One reader's tags (B, T): every name is read anew."""
    coin = torch.rand(spans.shape, generator=generator)
    says_person = [torch.zeros(len(spans), dtype=torch.bool)]
    for t in range(spans.shape[1]):
        says_person.append(torch.where(spans[:, t] == BEGIN, coin[:, t] < share[:, t], says_person[-1]))
    return as_tags(spans, torch.stack(says_person[1:], 1))


def as_tags(spans: Tensor, person: Tensor) -> Tensor:
    return torch.where(spans == OUTSIDE, 0, torch.where(person, 0, 2) + spans)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emissions = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, len(TAGS)))
        self.chain = ChainTagger(len(TAGS), forbid=FORBIDDEN)

    def forward(self, words: Tensor, lengths: Tensor) -> ChainCRF:
        crf: ChainCRF = self.chain(self.emissions(words), lengths)
        return crf


def train(words: Tensor, lengths: Tensor, q: Tensor, epochs: int, seed: int) -> Tagger:
    torch.manual_seed(seed)
    model = Tagger()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(words)).split(64):
            optimiser.zero_grad()
            model(words[rows], lengths[rows]).kl(q[rows]).mean().backward()  # a hard label is a one-hot row of q
            optimiser.step()
    return model


@torch.no_grad()
def judge(model: Tagger, words: Tensor, spans: Tensor, lengths: Tensor, generator: torch.Generator) -> list[float]:
    alive = torch.arange(words.shape[1]) < lengths[:, None]
    share = person_share(words, spans)
    reader = tags_of_a_reader(spans, share, generator)
    crf = model(words, lengths)
    surprise = crf.nll(reader).sum() / alive.sum()
    agreed = (crf.smoothing() == as_tags(spans, share > 0.5))[alive].float().mean()
    names = alive & (spans == BEGIN)
    distance = (crf.marginals[..., 1] - share)[names].abs().mean()
    return [float(surprise), 100 * float(agreed), float(distance)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[list[float]]] = {"one": [], "majority": [], "soft": []}
    for seed in range(options.seeds):
        generator = torch.Generator().manual_seed(seed)
        words, spans, lengths = sentences(options.sentences, 12, generator)
        share = person_share(words, spans)
        votes = torch.stack([tags_of_a_reader(spans, share, generator) for _ in range(5)])  # (A, B, T)
        shares = nn.functional.one_hot(votes, len(TAGS)).float().mean(0)  # (B, T, K)
        targets = {
            "one": nn.functional.one_hot(votes[0], len(TAGS)).float(),
            "majority": nn.functional.one_hot(shares.argmax(-1), len(TAGS)).float(),
            "soft": shares,
        }
        test = sentences(2000, 12, generator)
        for name, q in targets.items():
            model = train(words, lengths, q, options.epochs, seed)
            results[name].append(judge(model, *test, torch.Generator().manual_seed(seed)))
    print(f"{'trained on':12}{'-log p(reader)/word':>20}{'likeliest tag right':>21}{'|p(person) - share|':>21}")
    for name, found in results.items():
        surprise, agreed, distance = (sum(column) / len(column) for column in zip(*found, strict=True))
        print(f"{name:12}{surprise:20.3f}{agreed:20.1f}%{distance:21.3f}")


if __name__ == "__main__":
    main()
