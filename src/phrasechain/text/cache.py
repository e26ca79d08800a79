"""The output of a frozen encoder on disk: each caption is encoded once.

A folder of safetensors files, each written atomically. A file holds the encoder's hash, the hashes of its captions and
their concatenated vectors. Several processes may add files at the same time; one that is killed loses what it has not
written yet.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from phrasechain.core.errors import DataError, located
from phrasechain.core.files import reason, write_atomically
from phrasechain.core.json_lines import parse_json
from phrasechain.core.tensors import file_errors, read_tensors
from phrasechain.text.base import Captions, TextEncoder, longest

CACHE_FORMAT = "phrasechain text cache 1"
_WHAT, _REMEDY = "text cache", "choose another folder, or delete it"
FILE_BYTES = 1 << 26  # of vectors, buffered before they are written


def encoder_identity(encoder: TextEncoder) -> str:
    """A hash of the encoder's class, settings and weights."""
    digest = hashlib.sha256(f"{type(encoder).__name__} {json.dumps(encoder.settings, sort_keys=True)}".encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def caption_key(caption: Sequence[str]) -> str:
    """A hash of the caption's tokens."""
    return hashlib.blake2b(json.dumps(list(caption)).encode(), digest_size=16).hexdigest()


class CachedEncoder(TextEncoder):
    """A frozen encoder with a cache on disk.

    It has the settings and the ``state_dict`` of the encoder, so a model is saved and loaded with or without the cache.
    Captions are encoded when they come, or beforehand by ``fill``; ``flush`` writes what is still in memory.
    """

    def __init__(self, encoder: TextEncoder, folder: Path | str, file_bytes: int = FILE_BYTES) -> None:
        super().__init__()
        if any(weight.requires_grad for weight in encoder.parameters()):
            raise DataError("an encoder that is trained cannot be cached: freeze it, or use no cache")
        if encoder.stateful:
            raise DataError("a stateful encoder cannot be cached: make it stateless, or use no cache")
        self.encoder, self.folder, self.dimension = encoder, Path(folder), encoder.dimension
        self._file_bytes = file_bytes
        self._places: dict[str, tuple[Tensor, int, int]] = {}  # caption → rows of a table
        self._waiting: dict[str, Tensor] = {}  # not written yet
        self._open_folder()
        self.register_state_dict_post_hook(_hide_encoder)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_unhide_encoder)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(lambda module, _: module._open_folder())  # type: ignore[no-untyped-call]

    @property
    def settings(self) -> dict[str, Any]:
        return self.encoder.settings

    def forward(self, captions: Captions) -> Tensor:
        keys = [caption_key(caption) for caption in captions]
        missing = {key: caption for key, caption in zip(keys, captions, strict=True) if key not in self._places}
        self._encode(missing)
        result = torch.zeros(len(captions), longest(captions), self.dimension)
        for row, key in zip(result, keys, strict=True):
            table, start, end = self._places[key]
            row[: end - start] = table[start:end]
        weight = next(self.encoder.parameters(), result)
        return result.to(weight.device)

    def fill(self, captions: Iterable[Sequence[str]], batch: int = 64) -> None:
        """Encode and write the captions that are missing, those of similar length together."""
        keyed = {caption_key(caption): caption for caption in captions}
        missing = sorted(keyed.keys() - self._places.keys(), key=lambda key: (len(keyed[key]), key))
        for at in range(0, len(missing), batch):
            self._encode({key: keyed[key] for key in missing[at : at + batch]})
        self.flush()

    def flush(self) -> None:
        """Write what is in memory alone, atomically."""
        if not self._waiting:
            return
        counts = {key: len(vectors) for key, vectors in self._waiting.items()}
        about = {"format": CACHE_FORMAT, "encoder": self._identity, "captions": json.dumps(counts)}
        path = self.folder / f"{secrets.token_hex(8)}.safetensors"
        try:
            write_atomically(path, save({"vectors": torch.cat(list(self._waiting.values()))}, about))
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {reason(error)}") from None
        self._open_file(path)
        self._waiting.clear()

    def _encode(self, captions: dict[str, Sequence[str]]) -> None:
        if not captions:
            return
        with torch.no_grad():
            vectors = self.encoder(list(captions.values())).cpu()  # (B, L, D)
        for (key, caption), rows in zip(captions.items(), vectors, strict=True):
            self._waiting[key] = rows[: len(caption)].clone()
            self._places[key] = self._waiting[key], 0, len(caption)
        if sum(rows.nbytes for rows in self._waiting.values()) >= self._file_bytes:
            self.flush()

    def _open_folder(self) -> None:
        """Read the folder again, for the encoder's present weights."""
        self._identity = encoder_identity(self.encoder)
        self._places.clear()
        self._waiting.clear()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            paths = sorted(self.folder.glob("*.safetensors"))
        except OSError as error:
            raise DataError(f"{self.folder}: cannot be used as a cache: {reason(error)}") from None
        for path in paths:
            self._open_file(path)

    def _open_file(self, path: Path) -> None:
        file = read_tensors(path, _WHAT, format=CACHE_FORMAT, finite=False, remedy=_REMEDY)
        with file_errors(path, _WHAT, _REMEDY):
            if file.metadata.get("encoder") != self._identity:
                raise DataError("the cache of another encoder")
            with located(f"broken {_WHAT}"):
                counts = parse_json(file.metadata.get("captions", "").encode("utf-8", "replace"))
            self._add(counts, file.tensors.get("vectors"))

    def _add(self, counts: Any, table: Tensor | None) -> None:
        """Index the captions of a file's table (tokens, D), which stays memory-mapped."""
        if not isinstance(counts, dict) or not all(type(count) is int and count >= 0 for count in counts.values()):
            raise DataError(f"broken {_WHAT}: its captions have no counts")
        if table is None or table.shape != (sum(counts.values()), self.dimension) or table.dtype != torch.float32:
            raise DataError(f"broken {_WHAT}: its vectors do not fit its captions")
        start = 0
        for key, count in counts.items():
            self._places[key] = table, start, start + count
            start += count


def _hide_encoder(module: Any, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    inner = f"{prefix}encoder."
    for name in [name for name in state if name.startswith(inner)]:
        state[prefix + name.removeprefix(inner)] = state.pop(name)


def _unhide_encoder(module: Any, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}encoder.{name.removeprefix(prefix)}"] = state.pop(name)
