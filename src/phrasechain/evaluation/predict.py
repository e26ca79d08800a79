"""Inference over annotated images: accuracy, and predictions as a file for the evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from phrasechain.baselines.registry import BUILDERS
from phrasechain.core.boxes import iou_xyxy
from phrasechain.core.distributed import Processes, start_processes
from phrasechain.core.errors import DataError
from phrasechain.core.progress import track
from phrasechain.core.schema import Example, Phrase
from phrasechain.data.dataset import open_to_score
from phrasechain.data.regimes import chain_phrases
from phrasechain.evaluation.coverage import with_regions
from phrasechain.evaluation.metrics import RIGHT
from phrasechain.evaluation.predictions import TOP_REGIONS, Prediction, write_predictions
from phrasechain.model.batch import Batch, RegionSource, collate_annotated, make_groups, require_finite
from phrasechain.model.checkpoint import load_checkpoint, require_same_regions
from phrasechain.model.decode import Decoded, ranked
from phrasechain.model.system import GroundingSystem
from phrasechain.model.targets import merged_boxes
from phrasechain.store.reader import FeatureStore

IMAGES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """Which phrases a chain holds, the decoder, whether offsets refine the boxes, and how the mark-up is read."""

    regime: str = "gold"
    decode: str = "viterbi"
    box_regression: bool = True
    reading: str = "corrected"

    @property
    def name(self) -> str:
        """
        >>> InferenceOptions("all", "smoothing", False).name
        'all-smoothing-unmoved'
        """
        reading = "" if self.reading == "corrected" else f"-{self.reading}"
        return f"{self.regime}-{self.decode}{'' if self.box_regression else '-unmoved'}{reading}"


@torch.inference_mode()
def decode_examples(
    model: GroundingSystem,
    examples: Sequence[Example],
    regions: RegionSource,
    options: InferenceOptions,
    device: torch.device | str = "cpu",
    images_at_once: int = IMAGES_AT_ONCE,
) -> Iterator[tuple[Batch, list[Phrase], Decoded]]:
    """Decode every phrase of the examples, a few images at a time, in their order.

    A model with a stateful text encoder, which is the authors', gets the images as their code does: one at a time, each
    caption in a row of its own, captions without a phrase included.
    """
    encoder = model.text.encoder
    encoder.reset()
    groups = make_groups(examples, "image", options.regime, phraseless=encoder.stateful)
    at_once = _images_at_once(model, images_at_once)
    for start in range(0, len(groups), at_once):
        items = [item for group in groups[start : start + at_once] for item in group]
        if not any(chain_phrases(caption, options.regime) for _, caption in items):
            encoder([caption.tokens for _, caption in items])  # nothing to ground; it leaves its state
            continue
        batch, phrases = collate_annotated(items, regions, options.regime, read_all=encoder.stateful)
        batch = batch.to(device)
        scores = model(batch)
        if not options.box_regression:
            scores = replace(scores, offsets=None)
        if not bool(scores.emissions.isfinite().all()):
            require_finite([batch])
            raise DataError(f"image {batch.images[0]}: the model's scores are not finite; its weights are broken")
        yield batch, phrases, model.decode(scores, batch, options.decode)


def _images_at_once(model: GroundingSystem, most: int = IMAGES_AT_ONCE) -> int:
    return 1 if model.text.encoder.stateful else most


def my_examples(model: GroundingSystem, examples: Sequence[Example], processes: Processes) -> Sequence[Example]:
    """The examples that this process decodes: every n-th; of a stateful model, whose order counts, all or none."""
    if model.text.encoder.stateful:
        return examples if processes.is_main_process else examples[:0]
    return examples[processes.process_index :: processes.num_processes]


def count_right(
    model: GroundingSystem,
    examples: Sequence[Example],
    regions: RegionSource,
    method: str = "viterbi",
    device: torch.device | str = "cpu",
) -> Tensor:
    """Phrases whose box has IoU ≥ 0.5 with their merged box, and phrases in all, for caption 0 and for all: (2, 2)."""
    counts = torch.zeros(2, 2, dtype=torch.int64, device=device)
    for batch, phrases, decoded in decode_examples(model, examples, regions, InferenceOptions(decode=method), device):
        right = iou_xyxy(decoded.boxes, merged_boxes(phrases).to(device)) >= RIGHT  # (P,)
        first = torch.tensor([index == 0 for index in batch.captions], device=device)[batch.phrase_caption]
        scopes = torch.stack([first, torch.ones_like(first)])  # (2, P)
        counts += torch.stack([(right & scopes).sum(1), scopes.sum(1)], 1)
    return counts


def predictions_of(batch: Batch, decoded: Decoded) -> Iterator[Prediction]:
    """The prediction of every phrase of a batch, with its likeliest regions, to a thousandth of a pixel."""
    images, captions = batch.phrase_image.tolist(), batch.phrase_caption.tolist()
    boxes = decoded.boxes.double().round(decimals=3).tolist()
    for row, (region_boxes, probabilities) in enumerate(ranked(decoded, batch, TOP_REGIONS)):
        start, end = batch.spans[row].tolist()
        x0, y0, x1, y1 = boxes[row]
        yield Prediction(
            image=batch.images[images[row]],
            caption=batch.captions[captions[row]],
            start=start,
            end=end,
            box=(x0, y0, x1, y1),
            region_boxes=region_boxes.double().round(decimals=3).cpu().numpy(),
            probabilities=probabilities.double().round(decimals=6).cpu().numpy(),
        )


def predict_run(
    run: Path,
    data: Path,
    features: Path,
    split: str,
    regime: str = "gold",
    decode: str | None = None,
    box_regression: bool = True,
    reading: str = "corrected",
    device: str = "auto",
    missing: str = "refuse",
    out: Path | None = None,
) -> Path:
    """Write what a run's best checkpoint, or a checkpoint, predicts for a split; return the file.

    The file is ``predictions.jsonl`` in a folder of ``out``, by default the run's, that is named after the split and
    the options. The decoder
    is the one that the run scored itself with, unless ``decode`` says otherwise. With ``missing="skip"`` images that
    the store lacks have no predictions, and their phrases count as wrong. The processes of ``torchrun`` share the
    images, and the first of them writes; one alone needs no accelerate.
    """
    checkpoint, store = load_checkpoint(run, BUILDERS), FeatureStore.open(features)
    require_same_regions(checkpoint.card, store, checkpoint.folder)
    options = InferenceOptions(regime, decode or checkpoint.card.decode, box_regression, reading)
    examples = with_regions(open_to_score(data, reading).examples(split), store, missing)
    processes = start_processes(device)
    mine = my_examples(checkpoint.model, examples, processes)
    decoded_batches = decode_examples(checkpoint.model.to(processes.device), mine, store, options, processes.device)
    total = -(-len(mine) // _images_at_once(checkpoint.model))
    found = [
        prediction
        for batch, _, decoded in track(decoded_batches, total, f"Grounding {split}")
        for prediction in predictions_of(batch, decoded)
    ]
    file = predictions_file(out or run, split, options)
    _write_all(file, found, [example.image for example in examples], processes)
    return file


def predictions_file(run: Path, split: str, options: InferenceOptions) -> Path:
    """Where a run's predictions for a split are."""
    return run / f"{split}-{options.name}" / "predictions.jsonl"


def _write_all(file: Path, mine: list[Prediction], images: Sequence[str], processes: Processes) -> None:
    """Write the predictions of all processes in the order of the images."""
    everyone = mine
    if processes.num_processes > 1:
        from accelerate.utils import gather_object

        everyone = gather_object(mine)
    if processes.is_main_process:
        order = {image: number for number, image in enumerate(images)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_predictions(file, sorted(everyone, key=lambda prediction: order[prediction.image]))
    processes.wait_for_everyone()
