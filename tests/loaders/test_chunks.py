"""Reading tiles from shards: correct pixels or an error, never damaged pixels."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from helpers.painted import paint
from hypothesis import assume, given
from hypothesis import strategies as st

from geoprep.errors import StoreError
from geoprep.store.layout import shard_key
from geoprep.store.reader import StoreReader
from loaders.chunks import open_arrays


def opened(store, *bands):
    store = StoreReader.open(store) if isinstance(store, Path) else store
    return open_arrays(store, 32, bands or store.meta.bands)


def read(arrays, start, stop):
    """Return image and speed of tiles, read into the end of larger arrays."""
    bands = len(arrays[0].decode.bands or range(arrays[0].layout.tile_shape[-1]))
    image = np.full((40, 32, 32, bands), 77, np.uint8)
    speed = np.full((40, 32, 32), 77, np.uint8)
    at = 40 - (stop - start)
    for pixels, out in zip(arrays, (image, speed), strict=True):
        pixels.read(range(start, stop), out[at:])
        assert (out[:at] == 77).all()
    return image[at:], speed[at:]


@pytest.fixture(scope="module")
def arrays(store):
    return opened(store)


@given(shard=st.integers(0, 5), ends=st.tuples(st.integers(0, 7), st.integers(0, 7)))
def test_any_part_of_a_shard_can_be_read(arrays, shard, ends):
    start, stop = (min(40, 7 * shard + end) for end in sorted(ends))
    assume(start < stop)
    image, speed = paint(40, 32, 3)
    found = read(arrays, start, stop)
    assert (found[0] == image[start:stop]).all()
    assert (found[1] == speed[start:stop]).all()


def test_chunks_may_be_in_any_order_in_a_shard(make_store):
    path = make_store(splits=(0,), levels=(32,))
    shard = path / shard_key("32/image", 1)
    data = shard.read_bytes()
    index = np.frombuffer(data[-8 * 16 - 4 : -4], "<u8").reshape(8, 2)
    chunks = [data[at : at + size] for at, size in index.tolist()]
    order = [5, 1, 2, 0, 7, 6, 3, 4]
    sizes = index[order, 1]
    again = np.empty_like(index)
    again[order] = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1)
    again[4] = again[5]  # one chunk for two tiles
    footer = again.tobytes()
    checksum = google_crc32c.value(footer).to_bytes(4, "little")
    shard.write_bytes(b"".join(chunks[i] for i in order) + footer + checksum)
    expected = paint(40, 32, 3)[0][[8, 9, 10, 11, 13, 13, 14, 15]]
    assert (read(opened(path), 8, 16)[0] == expected).all()


@pytest.fixture(scope="module")
def damaged(make_store):
    """Return a store whose first shard of images the tests may damage."""
    return make_store(splits=(0,), levels=(32,))


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_becomes_a_pixel(damaged, place, bit):
    image = paint(40, 32, 3)[0]
    shard = damaged / shard_key("32/image", 0)
    whole = shard.read_bytes()
    data = bytearray(whole)
    data[int(place * len(data))] ^= 1 << bit
    shard.write_bytes(data)
    try:
        arrays, wrong = opened(damaged), 0
        for tile in range(8):
            try:
                assert (read(arrays, tile, tile + 1)[0] == image[tile]).all()
            except StoreError as error:
                wrong += 1
                told = f"array 32/image, shard c/0/0/0/0 (tiles {tile} to {tile})"
                assert told in str(error)  # noqa: PT017 - most tiles raise none
        assert wrong in (1, 8)  # a chunk, or the index
    finally:
        shard.write_bytes(whole)


@pytest.mark.parametrize("size", [0, 3, 100, 1500])
def test_a_truncated_shard_is_an_error(make_store, size):
    path = make_store(splits=(0,), levels=(32,))
    shard = path / shard_key("32/image", 3)
    shard.write_bytes(shard.read_bytes()[:size])
    with pytest.raises(StoreError, match="32/image, shard c/3/0/0/0"):
        read(opened(path), 24, 25)


def test_a_lost_shard_does_not_read_as_background(make_store):
    path = make_store(status=("ok", "failed"), levels=(32,))
    (path / shard_key("32/image", 0)).unlink()
    arrays = opened(path)
    for tile in (0, 4):  # of a scene that failed too: every tile is written
        with pytest.raises(StoreError, match=r"32/image, shard c/0/.*missing"):
            read(arrays, tile, tile + 2)


def test_a_lost_chunk_does_not_read_as_background(make_store):
    path = make_store(levels=(32,))
    shard = path / shard_key("32/speed", 1)
    data = shard.read_bytes()
    index = bytearray(data[-8 * 16 - 4 : -4])
    index[32:48] = b"\xff" * 16
    checksum = google_crc32c.value(bytes(index)).to_bytes(4, "little")
    shard.write_bytes(data[: -8 * 16 - 4] + index + checksum)
    arrays = opened(path)
    assert (read(arrays, 8, 10)[1] == paint(40, 32, 3)[1][8:10]).all()
    with pytest.raises(StoreError, match=r"32/speed, shard c/1/.*a chunk is missing"):
        read(arrays, 9, 11)
