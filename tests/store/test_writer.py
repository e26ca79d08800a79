"""Writing a store: resumed, killed, refused, merged."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from phrasechain.core.errors import DataError, PhrasechainError
from phrasechain.core.schema import Regions
from phrasechain.store.reader import FeatureStore
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter, merge_stores
from store_helpers import INFO, assert_same, fails, make_regions, write


def test_features_are_rounded_to_the_type_of_the_store(tmp_path: Path):
    regions = replace(make_regions("a", 1), features=np.array([[1 / 3, -65504.0, 1e-9]]))
    write(tmp_path / "s", [regions], StoreInfo(dimension=3, dtype="float16"))
    np.testing.assert_array_equal(
        FeatureStore.open(tmp_path / "s")["a"].features, np.array([[1 / 3, -65504.0, 1e-9]], np.float16)
    )


NAN_BOX = np.array([[0, 0, np.nan, 1], [0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": ""}, "image id"),
        ({"image": "a\nb"}, "image id"),
        ({"image": "\ud800"}, "image id"),
        ({"width": 0}, "0 × 90"),
        ({"height": 2**31}, "whole pixels"),
        ({"boxes": NAN_BOX}, "NaN"),
        ({"boxes": np.array([[5, 0, 4, 1], [0, 0, 1, 1]])}, r"\[5\.0, 0\.0, 4\.0, 1\.0\], which ends before"),
        ({"boxes": np.zeros((2, 5))}, "shape"),
        ({"boxes": np.zeros((0, 4)), "features": np.zeros((0, 3))}, "1 to 10000 regions"),
        ({"features": np.zeros((2, 4))}, r"\(2, 4\), not \(2, 3\)"),
        ({"features": np.full((2, 3), np.inf)}, "infinity"),
        ({"features": np.full((2, 3), -65505.0)}, "65505, more than float16 can hold .* float32"),
        ({"features": np.array([["a", "b", "c"]] * 2)}, "not numbers"),
        ({"objectness": np.zeros(2)}, "must be absent"),
        ({"names": ("a", "b")}, "must be absent"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict, words: str):
    with StoreWriter(tmp_path / "s", StoreInfo(dimension=3)) as writer:
        with pytest.raises(DataError, match=words):
            writer.add(replace(make_regions("a"), **change))
        assert len(writer) == 0


def test_the_optional_parts_must_be_there_if_promised(tmp_path: Path):
    info = StoreInfo(dimension=3, has_objectness=True, has_names=True)
    with StoreWriter(tmp_path / "s", info) as writer:
        with pytest.raises(DataError, match="objectness must be given"):
            writer.add(make_regions("a"))
        with pytest.raises(DataError, match="2 regions have 1 class names"):
            writer.add(replace(make_regions("a"), objectness=np.zeros(2), names=("dog",)))


def test_writing_again_skips_what_is_there(tmp_path: Path):
    write(tmp_path / "s", [make_regions("a"), make_regions("b")])
    before = (tmp_path / "s" / "shard-000000.safetensors").read_bytes()
    with StoreWriter(tmp_path / "s", INFO) as writer:
        assert "a" in writer
        assert not writer.add(make_regions("a", seed=1))
        assert FeatureStore.open(tmp_path / "s").is_finished
        assert writer.add(make_regions("c"))
        writer.flush()
        fails(tmp_path / "s", "unfinished, 3 images")
        writer.finish()
    store = FeatureStore.open(tmp_path / "s")
    store.verify()
    assert store.ids == ("a", "b", "c")
    assert_same(store["a"], make_regions("a"))
    assert (tmp_path / "s" / "shard-000000.safetensors").read_bytes() == before


def test_an_exception_keeps_what_was_added(tmp_path: Path):
    def stumble() -> None:
        with StoreWriter(tmp_path / "s", INFO) as writer:
            writer.add(make_regions("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stumble()
    assert FeatureStore.open(tmp_path / "s", partial=True).ids == ("a",)


def test_the_writer_keeps_copies(tmp_path: Path):
    regions = make_regions("a")
    with StoreWriter(tmp_path / "s", INFO) as writer:
        writer.add(regions)
        regions.features[:] = 0
        regions.boxes[:] = 0
        writer.finish()
    assert_same(FeatureStore.open(tmp_path / "s")["a"], make_regions("a"))


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (replace(INFO, dimension=4), "dimension 3, not 4"),
        (replace(INFO, dtype="float16"), "dtype 'float32', not 'float16'"),
        (replace(INFO, weights_sha256="ab"), "weights_sha256 None, not 'ab'"),
    ],
)
def test_going_on_with_another_kind_of_features_is_refused(tmp_path: Path, info: StoreInfo, words: str):
    write(tmp_path / "s", [make_regions("a")])
    with pytest.raises(DataError, match=words):
        StoreWriter(tmp_path / "s", info)
    write(tmp_path / "s", [make_regions("b")])  # the refused writer holds no lock


def test_other_folders_are_left_alone(tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(DataError, match="a non-empty folder that is not a region store"):
        StoreWriter(tmp_path, INFO)
    with pytest.raises(DataError, match="cannot write a store there"):
        StoreWriter(tmp_path / "thesis.tex", INFO)
    fails(tmp_path, "not a region store")
    fails(tmp_path / "absent", "not a region store")


def test_a_second_writer_is_refused(tmp_path: Path):
    with StoreWriter(tmp_path / "s", INFO), pytest.raises(DataError, match="another process is writing"):
        StoreWriter(tmp_path / "s", INFO)
    write(tmp_path / "s", [make_regions("a")])


KILLED = """
import sys
import numpy as np
from phrasechain.store.shard import StoreInfo
from phrasechain.store.writer import StoreWriter
from phrasechain.core.schema import Regions

