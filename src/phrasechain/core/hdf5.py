"""HDF5 files (the extra ``train``): the one door to h5py. What it raises on a broken file becomes one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phrasechain.core.errors import DataError, library_errors

_CHUNK_BYTES = 1 << 26  # of a chunk once it is unpacked: reading one value of it takes them all


class Hdf5Array:
    """An array of numbers within a file: its shape and type are known, its values are read when asked for."""

    def __init__(self, name: str, data: Any, where: str) -> None:
        self.name, self._data, self._where = name, data, where
        with library_errors(f"{where}{name!r} is broken"):
            self.shape: tuple[int, ...] = tuple(map(int, data.shape))
            self.dtype: np.dtype[Any] = np.dtype(data.dtype)
            chunks = tuple(map(int, data.chunks or (1,)))
        if self.dtype.kind not in "fiu" or self.dtype.itemsize > 8:
            raise DataError(f"{where}{name!r} is not an array of numbers")
        if prod(chunks) * self.dtype.itemsize > _CHUNK_BYTES:
            raise DataError(
                f"{where}{name!r} is stored in chunks of {chunks}, which unpack to more than {_CHUNK_BYTES:,} bytes"
            )

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, where: int | slice = slice(None), *, most: int) -> NDArray[Any]:
        """The values of these rows; more than ``most`` of them are refused unread."""
        rows = 1 if isinstance(where, int) else len(range(*where.indices(len(self))))
        if rows * prod(self.shape[1:]) > most:
            raise DataError(f"{self._where}{self.name!r} would unpack to more than {most:,} numbers")
        with library_errors(f"{self._where}cannot read {self.name!r}"):
            return np.asarray(self._data[where])


class Hdf5File:
    """An open file; its arrays are found by their paths. Links to other places and files are not followed."""

    def __init__(self, file: Any, where: str) -> None:
        self._file, self._where = file, where

    def find(self, name: str) -> Hdf5Array | None:
        """The array at a path such as ``CNN/W_0``; ``None`` if there is none."""
        import h5py

        item: Any = self._file
        with library_errors(f"{self._where}cannot find {name!r}"):
            for part in name.split("/"):
                if not isinstance(item, h5py.Group) or not isinstance(item.get(part, getlink=True), h5py.HardLink):
                    return None
                item = item[part]
            if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or not item.ndim:
                raise DataError(f"{self._where}{name!r} is not an array of numbers within the file")
        return Hdf5Array(name, item, self._where)


@contextmanager
def open_hdf5(path: Path, who: str, *, named: bool = True) -> Iterator[Hdf5File]:
    """Open a file that ``who`` needs; errors begin with its path, unless not ``named``: the caller says it."""
    try:
        import h5py
    except ImportError:
        raise DataError(f"{who} needs h5py: pip install 'phrasechain[train]'") from None
    where = f"{path}: " if named else ""
    with library_errors(f"{where}cannot read it as HDF5"):
        file = h5py.File(path, "r")
    try:
        yield Hdf5File(file, where)
    finally:
        with library_errors(f"{where}cannot be closed"):
            file.close()
