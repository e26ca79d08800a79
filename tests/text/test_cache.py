"""The cache: what the encoder says, computed once, and never that of another encoder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paths import importing
from phrasechain.core.errors import DataError
from phrasechain.text.base import Captions, TextEncoder
from phrasechain.text.cache import CachedEncoder
from phrasechain.text.words import WordEncoder

CAPTIONS = [["a", "dog", "runs"], ["dog"], [], ["a", "dog", "runs"], ["A", "dog runs"]]


class Frozen(TextEncoder):
    """A frozen encoder that counts the captions that it has encoded."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.inner = WordEncoder(["a", "dog"], 3, buckets=50)
        self.requires_grad_(False)
        self.dimension, self.encoded = 3, 0

    @property
    def settings(self) -> dict[str, Any]:
        return {"a": 1}

    def forward(self, captions: Captions) -> Tensor:
        self.encoded += len(captions)
        result: Tensor = self.inner(captions)
        return result


def test_the_same_as_without_and_each_caption_once(tmp_path: Path) -> None:
    encoder, cached = Frozen(), CachedEncoder(Frozen(), tmp_path / "cache")
    for _ in range(2):
        assert torch.equal(cached(CAPTIONS), encoder(CAPTIONS))
    assert cached.encoder.encoded == 4  # one stands twice
    assert cached.dimension == 3
    assert cached([]).shape == (0, 0, 3)


def test_what_is_written_is_not_computed_again(tmp_path: Path) -> None:
    cached = CachedEncoder(Frozen(), tmp_path)
    cached(CAPTIONS)
    assert list(tmp_path.iterdir()) == []
    cached.flush()
    cached.flush()
    assert len(list(tmp_path.iterdir())) == 1
    again = CachedEncoder(Frozen(), tmp_path)
    assert torch.equal(again(CAPTIONS), Frozen()(CAPTIONS))
    assert again.encoder.encoded == 0


def test_files_are_written_when_they_are_full(tmp_path: Path) -> None:
    cached = CachedEncoder(Frozen(), tmp_path, file_bytes=60)
    for number in range(10):
        cached([[f"w{number}", "dog", "runs"]])  # 36 bytes each
    assert len(list(tmp_path.iterdir())) == 5
    assert torch.equal(cached([["w0", "dog", "runs"]]), Frozen()([["w0", "dog", "runs"]]))


def test_filling(tmp_path: Path) -> None:
    cached = CachedEncoder(Frozen(), tmp_path)
    cached([["dog"]])
    cached.fill(CAPTIONS, batch=2)
    assert cached.encoder.encoded == 4
    again = CachedEncoder(Frozen(), tmp_path)
    assert torch.equal(again(CAPTIONS), Frozen()(CAPTIONS))
    assert again.encoder.encoded == 0


def test_several_processes_may_share_a_folder(tmp_path: Path) -> None:
    first, second = CachedEncoder(Frozen(), tmp_path), CachedEncoder(Frozen(), tmp_path)
    first.fill(CAPTIONS[:2])
    second.fill(CAPTIONS)
    third = CachedEncoder(Frozen(), tmp_path)
    assert torch.equal(third(CAPTIONS), Frozen()(CAPTIONS))
    assert third.encoder.encoded == 0


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    CachedEncoder(Frozen(), tmp_path).fill(CAPTIONS)
    with pytest.raises(DataError, match=r"the cache of another encoder; choose another folder, or delete it$"):
        CachedEncoder(Frozen(seed=1), tmp_path)


def test_encoders_that_change_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="an encoder that is trained cannot be cached"):
        CachedEncoder(WordEncoder(["a"], 3), tmp_path)
    stateful = Frozen()
    stateful.stateful = True  # type: ignore[assignment]
    with pytest.raises(DataError, match="a stateful encoder cannot be cached"):
        CachedEncoder(stateful, tmp_path)


def test_a_model_is_saved_and_loaded_with_or_without_the_cache(tmp_path: Path) -> None:
    plain, cached = nn.ModuleDict({"text": Frozen(1)}), nn.ModuleDict({"text": CachedEncoder(Frozen(), tmp_path)})
    assert plain.state_dict().keys() == cached.state_dict().keys()
    before = cached["text"](CAPTIONS)
    cached.load_state_dict(plain.state_dict())
    assert torch.equal(cached["text"](CAPTIONS), plain["text"](CAPTIONS))  # not what the old weights had given
    assert not torch.equal(cached["text"](CAPTIONS), before)
    plain["text"] = Frozen(0)
    plain.load_state_dict(cached.state_dict())
    assert torch.equal(plain["text"](CAPTIONS), Frozen(1)(CAPTIONS))
    assert cached["text"].settings == {"a": 1}


def test_broken_folders(tmp_path: Path) -> None:
    CachedEncoder(Frozen(), tmp_path).fill(CAPTIONS)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    for content in (whole[:-5], whole[:20], b"", whole.replace(b'\\"', b"??")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"broken text cache: .*; choose another folder, or delete it$") as caught:
            CachedEncoder(Frozen(), tmp_path)
        assert "\n" not in str(caught.value)
    save_file({"vectors": torch.zeros(1, 3)}, path)
    with pytest.raises(
        DataError, match=r"not a text cache of this version \(no format at all, not phrasechain text cache 1\)"
    ):
        CachedEncoder(Frozen(), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be used as a cache"):
        CachedEncoder(Frozen(), tmp_path / "file")


FILL = """
import sys
from test_cache import Frozen
from phrasechain.text.cache import CachedEncoder
cached = CachedEncoder(Frozen(), sys.argv[1], file_bytes=1)
number = 0
while True:
    cached([[f"w{number}", "dog"]])
    number += 1
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no kill -9")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """What is in the folder afterwards is whole, and what is missing is computed again."""
    process = subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path)], env=importing(__file__))
    while len(list(tmp_path.glob("*.safetensors"))) < 20:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cached = CachedEncoder(Frozen(), tmp_path)
    captions = [[f"w{number}", "dog"] for number in range(40)]
    assert torch.equal(cached(captions), Frozen()(captions))
    assert cached.encoder.encoded <= 20
