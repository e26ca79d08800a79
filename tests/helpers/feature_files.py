"""Feature files of other tools, written as their own tools write them."""

import base64
import csv
import io
import pickle
from pathlib import Path

import h5py
import numpy as np

from phrasechain.core.schema import Regions
from phrasechain.store.reader import FeatureStore
from store_helpers import make_regions

COLUMNS = ["image_id", "image_w", "image_h", "num_boxes", "boxes", "features"]


IMAGES = [make_regions("1000", 2), make_regions("2000", 4), make_regions("3000", 1)]


def tsv_bytes(images: list[Regions], **changes: object) -> bytes:
    """What bottom-up-attention's generate_tsv.py writes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, delimiter="\t", fieldnames=COLUMNS)
    for regions in images:
        row = {
            "image_id": regions.image,
            "image_w": regions.width,
            "image_h": regions.height,
            "num_boxes": len(regions.boxes),
            "boxes": base64.b64encode(np.ascontiguousarray(regions.boxes)).decode(),
            "features": base64.b64encode(np.ascontiguousarray(regions.features)).decode(),
        }
        writer.writerow({**row, **changes})
    return text.getvalue().encode()


def write_ban(file: Path, images: list[Regions], **datasets: np.ndarray) -> None:
    """What BAN's converter writes, and its pickle as Python 2 did."""
    ends = np.cumsum([len(regions.boxes) for regions in images])
    scale = [[regions.width, regions.height] * 2 for regions in images for _ in regions.boxes]
    boxes = np.concatenate([regions.boxes for regions in images])
    shares = boxes / np.array(scale, np.float32)
    arrays = {
        "image_features": np.concatenate([regions.features for regions in images]),
        "image_bb": boxes,
        "spatial_features": np.concatenate([shares, shares[:, 2:] - shares[:, :2]], axis=1),
        "pos_boxes": np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1),
    }
    with h5py.File(file, "w") as hdf5:
        for name, values in {**arrays, **datasets}.items():
            if values is not None:
                hdf5[name] = values
    rows = {int(regions.image): row for row, regions in enumerate(images)}
    file.with_name(f"{file.stem}_imgid2idx.pkl").write_bytes(pickle.dumps(rows, protocol=2))


def write_ddpn(folder: Path, images: list[Regions], suffix: str = ".jpg.npz", **changes: object) -> None:
    folder.mkdir(exist_ok=True)
    for regions in images:
        arrays = {
            "x": regions.features.T,
            "bbox": regions.boxes,
            "num_bbox": len(regions.boxes),
            "image_h": regions.height,
            "image_w": regions.width,
        }
        np.savez_compressed(folder / f"{regions.image}{suffix}", **{**arrays, **changes})


def assert_imported(store: Path, images: list[Regions]) -> None:
    opened = FeatureStore.open(store)
    opened.verify()
    assert sorted(opened.ids) == sorted(regions.image for regions in images)
    for wanted in images:
        got = opened[wanted.image]
        assert (got.width, got.height) == (wanted.width, wanted.height)
        np.testing.assert_array_equal(got.boxes, wanted.boxes)
        np.testing.assert_array_equal(got.features, wanted.features.astype(opened.info.dtype))
