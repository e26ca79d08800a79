"""Single inputs of untrusted files, each of which once ended in a traceback, a hang or gigabytes: now in one line."""

import io
import json
import pickle
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from elmo_models import make_arrays, make_options, write_files
from feature_files import write_ban, write_ddpn
from paths import importing
from phrasechain import Grounder
from phrasechain.core.errors import DataError
from phrasechain.core.json_lines import parse_settings
from phrasechain.core.settings import make_settings
from phrasechain.data.jsonl import read_jsonl
from phrasechain.model.config import Config
from phrasechain.phrases.finder import FINDER_FORMAT, LABELS, MOST, PhraseFinder
from phrasechain.phrases.given import locate_phrases
from phrasechain.store.importers.features import import_features
from phrasechain.store.importers.plain_pickle import read_plain_pickle
from phrasechain.text.elmo import ElmoEncoder
from phrasechain.text.encoders import build_encoder
from store_helpers import make_regions
from tiny_grounder import CAPTION, tiny_grounder, write_grounder
from tiny_regions import write_photo

HUGE = 10**400


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_grounder(tmp_path_factory.mktemp("written") / "model")


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def refused(use: Callable[[], object], name: str, match: str | None = None) -> None:
    with pytest.raises(DataError, match=match) as caught:
        use()
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def outcome(use: Callable[[], object]) -> str | None:
    """What is told where it is refused."""
    try:
        use()
    except DataError as error:
        return str(error)
    return None


def change(file: Path, path: str, text: str) -> None:
    """Put the JSON ``text`` at a dotted path of a file; it need not be what Python would write."""
    found: Any = json.loads(file.read_text())
    *parents, last = path.split(".")
    place = found
    for key in parents:
        place = place[key]
    place[last] = "@here@"
    file.write_text(json.dumps(found).replace('"@here@"', text))


@pytest.mark.parametrize("line", ['{"id": ""}', '{"id": "", "image": "a.jpg"}', '{"id": 5}', '{"image": ""}'])
def test_an_image_without_a_name(tmp_path: Path, line: str) -> None:
    (tmp_path / "data.jsonl").write_text(line + "\n")
    examples, _, problems = read_jsonl(tmp_path / "data.jsonl")
    assert (examples, len(problems)) == ([], 1)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("step", "1e999"),
        ("step", "1.5"),
        ("step", str(HUGE)),
        ("score", str(HUGE)),
        ("score", '"high"'),
        ("model.dropout", str(HUGE)),
        ("model.lstm", "1e9"),
        ("model", "[" * 200_000),
        ("regions", "5"),
        ("regions.dimension", str(HUGE)),
        ("decode", "[]"),
        ("format", "{}"),
        ("trained", "0"),
    ],
)
def test_a_configuration(folder: Path, path: str, text: str) -> None:
    change(folder / "config.json", path, text)
    refused(lambda: Grounder.from_pretrained(folder), "config.json")


@pytest.mark.parametrize("key", ["weights", "constant"])
def test_a_calibration(folder: Path, key: str) -> None:
    grounder = Grounder.from_pretrained(folder, device="cpu")
    grounder.save_pretrained(folder.with_name("out"))
    file = folder.with_name("out") / "calibration.json"
    values = {"weights": f"[{HUGE}, 1, 1]", "constant": "0"} | ({key: str(HUGE)} if key == "constant" else {})
    text = '{"viterbi": {' + ", ".join(f'"{name}": {value}' for name, value in values.items()) + "}}"
    change(file, "decoders", text)
    refused(lambda: Grounder.from_pretrained(folder.with_name("out")), "calibration.json")


SIZES = {
    "characters": 2,
    "filters": [[1, 2], [3, 4]],
    "highways": 2,
    "activation": "relu",
    "longest_word": 12,
    "state": 3,
    "cell": 5,
    "depth": 2,
    "cell_clip": 3.0,
    "state_clip": 3.0,
    "skip": True,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("cell_clip", HUGE), ("filters", [[1]]), ("filters", [[1, 2, 3]]), ("filters", 5), ("state", 0)),
        *(("depth", 10**9), ("cell", 10**9), ("highways", -1), ("longest_word", "x"), ("skip", 1)),
        *(("layers", []), ("frozen", "yes"), ("activation", 5), ("activation", "none"), ("unknown", 1)),
    ],
)
def test_the_settings_of_elmo(key: str, value: object) -> None:
    build_encoder("elmo", SIZES)
    refused(lambda: build_encoder("elmo", SIZES | {key: value}), "")


@pytest.mark.parametrize("key", list(SIZES))
def test_elmo_without_one_of_its_settings(key: str) -> None:
    refused(lambda: build_encoder("elmo", {name: SIZES[name] for name in SIZES if name != key}), "", f'"{key}"')


