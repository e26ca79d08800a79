"""Proposals from the object detectors of the transformers library (the extra ``hf``).

Closed-vocabulary detectors (DETR and its variants, YOLOS) take the photo alone; the open-vocabulary ones (OWL-ViT,
OWLv2, Grounding DINO) also take text queries. Either way the score of a box is that of its most probable class. Only
safetensors weights are loaded, and no remote code. Photos are prepared by the PIL variant of the model's own image
processor, so the boxes do not depend on whether torchvision is installed.

Axes: Q boxes that the detector predicts, C classes or tokens, K boxes that are selected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from phrasechain.core.boxes import area_xyxy, cxcywh_to_xyxy
from phrasechain.core.errors import DataError, one_line
from phrasechain.core.hugging_face import import_transformers, load_model, loading, source_of
from phrasechain.regions.nms import best_boxes
from phrasechain.regions.pixels import ImageSource, read_rgb

PREFIX = "hf:"
#: Text queries for open-vocabulary detectors: things that captions often name.
COMMON_WORDS = (
    "person", "man", "woman", "boy", "girl", "child", "baby", "crowd", "dog", "cat", "horse", "bird", "animal", "face",
    "head", "hair", "hand", "arm", "leg", "shirt", "jacket", "dress", "pants", "shoe", "hat", "helmet", "glasses",
    "bag", "ball", "frisbee", "toy", "stick", "rope", "bicycle", "motorcycle", "car", "bus", "truck", "boat", "train",
    "skateboard", "surfboard", "snowboard", "guitar", "camera", "phone", "book", "sign", "food", "cup", "bottle",
    "table", "chair", "bench", "bed", "door", "window", "fence", "building", "stairs", "street", "field", "tree",
    "flower", "grass", "rock", "hill", "sand", "snow", "water", "pool", "wall", "floor", "stage",
)  # fmt: skip
NMS_THRESHOLD = 0.5
_CANDIDATES = 1000  # best boxes that enter NMS
_PADDED_TO_SQUARE = {"owlv2"}  # model types that pad the photo to a square; boxes are normalised to its side
_MAX_SIDE = 2048  # pixels; detectors resize to less
_MAX_ASPECT = 16  # of the longer to the shorter side


class Detector:
    """A loaded detector of transformers; ``load_detector`` creates it."""

    def __init__(self, name: str, model: Any, processor: Any, text: Mapping[str, Tensor]) -> None:
        self.name = name
        self._model = model
        self._processor = processor
        self._text = text  # the encoded queries of an open-vocabulary detector; empty for others

    def boxes(self, image: ImageSource, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """At most ``count`` boxes (K, 4), in pixels of the photo as displayed, and their scores (K,), best first.

        They are clipped to the photo and have a positive area. K can be 0.
        """
        rgb = read_rgb(image)
        try:
            score, boxes = self._detect(rgb)
        except Exception as error:  # of the library or of the model
            what = f"an image of {rgb.width} × {rgb.height} pixels"
            raise DataError(f"{self.name} fails on {what}: {one_line(error)}") from None
        sides = torch.tensor([rgb.width, rgb.height] * 2)
        usable = score.isfinite() & boxes.isfinite().all(-1) & (area_xyxy(boxes.clamp(0, 1) * sides) > 0)
        score, boxes = score[usable], boxes[usable]
        selected = best_boxes(score[None], boxes[None], _CANDIDATES, NMS_THRESHOLD, count)
        kept = selected.kept[0]
        return (selected.boxes[0, kept] * sides).numpy(), score[selected.indices[0, kept]].numpy()

    @torch.inference_mode()
    def _detect(self, rgb: Image.Image) -> tuple[Tensor, Tensor]:
        """The detector's scores (Q,) and boxes (Q, 4), normalised to [0, 1]."""
        rgb = limit_size(rgb)
        pads = self._model.config.model_type in _PADDED_TO_SQUARE
        inputs = pad_to_square(self._processor, rgb) if pads else self._processor(rgb, return_tensors="pt")
        outputs = self._model(**inputs, **self._text)
        boxes = cxcywh_to_xyxy(outputs.pred_boxes[0].float())
        if pads:
            boxes = boxes * (max(rgb.size) / torch.tensor([*rgb.size, *rgb.size]))
        return class_scores(outputs.logits[0].float(), self._model.config.num_labels, bool(self._text)), boxes