writer = StoreWriter(sys.argv[1], StoreInfo(dimension=3, dtype="float32"), shard_bytes=300)
for n in range(100_000):
    features = np.full((2, 3), n, np.float32)
    writer.add(Regions(str(n), 10, 10, np.array([[0, 0, 1, 1], [0, 0, 2, 2]], np.float32), features))
    print(n, flush=True)
"""


def test_a_killed_writer_loses_at_most_its_shard(tmp_path: Path):
    store = tmp_path / "s"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, store], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 40:
            process.send_signal(signal.SIGKILL)
            break
    added = 41 + len(process.stdout.read().splitlines())
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL

    kept = FeatureStore.open(store, partial=True)
    kept.verify()
    per_shard = json.loads((store / "shards.jsonl").read_text().splitlines()[0])["images"]
    assert added - per_shard <= len(kept) <= added + 1
    with StoreWriter(store, kept.info, shard_bytes=300) as writer:  # the lock died with its process
        for n in range(added + 5):
            features = np.full((2, 3), n, np.float32)
            boxes = np.array([[0, 0, 1, 1], [0, 0, 2, 2]], np.float32)
            assert writer.add(Regions(str(n), 10, 10, boxes, features)) == (str(n) not in kept)
        writer.finish()
    whole = FeatureStore.open(store)
    whole.verify()
    assert whole.ids == tuple(str(n) for n in range(added + 5))
    assert all((whole[str(n)].features == n).all() for n in range(added + 5))


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_half_written_line_of_the_manifest_is_forgotten(tmp_path: Path, cut: int):
    images = [make_regions(name) for name in "abc"]
    with StoreWriter(tmp_path / "s", INFO, shard_bytes=1) as writer:
        for regions in images:
            writer.add(regions)
    manifest = tmp_path / "s" / "shards.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-cut])
    assert FeatureStore.open(tmp_path / "s", partial=True).ids == ("a", "b")
    write(tmp_path / "s", images, shard_bytes=1)
    store = FeatureStore.open(tmp_path / "s")
    store.verify()
    assert store.ids == ("a", "b", "c")


def test_stores_of_several_machines_merge(tmp_path: Path):
    parts = [[make_regions("a"), make_regions("b")], [make_regions("c", 5)]]
    for n, images in enumerate(parts):
        write(tmp_path / f"part{n}", images)
    sources = [tmp_path / "part0", tmp_path / "part1"]
    with StoreWriter(tmp_path / "whole", INFO) as writer:  # as if a merge had been interrupted
        writer.add(parts[0][0])
    assert merge_stores(sources, tmp_path / "whole") == 3
    store = FeatureStore.open(tmp_path / "whole")
    assert store.ids == ("a", "b", "c")
    for regions in (*parts[0], *parts[1]):
        assert_same(store[regions.image], regions)


def test_parts_that_do_not_fit_do_not_merge(tmp_path: Path):
    write(tmp_path / "one", [make_regions("a")])
    write(tmp_path / "same", [make_regions("a")])
    write(tmp_path / "other", [make_regions("b")], replace(INFO, extractor="another"))
    with pytest.raises(DataError, match=r"image 'a' is also in .*one"):
        merge_stores([tmp_path / "one", tmp_path / "same"], tmp_path / "whole")
    with pytest.raises(DataError, match="its extractor, dimension or dtype differs"):
        merge_stores([tmp_path / "one", tmp_path / "other"], tmp_path / "whole")
    with pytest.raises(DataError, match="no stores"):
        merge_stores([], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize("step", range(14))
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_death_at_every_point_where_the_disk_is_told_to_keep_something(tmp_path: Path, step: int):
    """Three shards and the finish make 13 calls of fsync: die at each one, before it returns."""
    images = [make_regions(name) for name in "abc"]
    child = os.fork()
    if child == 0:
        calls = iter(range(100))
        os.fsync = lambda _: os._exit(9) if next(calls) == step else None
        write(tmp_path / "s", images, shard_bytes=1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (9 if step < 13 else 0)
    kept = FeatureStore.open(tmp_path / "s", partial=True) if step > 0 else ()
    assert list(kept) == ["a", "b", "c"][: max(0, step - 1) // 3]
    write(tmp_path / "s", images, shard_bytes=1)
    store = FeatureStore.open(tmp_path / "s")
    store.verify()
    assert store.ids == ("a", "b", "c")
    assert not list((tmp_path / "s").glob(".*.tmp"))


def test_a_full_disk_is_one_line_and_loses_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "s", [make_regions("a")])

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer = StoreWriter(tmp_path / "s", INFO)
    writer.add(make_regions("b"))
    with monkeypatch.context() as patch:
        patch.setattr("phrasechain.store.writer.write_atomically", full)
        with pytest.raises(PhrasechainError, match="cannot write: No space left on device; fix that") as caught:
            writer.finish()
    assert not isinstance(caught.value, DataError)  # or an import would skip image after image
    writer.close()
    assert FeatureStore.open(tmp_path / "s", partial=True).ids == ("a", "b")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("step", range(2, 13))
def test_an_interrupt_while_writing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
):
    """The same points as above, but the process lives on and closes its writer."""
    calls = iter(range(100))
    added = []

    def interrupted(_: int) -> None:
        if next(calls) == step:
            raise error

    def add_all() -> None:
        with StoreWriter(tmp_path / "s", INFO, shard_bytes=1) as writer:
            for name in "abc":
                added.append(name)
                writer.add(make_regions(name))
            writer.finish()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises((KeyboardInterrupt, PhrasechainError)):
            add_all()
    store = FeatureStore.open(tmp_path / "s", partial=True)
    store.verify()
    assert list(store) == added
