"""The encoder ``transformer``: any Hugging Face text encoder, through the library transformers (the extra ``hf``).

A word's vector is the mean of its pieces' vectors. Only safetensors weights are loaded, and no remote code.

Axes: B captions, L tokens, S pieces, D features.
"""

from __future__ import annotations

import json
from typing import Any, Self

import torch
from torch import Tensor

from phrasechain.core.errors import DataError
from phrasechain.core.hugging_face import import_transformers, load_model, loading, source_of
from phrasechain.text.base import Captions, TextEncoder, longest

_UNUSED = "pooler."  # weights that are not used here and may be missing
_NO_LIMIT = 1_000_000  # pieces; tokenisers without a limit report a larger one


class TransformerEncoder(TextEncoder):
    """The last hidden layer, (B, L, D); a word without pieces is zeros. :meth:`from_pretrained` makes one.

    Args:
        config: of the model, as in its config.json.
        tokenizer: its fast tokeniser, the text of tokenizer.json.
        limit: pieces that a caption may have, special ones included. A longer caption is refused.
        frozen: train no weights, and keep dropout off.
        name: for messages.
    """

    def __init__(
        self, *, config: dict[str, Any], tokenizer: str, limit: int, frozen: bool = True, name: str = "transformer"
    ) -> None:
        super().__init__()
        transformers = import_transformers("the encoder 'transformer'")
        self._settings = {"config": config, "tokenizer": tokenizer, "limit": limit, "frozen": frozen}
        self.limit, self.frozen, self.name = limit, frozen, name
        with loading(name, "a text encoder"):
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_str(tokenizer)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            described = transformers.AutoConfig.for_model(**config)
            self.model = _text_part(transformers.AutoModel.from_config(described, trust_remote_code=False))
            self.dimension = int(self.model.config.hidden_size)
            self._padding = int(self.model.config.pad_token_id or 0)
        self.requires_grad_(not frozen)
        self.train(self.training)

    @classmethod
    def from_pretrained(cls, name: str, frozen: bool = True) -> Self:
        """The model of a hub id, ``ID@REVISION`` or a folder."""
        transformers = import_transformers("the encoder 'transformer'")
        source, options = source_of(name)
        with loading(name, "a text encoder"):
            model = load_model(transformers.AutoModel, source, name, unused=_UNUSED, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
            if not tokenizer.is_fast:
                raise DataError(f"{name} has no fast tokeniser (tokenizer.json), which maps pieces to words")
            config = json.loads(model.config.to_json_string(use_diff=False))
            encoder = cls(
                config={key: value for key, value in config.items() if not key.startswith("_")},
                tokenizer=_for_single_words(tokenizer.backend_tokenizer.to_str()),
                limit=_limit(tokenizer, _text_part(model)),
                frozen=frozen,
                name=name,
            )
            encoder.model.load_state_dict(_text_part(model).state_dict())
            encoder([["a"]])  # another kind of model fails here, not in training
        return encoder

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    def train(self, mode: bool = True) -> Self:
        """A frozen model stays in evaluation mode."""
        return super().train(mode and not self.frozen)

    def forward(self, captions: Captions) -> Tensor:
        B, L = len(captions), longest(captions)
        device = next(self.model.parameters()).device
        if not L:
            return torch.zeros(B, L, self.dimension, device=device)
        pieces = self._tokenizer.encode_batch([list(caption) for caption in captions], is_pretokenized=True)
        S = max(len(each.ids) for each in pieces)
        if self.limit < S:
            words = next(len(caption) for each, caption in zip(pieces, captions, strict=True) if len(each.ids) == S)
            raise DataError(f"{self.name} takes {self.limit} pieces; a caption of {words} words has {S}: shorten it")
        ids = torch.tensor([each.ids + [self._padding] * (S - len(each.ids)) for each in pieces], device=device)
        counts = torch.tensor([len(each.ids) for each in pieces], device=device)
        mask = (torch.arange(S, device=device) < counts[:, None]).long()  # (B, S)
        vectors = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()  # (B, S, D)
        owned = [
            (b * S + s, b * L + word)
            for b, each in enumerate(pieces)
            for s, word in enumerate(each.word_ids)
            if word is not None  # a special token
        ]
        return _word_means(vectors.flatten(0, 1), owned, B * L).view(B, L, self.dimension)


def _word_means(vectors: Tensor, owned: list[tuple[int, int]], count: int) -> Tensor:
    """The mean of each word's pieces, zeros for a word without: (B·S, D) and pairs of piece and word to (count, D)."""
    piece, word = torch.tensor(owned, dtype=torch.int64, device=vectors.device).view(-1, 2).unbind(1)
    sums = vectors.new_zeros(count, vectors.shape[1]).index_add(0, word, vectors[piece])
    return sums / word.bincount(minlength=count).clamp(min=1)[:, None]


def _text_part(model: Any) -> Any:
    """The encoder of an encoder-decoder, the text tower of CLIP and its kind, or the model itself."""
    if model.config.is_encoder_decoder:
        return model.get_encoder()
    return getattr(model, "text_model", model)


def _for_single_words(tokenizer: str) -> str:
    """The tokeniser, set to put a space before every word where it does not by default."""
    content = json.loads(tokenizer)
    before = content["pre_tokenizer"] or {}
    first = before["pretokenizers"][0] if before.get("type") == "Sequence" else before
    if first.get("type") == "ByteLevel":
        first["add_prefix_space"] = True
    elif first.get("type") == "Metaspace":
        first["prepend_scheme"] = "always"
    return json.dumps(content, ensure_ascii=False)


def _limit(tokenizer: Any, model: Any) -> int:
    """The pieces that the model has positions for, as far as it says so."""
    offsets = [1 + part.padding_idx for name, part in model.named_modules() if _keeps_places(name, part)]
    places = getattr(model.config, "max_position_embeddings", None)
    given = (tokenizer.model_max_length, None if places is None else places - max(offsets, default=0), _NO_LIMIT)
    return int(min(limit for limit in given if limit is not None and limit > 0))


def _keeps_places(name: str, part: Any) -> bool:
    """Whether it is a table of positions of RoBERTa's kind, which start after the id of padding."""
    return name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None
