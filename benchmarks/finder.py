"""How well the phrase finder does on captions of images that were held out, and how fast it is.

    python benchmarks/finder.py SENTENCES DATA [--images 1000] [--weights FILE] [--out PATH]

Written apart from the scores of the training, as a second opinion: text by text through ``find``, exact spans against
all marked phrases that are not ``notvisual`` alone. "category" counts phrases whose span was found, "both" all gold
phrases. Intervals are 95 % of 1,000 resamples of images (seed 0). First it checks that val and dev are held out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from phrasechain.core.files import write_output
from phrasechain.data.dataset import is_dev
from phrasechain.data.sentences import Sentence, read_sentences
from phrasechain.phrases.finder import PhraseFinder
from phrasechain.training.finder.sentences import MarkedText, as_stored, as_written
from phrasechain.training.finder.task import held_out


def in_case(write: Callable[[str], str]) -> Callable[[MarkedText], MarkedText]:
    """Sign by sign, so that spans stay where they are."""
    return lambda marked: MarkedText(
        "".join(new if len(new := write(c)) == 1 else c for c in marked.text), marked.phrases
    )


def in_title_case(marked: MarkedText) -> MarkedText:
    before = " " + marked.text
    return MarkedText(
        "".join(c.upper() if b == " " else c for b, c in zip(before, marked.text, strict=False)), marked.phrases
    )


def without_end(marked: MarkedText) -> MarkedText:
    last = max((end for _, end, _ in marked.phrases), default=0)
    return MarkedText(marked.text[:last] + marked.text[last:].rstrip(". !"), marked.phrases)


WAYS: dict[str, Callable[[Sentence], MarkedText]] = {
    "stored": lambda sentence: as_stored(sentence.caption),
    "written": lambda sentence: as_written(sentence.caption),
    "lower case": lambda sentence: in_case(str.lower)(as_written(sentence.caption)),
    "CAPITALS": lambda sentence: in_case(str.upper)(as_written(sentence.caption)),
    "Title Case": lambda sentence: in_title_case(as_written(sentence.caption)),
    "no full stop": lambda sentence: without_end(as_written(sentence.caption)),
}


def count(finder: PhraseFinder, marked: MarkedText) -> np.ndarray:
    """Phrases found, gold ones, right spans, and right spans of a right type."""
    gold = {(start, end): types for start, end, types in marked.phrases if set(types) != {"notvisual"}}
    guessed = {(phrase.start, phrase.end): phrase.category for phrase in finder.find(marked.text)}
    right = [span for span in guessed if span in gold]
    return np.array([len(guessed), len(gold), len(right), sum(guessed[span] in gold[span] for span in right)])


def figures(counts: np.ndarray) -> np.ndarray:
    """(…, 4) to precision, recall, F1, category, both, in percent."""
    found, gold, right, typed = np.moveaxis(counts.astype(float), -1, 0)
    return 100 * np.stack([right / found, right / gold, 2 * right / (found + gold), typed / right, typed / gold], -1)


def judge(finder: PhraseFinder, sentences: list[Sentence], way: str) -> dict[str, object]:
    by_image: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(4, int))
    for sentence in sentences:
        by_image[sentence.image] += count(finder, WAYS[way](sentence))
    images = np.stack(list(by_image.values()))  # (I, 4)
    drawn = np.random.default_rng(0).multinomial(len(images), np.full(len(images), 1 / len(images)), 1000)  # (R, I)
    low, high = np.percentile(figures(drawn @ images), [2.5, 97.5], axis=0)
    values = zip(("precision", "recall", "F1", "category", "both"), figures(images.sum(0)), low, high, strict=True)
    return {"captions": len(sentences), "gold": int(images[:, 1].sum())} | {
        name: [round(float(number), 2) for number in triple] for name, *triple in values
    }


def speed(finder: PhraseFinder, texts: list[str]) -> dict[str, float]:
    """Milliseconds of processor time of one caption, on one thread."""
    taken = []
    for text in texts:
        start = time.process_time()
        finder.find(text)
        taken.append(1e3 * (time.process_time() - start))
    return {name: round(float(np.percentile(taken, at)), 2) for name, at in (("median", 50), ("95 %", 95))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("data", type=Path, help="folder with val.txt and train.txt")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    val, train = ((options.data / f"{split}.txt").read_text().split() for split in ("val", "train"))
    reserved = {*val, *filter(is_dev, train)}
    known = read_sentences(options.sentences)
    images = held_out((sentence.image for sentence in known), reserved)
    assert reserved <= images, "some of val or dev is learnt from"
    chosen = set(sorted(images)[:: max(1, len(images) // options.images)])
    some = [sentence for sentence in known if sentence.image in chosen]
    start = time.process_time()
    finder = PhraseFinder.from_pretrained(options.weights)
    result: dict[str, object] = {"held out": len(images), "scored images": len(chosen)}
    result["load, ms"] = round(1e3 * (time.process_time() - start), 1)
    texts = [as_written(sentence.caption).text for sentence in some[:600]]
    speed(finder, texts[:50])
    result["find, ms"] = speed(finder, texts)
    for way in WAYS:
        result[way] = judge(finder, some, way)
        print(way, result[way], flush=True)
    text = json.dumps(result, indent=1)
    print(text) if options.out is None else write_output(options.out, text.encode() + b"\n")


if __name__ == "__main__":
    main()
