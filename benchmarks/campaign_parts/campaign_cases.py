"""Damaged inputs for the campaign: mutations that know what they damage, and a reader for every kind of file.

A reader is made once from a folder of whole files. It takes the bytes of a damaged one, writes them where they belong
and reads them; what it raises decides about the case. The whole files are the small ones of the tests.
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from elmo_models import make_arrays, make_options, write_files  # noqa: E402
from feature_files import IMAGES, tsv_bytes, write_ban, write_ddpn  # noqa: E402
from official_layout import annotation_xml  # noqa: E402
from phrasechain.chain import ChainCRF  # noqa: E402
from phrasechain.core.settings import make_settings  # noqa: E402
from phrasechain.data.class_boxes import read_class_boxes  # noqa: E402
from phrasechain.data.flickr30k import read_annotation  # noqa: E402
from phrasechain.data.jsonl import read_jsonl  # noqa: E402
from phrasechain.data.markup import parse_caption  # noqa: E402
from phrasechain.evaluation.predictions import read_predictions  # noqa: E402
from phrasechain.grounding.captions import read_captions  # noqa: E402
from phrasechain.grounding.grounder import Grounder  # noqa: E402
from phrasechain.grounding.pretrained import load_pretrained  # noqa: E402
from phrasechain.model.config import Config  # noqa: E402
from phrasechain.phrases.finder import PhraseFinder  # noqa: E402
from phrasechain.phrases.given import locate_phrases  # noqa: E402
from phrasechain.regions.given_boxes import read_given_boxes  # noqa: E402
from phrasechain.regions.pixels import read_photo, read_rgb  # noqa: E402
from phrasechain.store.importers.features import open_features  # noqa: E402
from phrasechain.store.reader import FeatureStore  # noqa: E402
from phrasechain.text.elmo import ElmoEncoder  # noqa: E402
from phrasechain.text.vectors import read_vectors  # noqa: E402
from store_helpers import write as write_store  # noqa: E402
from tiny_grounder import write_grounder  # noqa: E402

Rng = np.random.Generator
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *("", "a", "\0", "\ud800", "../x", "a/b", "é" * 300, "[/EN#1/x y]", "<a>", "\u202e"),
    *([], {}, [[]], [{}], {"a": {}}, [None] * 40, [[1]], [1, 2, 3, 4], [[0, 0, 1, 1]]),
)
TEXT_PARTS = (
    "[/EN#",
    "/people",
    "]",
    "[",
    "\t",
    "\n",
    "\\",
    '"',
    "{",
    "}",
    "0",
    "-",
    "1e999",
    "NaN",
    "9" * 400,
    "\0",
    "é",
)


# ---- mutations


def damage_bytes(data: bytes, rng: Rng) -> bytes:
    """One to four of: flips, extreme numbers, cuts, repetitions, zeros, insertions."""
    content = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        size = len(content)
        place = int(rng.integers(0, size + 1)) if rng.random() < 0.5 else int(size * rng.random() ** 4)
        kind = int(rng.integers(0, 7))
        if kind == 0 and size:
            content[min(place, size - 1)] ^= int(rng.integers(1, 256))
        elif kind == 1:
            width = int(rng.choice([1, 2, 4, 8]))
            value = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
            content[place : place + width] = bytes([value] * width)
        elif kind == 2:
            del content[place:]
        elif kind == 3:
            del content[place : place + int(rng.integers(1, 40))]
        elif kind == 4:
            part = bytes(content[place : place + int(rng.integers(1, 40))])
            content[place:place] = part * int(rng.integers(1, 20))
        elif kind == 5:
            content[place : place + int(rng.integers(1, 40))] = bytes(int(rng.integers(1, 40)))
        else:
            content[place:place] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(content)


def damage_text(data: bytes, rng: Rng) -> bytes:
    text = data.decode("utf-8", "replace")
    for _ in range(int(rng.integers(1, 4))):
        place, end = sorted(int(each) for each in rng.integers(0, len(text) + 1, 2))
        text = (
            text[:place] + TEXT_PARTS[int(rng.integers(len(TEXT_PARTS)))] + text[end if rng.random() < 0.3 else place :]
        )
    return (
        text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.8
        else damage_bytes(text.encode("utf-8", "replace"), rng)
    )


def damage_json(data: bytes, rng: Rng) -> bytes:
    """Another value, key or nesting somewhere in a JSON file, or in one of its lines."""
    lines = data.splitlines() or [b"{}"]
    is_lines = len(lines) > 1 and lines[0].startswith(b"{") and lines[0].endswith(b"}")
    number = int(rng.integers(len(lines)))
    try:
        value = json.loads(lines[number] if is_lines else data)
    except ValueError:
        return damage_bytes(data, rng)
    for _ in range(int(rng.integers(1, 4))):
        value = _other(value, rng)
    changed = json.dumps(value, ensure_ascii=bool(rng.integers(2))).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        changed = damage_text(changed, rng)
    if not is_lines:
        return changed
    return b"\n".join([*lines[:number], changed, *lines[number + 1 :]]) + b"\n"


def _other(value: Any, rng: Rng) -> Any:
    """The value with something in it replaced, dropped, doubled or nested."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        kind = rng.random()
        if kind < 0.03:
            return json.loads("[" * 900 + "]" * 900)
        return value if kind < 0.1 and isinstance(value, dict | list) else HOSTILE[int(rng.integers(len(HOSTILE)))]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[int(rng.integers(len(keys)))]
    kind = rng.random()
    copy = value.copy()
    if kind < 0.1:
        del copy[key]
    elif kind < 0.2 and isinstance(copy, dict):
        copy[str(HOSTILE[int(rng.integers(len(HOSTILE)))])] = value[key]
    elif kind < 0.25 and isinstance(copy, list):
        copy = copy * int(rng.integers(2, 30))
    else:
        copy[key] = _other(value[key], rng)
    return copy


