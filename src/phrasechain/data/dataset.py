"""Opening a dataset: a folder in the official layout or a JSON-lines file, whole or by split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from phrasechain.core.errors import DataError, require_name, unknown_name
from phrasechain.core.files import read_bounded
from phrasechain.core.progress import track
from phrasechain.core.schema import ALL, Example
from phrasechain.data.flickr30k import (
    CORRECTED,
    READINGS,
    Compatibility,
    DatasetFiles,
    Problem,
    is_official,
    list_dataset,
    read_image,
)
from phrasechain.data.index import Index, IndexBuilder, IndexedExamples, digest, index_path, load_index, save_index
from phrasechain.data.jsonl import read_jsonl

OnError = Literal["raise", "skip"]
SPLIT_FILES = ("train", "val", "test", "fit", "dev")
SPLIT_LIMIT = 64 << 20  # bytes
#: Phrases with a box in the evaluation splits: of Flickr30k Entities, and of its subset with the photos of Flickr8k.
KNOWN_BOXED_PHRASES = {"val": (14_433, 10_576), "test": (14_481,)}


@dataclass(frozen=True)
class Dataset:
    """The ids of all images and of each split, the problems found, and lazy access to the examples."""

    path: Path
    images: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    problems: tuple[Problem, ...]
    read: Callable[[Sequence[str]], Sequence[Example]]  # skips ids that cannot be used
    is_official: bool  # in the layout of Flickr30k Entities

    def ids(self, split: str | None = None) -> tuple[str, ...]:
        """The image ids of a split, in its order; of all images for ``None`` or ``"all"``."""
        if split is None or split == ALL:
            return self.images
        if split not in self.splits:
            raise DataError(f"{self.path}: {unknown_name('split', split, [*self.splits, ALL])}")
        return self.splits[split]

    def split_to_score(self) -> str:
        """The split that is scored where none is named: ``test``, or the only one that nothing is learnt from."""
        learnt = {"train", "fit", "dev"} if "fit" in self.splits else {"train"}
        others = [split for split in self.splits if split not in learnt]
        return others[0] if len(others) == 1 else "test"

    def problems_of(self, images: Iterable[str]) -> list[Problem]:
        """The problems of these images, and those that belong to no known image."""
        wanted = {None, *images}
        return [problem for problem in self.problems if problem.image in wanted]

    def examples(self, split: str | None = None, on_error: OnError = "raise") -> Sequence[Example]:
        """The images of a split; ``on_error="skip"`` drops the images in ``problems`` instead of raising."""
        wanted = self.ids(split)
        if on_error == "raise" and (problems := self.problems_of(wanted)):
            more = f" (and {len(problems) - 1:,} more: phrasechain check lists them)" if len(problems) > 1 else ""
            raise DataError(f"{problems[0].message}{more}")
        return self.read(wanted)


def load_examples(
    data: Path | str,
    split: str | None = None,
    *,
    on_error: OnError = "raise",
    compatibility: Compatibility = CORRECTED,
    cache: Path | Literal[False] | None = None,
) -> Sequence[Example]:
    """The annotated images of a dataset, or of one of its splits; see :func:`open_dataset`."""
    return open_dataset(data, compatibility=compatibility, cache=cache).examples(split, on_error)


def open_dataset(
    data: Path | str,
    *,
    compatibility: Compatibility = CORRECTED,
    cache: Path | Literal[False] | None = None,
) -> Dataset:
    """Open a folder in the official layout or a ``.jsonl`` file.

    ``cache`` is a folder for the index of an official layout (the user's cache folder by default), or ``False``.
    """
    path = Path(data)
    if path.is_dir() and is_official(path):
        return _open_official(path, compatibility, cache)
    if path.is_file() and path.suffix == ".jsonl":
        examples, splits, problems = read_jsonl(path)
        by_id = {example.image: example for example in examples}
        read = partial(_pick, by_id)
        return Dataset(path, tuple(by_id), _with_fit_and_dev(splits), tuple(problems), read, is_official=False)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    raise DataError(f"{path}: not a dataset; give a folder with Sentences/ and Annotations/, or a .jsonl file")


def open_to_score(data: Path | str, reading: str = "corrected") -> Dataset:
    """Open a dataset whose boxes are the annotated ones in every reading: pixels are the evaluator's to choose."""
    require_name("reading of the data", reading, READINGS)
    return open_dataset(data, compatibility=replace(READINGS[reading], plus_one=False))


def is_dev(image: str) -> bool:
    """Whether an image of ``train`` is in ``dev`` (one in six) or in ``fit``: by a hash of its id, which never changes.

    >>> is_dev("1000"), is_dev("1001")
    (True, False)
    """
    return int.from_bytes(blake2b(image.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big") % 6 == 0


def unexpected_count(dataset: Dataset, split: str, boxed_phrases: int) -> str | None:
    """A warning if ``val`` or ``test`` of an official layout has an unexpected number of phrases with a box."""
    known = KNOWN_BOXED_PHRASES.get(split, ())
    if not dataset.is_official or not known or boxed_phrases in known:
        return None
    return f"{split} has {boxed_phrases:,} phrases with a box where Flickr30k Entities has {known[0]:,}"


def _pick(examples: Mapping[str, Example], images: Sequence[str]) -> list[Example]:
    return [examples[image] for image in images if image in examples]


def _with_fit_and_dev(splits: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    if "train" not in splits or "fit" in splits or "dev" in splits:
        return splits
    fit = tuple(image for image in splits["train"] if not is_dev(image))
    dev = tuple(image for image in splits["train"] if is_dev(image))
    return splits | {"fit": fit, "dev": dev}


def _open_official(root: Path, compatibility: Compatibility, cache: Path | Literal[False] | None) -> Dataset:
    files = list_dataset(root)
    index = _parse(files, compatibility) if cache is False else _cached_index(files, compatibility, cache)
    splits, problems = _read_splits(files)
    problems += [
        Problem(image, f"{entry.path}: has no Sentences/{image}.txt; restore it")
        for image, entry in files.annotations.items()
        if image not in files.sentences
    ]
    problems += [Problem(image, message) for image, message in index.problems]

    def read(images: Sequence[str]) -> Sequence[Example]:
        return IndexedExamples(index, images, files.photos)

    return Dataset(root, tuple(files.sentences), _with_fit_and_dev(splits), tuple(problems), read, is_official=True)


def _cached_index(files: DatasetFiles, compatibility: Compatibility, folder: Path | None) -> Index:
    path = index_path(f"{files.root.resolve()}\n{files.root}\n{astuple(compatibility)}", folder)
    signature = _signature(files)
    index = load_index(path, signature)
    if index is None:
        index = _parse(files, compatibility)
        save_index(path, signature, index)
    return index


def _signature(files: DatasetFiles) -> str:
    """A fingerprint that changes whenever a caption or annotation file is added, removed or written.

    It includes ctime, since tools can restore a file's mtime but not its ctime.
    """
    rows = [
        f"{entry.name}/{status.st_size}/{status.st_mtime_ns}/{status.st_ctime_ns}"
        for entries in (files.sentences, files.annotations)
        for entry in entries.values()
        for status in (entry.stat(),)
    ]
    return digest("\n".join(rows).encode("utf-8", "surrogateescape"))


def _parse(files: DatasetFiles, compatibility: Compatibility) -> Index:
    builder = IndexBuilder()
    for image in track(files.sentences, len(files.sentences), f"Reading {files.root.name}"):
        example, problems = read_image(files, image, compatibility)
        for problem in problems:
            builder.add_problem(image, problem.message)
        if example is not None:
            builder.add(example)
    return builder.build()


def _read_splits(files: DatasetFiles) -> tuple[dict[str, tuple[str, ...]], list[Problem]]:
    splits: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for name in SPLIT_FILES:
        path = files.root / f"{name}.txt"
        if not path.is_file():
            continue
        images: dict[str, int] = {}
        lines = read_bounded(path, SPLIT_LIMIT).decode("utf-8-sig", "backslashreplace").split("\n")
        for number, line in enumerate(lines, start=1):
            image = line.strip()
            if image and images.setdefault(image, number) != number:
                problems.append(
                    Problem(image, f"{path}:{number}: {image} again, after line {images[image]}; remove it")
                )
            elif image and image not in files.sentences:
                missing = files.root / "Sentences" / f"{image}.txt"
                problems.append(
                    Problem(image, f"{path}:{number}: {image} is listed but {missing} is missing; restore it")
                )
        splits[name] = tuple(images)
    return splits, problems
