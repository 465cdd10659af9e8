"""A file with one bit per pixel of a scene: 1 where black is nodata, for all shards of the scene.

The file is in the working folder of the build, which all workers can reach. Objects in a bucket
cannot be changed, so every strip is an object until all are joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from geoprep.storage import Bucket, flush, is_bucket


def create_bits(location: str, height: int, width: int) -> None:
    """Create a sparse file of zeros."""
    if not is_bucket(location):
        _create(Path(location), height, width)


def write_bits(location: str, top: int, mask: NDArray[np.bool_]) -> None:
    """Write whole rows, bool (y, x), from row ``top`` on."""
    rows = np.packbits(mask, axis=1)
    if is_bucket(location):
        Bucket(location + ".strips").put(str(top), rows.tobytes())
        return
    with Path(location).open("r+b") as file:
        file.seek(top * rows.shape[1])
        file.write(rows.tobytes())


@contextmanager
def edited_bits(location: str, height: int, width: int) -> Iterator[NDArray[np.uint8]]:
    """Yield uint8 (y, bytes), packed by row as by ``numpy.packbits``; changes are written back."""
    if not is_bucket(location):
        bits = _mapped(Path(location), width)
        yield bits
        bits.flush()  # before the journal mentions the file
        flush(Path(location))
        flush(Path(location).parent)
        return
    folder, _, name = location.rpartition("/")
    strips = Bucket(location + ".strips")
    with TemporaryDirectory() as here:
        path = Path(here) / "bits"
        _create(path, height, width)
        bits = _mapped(path, width)
        for top in strips.tags():
            if (found := strips.find(top)) is not None:
                rows = np.frombuffer(found[0], np.uint8).reshape(-1, _row_bytes(width))
                bits[int(top) : int(top) + len(rows)] = rows
        yield bits
        bits.flush()
        with path.open("rb") as file:
            Bucket(folder).send(name, file)


def has_bits(location: str) -> bool:
    """Return whether the file exists."""
    if not is_bucket(location):
        return Path(location).is_file()
    folder, _, name = location.rpartition("/")
    return name in Bucket(folder).tags()


def drop_bits(location: str) -> None:
    """Remove the file if it exists."""
    if not is_bucket(location):
        Path(location).unlink(missing_ok=True)
        return
    folder, _, name = location.rpartition("/")
    bucket = Bucket(folder)
    bucket.delete(one for one in bucket.tags() if one == name or one.startswith(f"{name}.strips/"))


def read_bits(location: str, width: int, rows: slice, cols: slice) -> NDArray[np.uint8]:
    """Return a window of the bits, uint8 (y, x)."""
    first, last = cols.start // 8, -(-cols.stop // 8)
    if is_bucket(location):
        folder, _, name = location.rpartition("/")
        line = _row_bytes(width)
        data = Bucket(folder).read_range(name, rows.start * line, rows.stop * line)
        bits = np.frombuffer(data, np.uint8).reshape(-1, line)[:, first:last]
    else:
        bits = _mapped(Path(location), width, "r")[rows, first:last]
    return np.unpackbits(bits, axis=1)[:, cols.start - 8 * first : cols.stop - 8 * first]


def _create(path: Path, height: int, width: int) -> None:
    with path.open("wb") as file:
        file.truncate(height * _row_bytes(width))


def _mapped(
    path: Path, width: int, mode: str = "r+"
) -> np.memmap[tuple[int, int], np.dtype[np.uint8]]:
    bits: np.memmap[tuple[int, int], np.dtype[np.uint8]]
    bits = np.memmap(path, np.uint8, mode)  # type: ignore[call-overload]  # the mode is a str
    return bits.reshape(-1, _row_bytes(width))  # type: ignore[return-value]  # still a memmap


def _row_bytes(width: int) -> int:
    return -(-width // 8)