def damage_safetensors(data: bytes, rng: Rng) -> bytes:
    """The header as JSON, with its own JSON in the texts of the metadata; or bytes."""
    if rng.random() < 0.3:
        return damage_bytes(data, rng)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    metadata = header.get("__metadata__", {})
    if metadata and rng.random() < 0.5:
        key = list(metadata)[int(rng.integers(len(metadata)))]
        metadata[key] = damage_json(str(metadata[key]).encode(), rng).decode("utf-8", "replace")
    else:
        header = _other(header, rng)
    packed = json.dumps(header).encode()
    packed += b" " * (-len(packed) % 8)
    return len(packed).to_bytes(8, "little") + packed + data[end:]


# ---- readers


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of input: whole ones, how they are damaged, and what reads them."""

    wholes: tuple[bytes, ...]
    damage: Callable[[bytes, Rng], bytes]
    read: Callable[[bytes], object]


Make = Callable[[Path], Reader]


def _file_reader(folder: Path, name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path = folder / name

    def use(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return use


def markup(folder: Path) -> Reader:
    wholes = (
        b"[/EN#12/people A man] in [/EN#3/clothing/other a red hat] sits .",
        b"[/EN#0/notvisual it] is [/EN#1/scene x]",
    )
    return Reader(wholes, damage_text, lambda data: parse_caption(data.decode("utf-8", "replace"), 0, {}, []))


def phrases(folder: Path) -> Reader:
    def read(data: bytes) -> object:
        caption, _, phrase = data.decode("utf-8", "replace").partition("\n")
        return locate_phrases(caption, [phrase, (0, 5)])

    return Reader((b"A man with a red ball sees the dog.\na red ball", b"Three dogs run.\nrun"), damage_text, read)


def json_lines(folder: Path) -> Reader:
    phrase = {"start": 0, "end": 5, "boxes": [[0, 0, 10.5, 10]], "categories": ["people"], "entity": "1"}
    lines = [
        {"image": f"{n}.jpg", "width": 40, "height": 30, "captions": [{"text": "a man sits", "phrases": [phrase]}]}
        for n in range(3)
    ]
    whole = "\n".join(map(json.dumps, lines)).encode()
    return Reader((whole,), damage_json, _file_reader(folder, "data.jsonl", read_jsonl))


def class_boxes(folder: Path) -> Reader:
    line = b'{"image": "a.jpg", "width": 40, "height": 30, "boxes": [["dog", 0, 0, 9, 9]]}\n'
    whole = line + line.replace(b"a.jpg", b"b.jpg")
    return Reader((whole,), damage_json, _file_reader(folder, "boxes.jsonl", read_class_boxes))


def given_boxes(folder: Path) -> Reader:
    whole = b'{"a.jpg": [[0, 0, 10, 10.5], [1, 2, 3, 4]], "b.jpg": [[5, 5, 6, 6]]}'
    return Reader((whole,), damage_json, _file_reader(folder, "given.json", read_given_boxes))


def captions(folder: Path) -> Reader:
    Image.new("RGB", (4, 4)).save(folder / "a.png")
    whole = b'{"image": "a.png", "caption": "a man", "phrases": ["a man", [0, 1]]}\n' * 2
    read = _file_reader(folder, "captions.jsonl", read_captions)
    table = _file_reader(folder, "captions.tsv", read_captions)
    wholes = (whole, b"image\tcaption\na.png\ta man and a dog\n")
    return Reader(wholes, lambda data, rng: (damage_json if data[:1] == b"{" else damage_text)(data, rng),
                  lambda data: (read if b"{" in data[:5] else table)(data))  # fmt: skip


def predictions(folder: Path) -> Reader:
    regions = [{"box": [0, 0, 5, 5], "probability": 0.5}, {"box": [1, 1, 2, 2], "probability": 0.25}]
    record = {"image": "1", "caption": 0, "start": 0, "end": 5, "box": [0, 0, 5, 5.5], "regions": regions}
    whole = (json.dumps(record) + "\n").encode() * 3
    return Reader((whole,), damage_json, _file_reader(folder, "p.jsonl", lambda path: list(read_predictions(path))))


def toml(folder: Path) -> Reader:
    whole = b'[train]\nrate = 1e-3\nbatch = 16\nseed = 3\n[model]\nlstm = 64\nactivation = "relu"\nchain = true\n'
    return Reader((whole,), damage_text, _file_reader(folder, "a.toml", lambda path: make_settings(Config(), path)))


def annotations(folder: Path) -> Reader:
    whole = annotation_xml([]).encode()
    boxes = b"<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
    whole = whole.replace(b"</annotation>", boxes * 2 + b"</annotation>")
    return Reader((whole,), damage_text, _file_reader(folder, "a.xml", read_annotation))


def vectors(folder: Path) -> Reader:
    return Reader(
        (b"2 3\na 1 2 3\nb c 4 5 6\n", b"the 0.5 1e-3\nof -1 2\n"),
        damage_text,
        _file_reader(folder, "v.txt", read_vectors),
    )


def _features(folder: Path, name: str) -> Callable[[bytes], object]:
    def read(path: Path) -> object:
        return [entry.load() for entry in open_features([path]).entries]

    return _file_reader(folder, name, read)


def tsv(folder: Path) -> Reader:
    return Reader((tsv_bytes(IMAGES),), damage_bytes, _features(folder, "a.tsv"))


def npz(folder: Path) -> Reader:
    write_ddpn(folder / "npz", IMAGES)
    wholes = tuple(path.read_bytes() for path in sorted((folder / "npz").iterdir()))
    return Reader(wholes, damage_bytes, _features(folder, "a.npz"))


def ban(folder: Path) -> Reader:
    write_ban(folder / "a.hdf5", IMAGES)
    return Reader(((folder / "a.hdf5").read_bytes(),), damage_bytes, _features(folder, "a.hdf5"))


def pickled_ids(folder: Path) -> Reader:
    write_ban(folder / "a.hdf5", IMAGES)
    path = folder / "a_imgid2idx.pkl"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return [entry.load() for entry in open_features([folder / "a.hdf5"]).entries]

    return Reader((path.read_bytes(),), damage_bytes, read)


def elmo(folder: Path) -> Reader:
    options = make_options()
    paths = sorted(write_files(folder, options, make_arrays(options)))  # options.json, weights.hdf5
    return Reader(
        (paths[1].read_bytes(),),
        damage_bytes,
        _file_reader(folder, paths[1].name, lambda _: ElmoEncoder.from_files(*paths)),
    )


def elmo_options(folder: Path) -> Reader:
    options = make_options()
    paths = sorted(write_files(folder, options, make_arrays(options)))
    return Reader(
        (paths[0].read_bytes(),),
        damage_json,
        _file_reader(folder, paths[0].name, lambda _: ElmoEncoder.from_files(*paths)),
    )


def store(folder: Path) -> Reader:
    """A file of a store in turn: the first byte of the input says which."""
    write_store(folder / "store", IMAGES)
    files = sorted(path for path in (folder / "store").iterdir() if path.is_file())

    def read(data: bytes) -> object:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(folder / "store", folder / "copy")
        (folder / "copy" / files[data[0]].name).write_bytes(data[1:])
        found = FeatureStore.open(folder / "copy")
        return [found[image.image] for image in IMAGES if image.image in found]

    def damage(data: bytes, rng: Rng) -> bytes:
        kind = damage_safetensors if files[data[0]].suffix == ".safetensors" else damage_json
        return data[:1] + kind(data[1:], rng)

    return Reader(tuple(bytes([n]) + path.read_bytes() for n, path in enumerate(files)), damage, read)


def _folder_reader(folder: Path, names: tuple[str, ...], damage: Callable[[bytes, Rng], bytes]) -> Reader:
    """A grounder's folder with one file damaged: the first byte of the input says which."""
    home = write_grounder(folder / "model")
    Grounder.from_pretrained(home, device="cpu").save_pretrained(folder / "whole")
    wholes = {name: (folder / "whole" / name).read_bytes() for name in names}

    def read(data: bytes) -> object:
        name = names[data[0]]
        try:
            (folder / "whole" / name).write_bytes(data[1:])
            return load_pretrained(folder / "whole")
        finally:
            (folder / "whole" / name).write_bytes(wholes[name])

    inputs = tuple(bytes([number]) + data for number, data in enumerate(wholes.values()))
    return Reader(inputs, lambda data, rng: data[:1] + damage(data[1:], rng), read)