@pytest.mark.parametrize(
    "changes",
    [
        *({"dimension": 0}, {"dimension": 10**9}, {"buckets": 10**12}, {"words": 5}, {"words": [5]}),
        *({"word_dropout": 1}, {"word_dropout": "x"}, {"frozen": 1}, {"lowercase": None}, {"unknown": 1}),
    ],
)
def test_the_settings_of_words(changes: dict[str, object]) -> None:
    refused(lambda: build_encoder("words", {"words": ["a"], "dimension": 3} | changes), "the text encoder 'words'")


@pytest.mark.parametrize("settings", [None, [], 5, "x", {}])
@pytest.mark.parametrize("name", ["words", "elmo", "transformer"])
def test_settings_that_are_none(name: str, settings: object) -> None:
    refused(lambda: build_encoder(name, settings), "")


@pytest.mark.parametrize("name", [None, [], 5, {"a": 1}])
def test_names_of_encoders_that_are_none(name: object) -> None:
    refused(lambda: build_encoder(name, {}), "no text encoder named")


BERT = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_hidden_layers": 10**8}, '"num_hidden_layers" is not within'),
        ({"vocab_size": 10**12}, '"vocab_size" is not within'),
        ({"model_type": "no-such-model"}, "no transformer of the kind"),
        ({"model_type": 5}, "names no"),
        ({"hidden_size": "x"}, None),
    ],
)
def test_the_settings_of_a_transformer(changes: dict[str, object], match: str | None) -> None:
    pytest.importorskip("transformers")
    settings = {"config": BERT | changes, "tokenizer": "{}", "limit": 10}
    refused(lambda: build_encoder("transformer", settings), "", match)


def test_a_transformer_is_passed_no_name_of_code() -> None:
    pytest.importorskip("transformers")
    from phrasechain.text.transformer_settings import check_config

    names = {"attn_implementation": "a/b", "_attn_implementation": "a/b", "auto_map": {"AutoModel": "a/b"}, "odd": 1}
    assert check_config(BERT | {"num_hidden_layers": 1} | names) == BERT | {"num_hidden_layers": 1}


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("key", ["train.rate", "train.batch"])
def test_a_toml_number_of_many_digits(tmp_path: Path, digits: int, key: str) -> None:
    file, (section, name) = tmp_path / "a.toml", key.split(".")
    file.write_text(f"[{section}]\n{name} = {'9' * digits}\n")
    refused(lambda: make_settings(Config(), file), "a.toml")
    refused(lambda: make_settings(Config(), texts=[f"{key}={'9' * digits}"]), "--set")


@pytest.mark.parametrize(
    "content", [b"a = " + b"[" * 100_000, b"\xff", b"a = 1979-05-27T07:32:00+99:99", b"[a.b]\n[a]\nb=1"]
)
def test_toml_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    refused(lambda: make_settings(Config(), tmp_path / "a.toml"), "a.toml: ")


NAMES = ("x", "bbox", "num_bbox", "image_w", "image_h")


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': (), 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (10**30,)}"),
        npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 5000},)}}"),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4)}", b"\0" * 16),
        npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", b"\0" * 4),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': 5}"),
        npy("(" * 3000),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickle.dumps([1])),
        b"",
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_an_npz_with_an_odd_array(tmp_path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for other in NAMES:
            stream = io.BytesIO()
            np.save(stream, np.ones((1, 4), np.float32) if other in ("x", "bbox") else np.array(1))
            archive.writestr(f"{other}.npy", content if other == name else stream.getvalue())
    refused(lambda: import_features([tmp_path / "a.npz"], tmp_path / "store"), "a.npz")
    assert not (tmp_path / "store").exists()


def test_an_npz_with_a_corrupt_lzma_member(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        for name in NAMES:
            archive.writestr(f"{name}.npy", bytes(200))
    content = bytearray(file.read_bytes())
    start = content.index(b"x.npy") + 5
    content[start + 9 : start + 20] = b"\xff" * 11
    file.write_bytes(content)
    refused(lambda: import_features([file], tmp_path / "store"), "a.npz")


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "[]", "5", "{", "", "NaN", '{"format": 1e999}'])
def test_the_header_of_a_finder(folder: Path, text: str) -> None:
    file = folder / "finder.safetensors"
    file.write_bytes(save(load_file(file), {"finder": text}))
    refused(lambda: Grounder.from_pretrained(folder), "finder.safetensors")


