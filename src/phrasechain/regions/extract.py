"""Photos in, a store of their regions out: several at once, in order, resumable, broken ones reported."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError
from phrasechain.core.files import read_bounded
from phrasechain.core.images import without_warnings
from phrasechain.core.parallel import in_order, usable_cores
from phrasechain.core.progress import track
from phrasechain.core.schema import Regions
from phrasechain.regions.detectors import PREFIX, load_detector
from phrasechain.regions.extractor import REGIONS, RegionExtractor
from phrasechain.regions.given_boxes import LARGEST, read_given_boxes
from phrasechain.regions.pixels import read_photo
from phrasechain.store.writer import StoreWriter

FLUSH_SECONDS = 20.0  # a kill loses no more work than this


@dataclass(frozen=True, slots=True)
class BoxSource:
    """Boxes that others chose: of an image id and its photo, (K, 4) in pixels of the photo as displayed."""

    name: str  # the store's header keeps it
    boxes: Callable[[str, Path], NDArray[np.floating]]


@dataclass(slots=True)
class ExtractReport:
    """What an extraction did."""

    written: int = 0
    already_there: int = 0
    problems: list[str] = field(default_factory=list)  # one line for each photo that was skipped


def extract(
    photos: Mapping[str, Path],
    out: Path,
    extractor: RegionExtractor,
    *,
    count: int = REGIONS,
    source: BoxSource | None = None,
    workers: int | None = None,
) -> ExtractReport:
    """Write the regions of photos, given by image id, to the store ``out``; what it has already is skipped.

    ``workers`` photos are worked on at once, by default one for each core, each on one thread: faster than one photo
    on all cores. Photos that cannot be used are skipped and reported. The store grows in the order of the photos; an
    interrupt loses nothing that was done, a kill at most the last ``FLUSH_SECONDS``.
    """
    workers = usable_cores() if workers is None else workers

    def extract_one(item: tuple[str, Path]) -> Regions | DataError:
        image, path = item
        try:
            boxes = None if source is None else source.boxes(image, path)
            return extractor.regions(image, read_photo(path, extractor.size), count, boxes)
        except DataError as error:
            return error

    name = extractor.info.extractor if source is None else f"{extractor.info.extractor}, boxes of {source.name}"
    with StoreWriter(out, replace(extractor.info, extractor=name)) as writer, without_warnings():
        missing = [item for item in photos.items() if item[0] not in writer]
        report = ExtractReport(already_there=len(photos) - len(missing))
        with closing(in_order(extract_one, missing, workers)) as found:
            flushed = time.monotonic()
            for (_, path), regions in track(zip(missing, found, strict=True), len(missing), "photos"):
                _add(writer, path, regions, report)
                if time.monotonic() - flushed >= FLUSH_SECONDS:
                    writer.flush()
                    flushed = time.monotonic()
        writer.finish()
    return report


def _add(writer: StoreWriter, path: Path, regions: Regions | DataError, report: ExtractReport) -> None:
    try:
        if isinstance(regions, DataError):
            raise regions
        writer.add(regions)
        report.written += 1
    except DataError as error:
        problem = str(error)
        report.problems.append(problem if problem.startswith(str(path)) else f"{path}: {problem}")


def given_boxes(file: Path) -> BoxSource:
    """The boxes of a JSON file, by image id or by the name of the photo."""
    known = read_given_boxes(file)

    def boxes(image: str, path: Path) -> NDArray[np.floating]:
        found = known.get(image, known.get(path.name))
        if found is None:
            raise DataError(f"{path}: {file} has no boxes for it, neither as {image!r} nor as {path.name!r}")
        return found

    digest = hashlib.sha256(read_bounded(file, LARGEST)).hexdigest()
    return BoxSource(f"{file.name} ({digest[:12]})", boxes)


def detected_boxes(name: str, count: int) -> BoxSource:
    """The ``count`` best boxes of somebody else's detector."""
    if not name.startswith(PREFIX):
        raise DataError(f"--proposals takes {PREFIX}MODEL, such as {PREFIX}facebook/detr-resnet-50, not {name!r}")
    detector = load_detector(name)

    def boxes(image: str, path: Path) -> NDArray[np.floating]:
        found, _ = detector.boxes(path, count)
        if not len(found):
            raise DataError(f"{path}: {name} finds nothing on it")
        return found

    return BoxSource(name, boxes)