def model_settings(folder: Path) -> Reader:
    return _folder_reader(folder, ("config.json", "text.json", "calibration.json"), damage_json)


def model_weights(folder: Path) -> Reader:
    return _folder_reader(folder, ("model.safetensors", "regions.safetensors"), damage_safetensors)


def finder(folder: Path) -> Reader:
    whole = (write_grounder(folder / "model") / "finder.safetensors").read_bytes()
    return Reader((whole,), damage_safetensors, _file_reader(folder, "f.safetensors", PhraseFinder.load))


def images(folder: Path) -> Reader:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (24, 40, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, dict[str, Any]]] = [
        *(("JPEG", {}), ("JPEG", {"progressive": True, "exif": exif}), ("PNG", {}), ("PNG", {"exif": exif})),
        *(("WEBP", {}), ("WEBP", {"lossless": True}), ("GIF", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"})),
        *(("BMP", {}), ("PPM", {})),
        *([("AVIF", {})] if features.check("avif") else []),
    ]
    wholes = []
    for format, options in kinds:
        stream = io.BytesIO()
        picture.save(stream, format, **options)
        wholes.append(stream.getvalue())

    def read(path: Path) -> object:
        return read_photo(path, 64), read_rgb(path)

    return Reader(tuple(wholes), damage_bytes, _file_reader(folder, "photo", read))


def chain(folder: Path) -> Reader:
    """Chains of any scores, lengths and masks, unvalidated: the input is the seed of one."""

    def read(data: bytes) -> object:
        if not data:
            return None
        generator = torch.Generator().manual_seed(int.from_bytes(data[:8], "little") % (1 << 62))
        B, T, K = (int(torch.randint(1, high, (), generator=generator)) for high in (5, 7, 20))
        emissions = torch.randn(B, T, K, generator=generator) * 10 ** float(
            torch.randint(-2, 30, (), generator=generator)
        )
        emissions[torch.rand(B, T, K, generator=generator) < 0.05] = torch.nan
        shape = [(K, K), (B, 1, K, K), (1, max(T - 1, 1), K, K), (B, max(T - 1, 1), K, K)][data[-1] % 4]
        lengths = torch.randint(-1, T + 3, (B,), generator=generator)
        mask = torch.rand(B, K, generator=generator) < 0.7
        transitions = torch.randn(shape, generator=generator).requires_grad_()
        crf = ChainCRF(emissions.requires_grad_(), transitions, lengths, mask, validate=False)
        crf.viterbi()
        loss = crf.kl(torch.rand(B, T, K, generator=generator))
        loss.sum().backward()
        return crf.marginals

    return Reader((b"",), lambda data, rng: rng.bytes(9), read)


#: Each with how many cases a whole campaign has.
READERS: dict[str, tuple[int, Make]] = {
    "mark-up": (300_000, markup),
    "phrases": (200_000, phrases),
    "JSON lines": (100_000, json_lines),
    "boxes of classes": (50_000, class_boxes),
    "given boxes": (50_000, given_boxes),
    "captions": (100_000, captions),
    "predictions": (100_000, predictions),
    "TOML": (50_000, toml),
    "annotations": (50_000, annotations),
    "word vectors": (50_000, vectors),
    "features, TSV": (20_000, tsv),
    "features, npz": (20_000, npz),
    "features, BAN": (15_000, ban),
    "pickles of ids": (10_000, pickled_ids),
    "ELMo's weights": (5_000, elmo),
    "ELMo's options": (10_000, elmo_options),
    "stores": (10_000, store),
    "model settings": (10_000, model_settings),
    "model weights": (5_000, model_weights),
    "phrase finders": (5_000, finder),
    "images": (20_000, images),
    "chains": (20_000, chain),
}
