"""Tiny, randomly initialised detectors of each Hugging Face family, saved as their authors would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = ("dog", "ball", "red", "man")


def _resnet(*stages: str) -> Any:
    from transformers import ResNetConfig

    return ResNetConfig(embedding_size=4, hidden_sizes=[4, 8, 8, 16], depths=[1, 1, 1, 1], out_features=list(stages))


def _encoder_decoder() -> dict[str, Any]:
    return {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "num_queries": 12,
        "num_labels": 5,
    }


def _detr() -> tuple[Any, Any]:
    from transformers import DetrConfig, DetrForObjectDetection, DetrImageProcessorPil

    config = DetrConfig(use_timm_backbone=False, backbone_config=_resnet("stage4"), **_encoder_decoder())
    return DetrForObjectDetection(config), DetrImageProcessorPil(size={"shortest_edge": 40, "longest_edge": 60})


def _conditional_detr() -> tuple[Any, Any]:
    from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection, ConditionalDetrImageProcessorPil

    config = ConditionalDetrConfig(use_timm_backbone=False, backbone_config=_resnet("stage4"), **_encoder_decoder())
    model = ConditionalDetrForObjectDetection(config)
    return model, ConditionalDetrImageProcessorPil(size={"shortest_edge": 40, "longest_edge": 60})


def _deformable_detr() -> tuple[Any, Any]:
    from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, DeformableDetrImageProcessorPil

    config = DeformableDetrConfig(
        use_timm_backbone=False,
        backbone_config=_resnet("stage2", "stage3", "stage4"),
        num_feature_levels=3,
        **_encoder_decoder(),
    )
    model = DeformableDetrForObjectDetection(config)
    return model, DeformableDetrImageProcessorPil(size={"shortest_edge": 40, "longest_edge": 60})


def _rt_detr() -> tuple[Any, Any]:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrImageProcessorPil, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=4,
        hidden_sizes=[4, 8, 8, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrConfig(
        backbone_config=backbone,
        encoder_hidden_dim=16,
        encoder_in_channels=[8, 8, 16],
        encoder_ffn_dim=16,
        encoder_attention_heads=2,
        d_model=16,
        num_queries=12,
        decoder_in_channels=[16, 16, 16],
        decoder_ffn_dim=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        num_denoising=0,
        num_labels=5,
    )
    return RTDetrForObjectDetection(config), RTDetrImageProcessorPil(size={"height": 64, "width": 64})


def _yolos() -> tuple[Any, Any]:
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessorPil

    config = YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[48, 64],
        patch_size=4,
        num_detection_tokens=12,
        num_labels=5,
    )
    return YolosForObjectDetection(config), YolosImageProcessorPil(size={"shortest_edge": 48, "longest_edge": 256})


def _clip_tokenizer() -> Any:
    from transformers import CLIPTokenizer

    letters = sorted(set("".join(WORDS)))
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>", "!"]
    return CLIPTokenizer(
        vocab={piece: n for n, piece in enumerate(pieces)}, merges=[], model_max_length=8, pad_token="!"
    )


def _owl(name: str) -> tuple[Any, ...]:
    import transformers

    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{name}Config")(
        text_config={**text, "vocab_size": 64, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={**text, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = getattr(transformers, f"{name}ForObjectDetection")(config)
    images = getattr(transformers, f"{name}ImageProcessorPil")(size={"height": 32, "width": 32})
    return model, getattr(transformers, f"{name}Processor")(images, _clip_tokenizer())


def _grounding_dino() -> tuple[Any, ...]:
    from transformers import (
        BertConfig,
        BertTokenizer,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessorPil,
        GroundingDinoProcessor,
        SwinConfig,
    )

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
    tokenizer = BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, model_max_length=32)
    config = GroundingDinoConfig(
        backbone_config=SwinConfig(
            image_size=32, embed_dim=4, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=2,
            out_features=["stage2", "stage3", "stage4"],
        ),
        text_config=BertConfig(
            vocab_size=len(pieces), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=64,
        ),
        d_model=32, encoder_layers=1, encoder_ffn_dim=16, encoder_attention_heads=2, decoder_layers=2,
        decoder_ffn_dim=16, decoder_attention_heads=2, num_queries=12, num_feature_levels=4, max_text_len=32,
    )  # fmt: skip
    images = GroundingDinoImageProcessorPil(size={"shortest_edge": 80, "longest_edge": 120})
    return GroundingDinoForObjectDetection(config), GroundingDinoProcessor(images, tokenizer)


FAMILIES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "detr": _detr,
    "conditional_detr": _conditional_detr,
    "deformable_detr": _deformable_detr,
    "rt_detr": _rt_detr,
    "yolos": _yolos,
    "owlvit": lambda: _owl("OwlViT"),
    "owlv2": lambda: _owl("Owlv2"),
    "grounding_dino": _grounding_dino,
}
SPREAD = {"detr": 0.5}  # how far weights are from where they begin
QUERIED = {"owlvit", "owlv2", "grounding_dino"}


def save_detector(family: str, folder: Path) -> Path:
    """Make the detector of a family with fixed random weights, and save it with its processor."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, processor = FAMILIES[family]()
        for weight in model.parameters():  # untrained detectors give the same box again and again
            weight.data += SPREAD.get(family, 0.3) * torch.randn(weight.shape)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