def limit_size(rgb: Image.Image) -> Image.Image:
    """Downscale a huge image and stretch an extremely narrow one; normalised boxes are unaffected.

    The detectors' image processors would shrink a narrow one to zero height, or pad it to a huge square.
    """
    longest = min(max(rgb.size), _MAX_SIDE)
    scale = longest / max(rgb.size)
    width, height = (max(round(side * scale), math.ceil(longest / _MAX_ASPECT)) for side in rgb.size)
    if (width, height) == rgb.size:
        return rgb
    return rgb.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)


def pad_to_square(processor: Any, rgb: Image.Image) -> Any:
    """OWLv2's preprocessing: pad with black on the right or at the bottom. Its processor's own resizing needs scipy."""
    square = Image.new("RGB", (max(rgb.size),) * 2)
    square.paste(rgb)
    square = square.resize((processor.size["width"], processor.size["height"]), Image.Resampling.BILINEAR)
    return processor(square, do_pad=False, do_resize=False, return_tensors="pt")


def class_scores(logits: Tensor, classes: int, takes_words: bool) -> Tensor:
    """The probability of the most probable class of each box, from logits: (Q, C) to (Q,).

    A detector with one output more than it has classes uses softmax, and the last output is "no object".
    """
    if logits.shape[-1] == classes + 1 and not takes_words:
        return logits.softmax(-1)[:, :-1].amax(-1)
    return logits.sigmoid().amax(-1)


def load_detector(name: str, words: Sequence[str] = COMMON_WORDS) -> Detector:
    """The detector of a hub id, ``ID@REVISION`` or a folder, with or without the ``hf:`` of the command line.

    ``words`` are the queries of open-vocabulary detectors; the others ignore them.
    """
    name = PREFIX + name.removeprefix(PREFIX)
    transformers = import_transformers(name)
    source, options = source_of(name.removeprefix(PREFIX))
    with loading(name, "an object detector"):
        config = transformers.AutoConfig.from_pretrained(source, **options)
        takes_words = type(config) in transformers.MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING
        if not takes_words and type(config) not in transformers.MODEL_FOR_OBJECT_DETECTION_MAPPING:
            raise DataError(f"{name} is not an object detector, but a model of the type {config.model_type!r}")
        family = "AutoModelForZeroShotObjectDetection" if takes_words else "AutoModelForObjectDetection"
        model = load_model(getattr(transformers, family), source, name, config=config, **options)
        processor = transformers.AutoImageProcessor.from_pretrained(source, backend="pil", **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options) if takes_words else None
        text = encode_words(tokenizer, config, words) if takes_words else {}
    return Detector(name, model.eval(), processor, text)


def encode_words(tokenizer: Any, config: Any, words: Sequence[str]) -> dict[str, Tensor]:
    """The queries as token ids: OWL-ViT takes one query each, Grounding DINO one text separated by full stops."""
    if not words:
        raise DataError("an open-vocabulary detector needs at least one word")
    plain = [" ".join(word.lower().replace(".", " ").split()) for word in words]
    if hasattr(config, "max_text_len"):
        limit = config.max_text_len
        encoded = tokenizer([". ".join(plain) + "."], return_token_type_ids=True, return_tensors="pt")
    else:
        limit = config.text_config.max_position_embeddings
        encoded = tokenizer(plain, padding="max_length", max_length=limit, return_tensors="pt")
    length = encoded["input_ids"].shape[1]
    if length > limit:
        raise DataError(f"the words have {length} tokens, and the detector takes {limit}; give fewer or shorter ones")
    return dict(encoded)
