"""Judge region features by what they are for: a small soft-label grounder, one pass over `fit`, accuracy on `dev`.

    python benchmarks/judge_regions.py DATA --glove GLOVE.txt.gz STORE [STORE…]

Each store must hold the train split. The grounder (words, a BiLSTM, low-rank fusion, KL to soft labels, box
regression, no chain) is the same for all, so that differences are the features'. With --fit-store the grounder is
fitted on one store and scored on another one of the same dimension.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phrasechain.boxes import decode_offsets_xyxy, iou_xyxy
from phrasechain.data.batch import Batch, collate, positive_pairs, soft_targets
from phrasechain.data.dataset import load_examples
from phrasechain.data.store import FeatureStore
from phrasechain.memory import keep_freed_memory
from phrasechain.schema import Example

WORDS, LSTM, RANK, JOINT, DROPOUT, RATE, IMAGES = 100, 200, 384, 192, 0.2, 2e-3, 4


class Judge(nn.Module):
    def __init__(self, index: dict[str, int], vectors: Tensor, dimension: int) -> None:
        super().__init__()
        self.index = index
        self.embed = nn.Embedding.from_pretrained(vectors, freeze=False)
        self.lstm = nn.LSTM(WORDS, LSTM, batch_first=True, bidirectional=True)
        self.phrase, self.region = nn.Linear(2 * LSTM, RANK), nn.Linear(dimension + 5, RANK)
        self.joint, self.say = nn.Linear(RANK, JOINT), nn.Linear(JOINT, 5)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Scores (P, K) and offsets (P, K, 4)."""
        lengths = torch.tensor([len(tokens) for tokens in batch.tokens])
        numbers = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.int64)
        for row, tokens in enumerate(batch.tokens):
            numbers[row, : len(tokens)] = torch.tensor([self.index.get(token.lower(), 0) for token in tokens])
        words = F.dropout(self.embed(numbers), DROPOUT, self.training)
        packed = nn.utils.rnn.pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # (B, L, 2·LSTM)
        first, end = batch.token_spans.unbind(-1)
        caption = batch.phrase_caption
        phrase = torch.cat((states[caption, end - 1, :LSTM], states[caption, first, LSTM:]), -1)
        features = torch.cat((F.normalize(batch.features.float(), dim=-1) * 8, batch.spatial), -1)
        regions = F.dropout(self.region(features), DROPOUT, self.training)  # (I, K, RANK)
        joint = F.relu(self.joint(torch.tanh(self.phrase(phrase))[:, None] * regions[batch.phrase_image]))
        said = self.say(F.dropout(joint, DROPOUT, self.training))  # (P, K, 5)
        score = torch.where(batch.region_mask[batch.phrase_image], said[..., 0], -1e4)
        return score, said[..., 1:]


def batches(examples: list[Example], store: FeatureStore, order: list[int]) -> Iterator[Batch]:
    for start in range(0, len(order), IMAGES):
        chosen = [examples[number] for number in order[start : start + IMAGES]]
        pairs = [(example, caption) for example in chosen for caption in example.captions]
        batch = collate(pairs, store)
        if len(batch.phrase_step):
            yield batch


def loss_of(model: Judge, batch: Batch) -> Tensor:
    score, offsets = model(batch)
    target = soft_targets(batch.iou)
    labelled = batch.labelled
    kl = F.kl_div(score.log_softmax(-1), target, reduction="none").sum(-1)
    pairs = positive_pairs(batch)
    box = F.smooth_l1_loss(offsets[pairs.phrase, pairs.region], pairs.offsets, reduction="sum") / max(
        1, len(pairs.phrase)
    )
    return (kl * labelled).sum() / labelled.sum().clamp_min(1) + box


@torch.no_grad()
def accuracy(model: Judge, examples: list[Example], store: FeatureStore) -> tuple[float, float, float]:
    """Caption 0, all captions, and all captions' loss."""
    model.eval()
    right: list[Tensor] = []
    first: list[Tensor] = []
    losses = []
    for batch in batches(examples, store, list(range(len(examples)))):
        score, offsets = model(batch)
        best = score.argmax(-1)
        row = torch.arange(len(best))
        found = decode_offsets_xyxy(offsets[row, best], batch.boxes[batch.phrase_image, best])
        right.append((iou_xyxy(found, batch.gold) >= 0.5)[batch.has_box])
        first.append((torch.tensor(batch.captions)[batch.phrase_caption] == 0)[batch.has_box])
        losses.append(float(loss_of(model, batch)))
    hits, is_first = torch.cat(right).double(), torch.cat(first)
    return 100 * float(hits[is_first].mean()), 100 * float(hits.mean()), sum(losses) / len(losses)


def read_glove(path: Path, words: set[str]) -> tuple[dict[str, int], Tensor]:
    index, rows = {"": 0}, [torch.zeros(WORDS)]
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            word, *numbers = line.split()
            if word in words:
                index[word] = len(rows)
                rows.append(torch.tensor([float(number) for number in numbers]))
    return index, torch.stack(rows)


def judge(fit_store: FeatureStore, dev_store: FeatureStore, args: argparse.Namespace) -> dict[str, object]:
    fit, dev = (list(load_examples(args.data, split)[: args.limit]) for split in ("fit", "dev"))
    words = {token.lower() for example in fit for caption in example.captions for token in caption.tokens}
    torch.manual_seed(args.seed)
    model = Judge(*read_glove(args.glove, words), fit_store.info.dimension)
    steps = args.epochs * -(-len(fit) // IMAGES)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.2)
    start = time.perf_counter()
    for _ in range(args.epochs):
        order = torch.randperm(len(fit)).tolist()
        for batch in batches(fit, fit_store, order):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            schedule.step()
    minutes = (time.perf_counter() - start) / 60
    caption0, everything, dev_loss = accuracy(model, dev, dev_store)
    fit_loss = accuracy(model, fit[: len(dev)], fit_store)[2]
    return {
        "store": dev_store.path.name,
        "fitted on": fit_store.path.name,
        "seed": args.seed,
        "caption 0": round(caption0, 2),
        "all captions": round(everything, 2),
        "fit loss": round(fit_loss, 3),
        "dev loss": round(dev_loss, 3),
        "minutes": round(minutes, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--glove", type=Path, required=True)
    parser.add_argument("--fit-store", type=Path, help="fit on this store, score on the others")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    keep_freed_memory()
    print(f"load average {os.getloadavg()[0]:.2f}, {torch.get_num_threads()} threads")
    for path in args.stores:
        print(json.dumps(judge(FeatureStore.open(args.fit_store or path), FeatureStore.open(path), args)), flush=True)


if __name__ == "__main__":
    main()