def test_a_finder_of_few_bytes_and_large_claims_takes_no_memory(tmp_path: Path) -> None:
    about = {"format": FINDER_FORMAT, "labels": LABELS, "shape": MOST, "words": []}
    file = tmp_path / "finder.safetensors"
    file.write_bytes(save({"a": torch.zeros(1)}, {"finder": json.dumps(about)}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(lambda: PhraseFinder.load(file), "finder.safetensors", "does not fit its shape")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.parametrize("kind", ["ban", "elmo"])
def test_hdf5_with_any_byte_of_its_headers_changed(tmp_path: Path, kind: str) -> None:
    """Every ninth of the first 2,000 bytes in turn, then some: an error of one line, or none."""
    if kind == "ban":
        file = tmp_path / "a.hdf5"
        write_ban(file, [make_regions("1"), make_regions("2")])

        def use() -> object:
            shutil.rmtree(tmp_path / "store", ignore_errors=True)
            return import_features([file], tmp_path / "store")
    else:
        options = make_options()
        paths = write_files(tmp_path, options, make_arrays(options))
        file = next(path for path in paths if path.suffix == ".hdf5")

        def use() -> object:
            return ElmoEncoder.from_files(*sorted(paths))  # options.json, weights.hdf5

    whole = file.read_bytes()
    use()
    rng, failed = np.random.default_rng(0), 0
    for place in [*range(0, min(2000, len(whole)), 9), *range(2000, len(whole), 199)]:
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        told = outcome(use)
        assert told is None or (str(file) in told and "\n" not in told)
        failed += told is not None
    assert failed > 5


@pytest.mark.parametrize(
    "text", ["{" + '"a": [' * 100_000, f'{{"a": {HUGE}}}', '{"a": 1e400}', '{"a": -Infinity}', "[]"]
)
def test_settings_of_json(text: str) -> None:
    refused(lambda: parse_settings(text.encode()), "")


# ---- bombs: what is expanded is bounded, and the error tells it


def test_a_pickle_of_shared_nesting_does_not_hang(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]  # 2⁶⁰ lists to whoever walks them
    write_ban(tmp_path / "a.hdf5", [make_regions("1")])
    (tmp_path / "a_imgid2idx.pkl").write_bytes(pickle.dumps({"1": nested}))
    refused(lambda: import_features([tmp_path / "a.hdf5"], tmp_path / "store"), "a_imgid2idx.pkl", "str → list")


def test_a_pickle_with_a_large_memo(tmp_path: Path) -> None:
    file = tmp_path / "a.pkl"
    file.write_bytes(
        b"\x80\x02}r" + (1 << 24).to_bytes(4, "little") + b"X" + bytes([100, 0, 0, 0]) + b"a" * 100 + b"0."
    )
    refused(lambda: read_plain_pickle(file), "a.pkl", "out of range")
    for protocol in range(5):  # honest ones are read
        file.write_bytes(pickle.dumps({f"{n}": [n, str(n)] for n in range(600)}, protocol))
        assert read_plain_pickle(file)["599"] == [599, "599"]


def test_a_gzipped_tsv_that_unpacks_without_end(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress((b"x" * 1000 + b"\n") * 40_000, 1))
    refused(lambda: import_features([tmp_path / "a.tsv.gz"], tmp_path / "store", on_error="skip"), "a.tsv.gz")


def test_hdf5_chunks_that_unpack_to_much(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    write_ban(tmp_path / "a.hdf5", [make_regions("1")])
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["image_features"]
        file.create_dataset("image_features", (1 << 26, 3), "f4", chunks=(1 << 25, 3), compression="gzip")
    refused(lambda: import_features([tmp_path / "a.hdf5"], tmp_path / "store"), "a.hdf5", "unpack to more than")


def test_an_npz_that_unpacks_to_much(tmp_path: Path) -> None:
    write_ddpn(tmp_path / "npz", [make_regions("1")])
    file = next((tmp_path / "npz").iterdir())
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in NAMES:
            archive.writestr(f"{name}.npy", bytes(1 << 24))
    refused(lambda: import_features([file], tmp_path / "store"), file.name, "unpack to more than")


# ---- what else used to take long, or to end in a traceback


def test_a_long_phrase_that_is_not_in_a_long_caption() -> None:
    caption = " ".join(f"word{number}" for number in range(2000))
    refused(lambda: locate_phrases(caption, ["some other words " * 33]), "is not in the caption")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_default_dtype_is_told(tmp_path: Path, dtype: torch.dtype) -> None:
    grounder, photo = tiny_grounder(tmp_path / "model"), write_photo(tmp_path / "a.png")
    torch.set_default_dtype(dtype)
    try:
        refused(lambda: grounder.ground(photo, CAPTION), "torch's default dtype is")
        refused(lambda: Grounder.from_pretrained(tmp_path / "model"), "torch.set_default_dtype(torch.float32)")
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_default_device_is_told(tmp_path: Path) -> None:
    torch.set_default_device("meta")
    try:
        refused(lambda: Grounder.from_pretrained(tmp_path), "torch's default device is meta")
    finally:
        torch.set_default_device(None)


def test_autocast_changes_nothing(tmp_path: Path) -> None:
    grounder, photo = tiny_grounder(tmp_path / "model", photos=0), write_photo(tmp_path / "a.png")
    plain = grounder.ground(photo, CAPTION)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert grounder.ground(photo, CAPTION).phrases == plain.phrases


def test_an_interrupt_while_modules_are_imported_is_told(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    environment = importing(__file__)
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    command = [sys.executable, "-m", "phrasechain", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "phrasechain: interrupted\n")
