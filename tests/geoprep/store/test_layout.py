"""Where the bytes of pixels lie: what is written is read back, and nothing else passes for it."""

import json

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from geoprep.errors import StoreError
from geoprep.store.layout import PixelLayout, checksum, compressor, without_checksum
from geoprep.store.opening import quiet_zarr
from geoprep.store.reader import StoreReader
from geoprep.store.schema import CODECS
from geoprep.store.tables import read_root


def chunk_of(tile, codec):
    body = bytes(compressor(codec).encode(tile.reshape(-1)))
    return body + checksum(body)


@given(
    st.sampled_from(CODECS),
    arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9))),
)
def test_a_tile_of_any_size_comes_back(codec, tile):
    out = np.full_like(tile, 77)
    PixelLayout("8/image", tile.shape, 4, codec).decode(chunk_of(tile, codec), out)
    np.testing.assert_array_equal(out, tile)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("other", [(15, 16), (17, 16), (8, 8), (300, 300)])
def test_a_sound_chunk_of_another_size_is_refused(codec, other):
    """The codec would leave the rest of the buffer as it was."""
    layout = PixelLayout("16/speed", (16, 16), 4, codec)
    chunk = chunk_of(np.ones(other, np.uint8), codec)
    size = other[0] * other[1]
    with pytest.raises(ValueError, match=rf"holds {size} pixel bytes, not 256"):
        layout.decode(chunk, np.empty((16, 16), np.uint8))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"abc", b"abcd", b"ab" + checksum(b"ab")])
def test_what_is_no_chunk_is_refused(codec, data):
    with pytest.raises(ValueError, match=r"checksum|holds"):
        PixelLayout("2/speed", (2, 2), 4, codec).decode(data, np.empty((2, 2), np.uint8))


def test_a_checksum_is_four_bytes_little_endian():
    assert checksum(b"123456789") == 0xE3069283.to_bytes(4, "little")  # the check value of CRC-32C
    assert without_checksum(b"123456789" + checksum(b"123456789")) == b"123456789"


@pytest.mark.parametrize(
    "change",
    [
        {"shards": (4, 64, 64, 3)},
        {"dtype": "int8"},
        {"compressors": zarr.codecs.GzipCodec()},
        {"compressors": None},
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
        {"shape": (7, 64, 64, 3)},
        {"shards": None},
    ],
)
def test_an_array_that_is_laid_out_otherwise_is_refused(small_store, tmp_path, change):
    opened = StoreReader.open(small_store)
    layout, tiles = opened.layout(64, "image"), len(opened.tiles)
    blosc = zarr.codecs.BloscCodec(
        cname="lz4", clevel=5, shuffle="bitshuffle", typesize=1, blocksize=0
    )
    wanted = {
        "shape": (tiles, 64, 64, 3),
        "chunks": (1, 64, 64, 3),
        "shards": (layout.shard_tiles, 64, 64, 3),
        "dtype": "uint8",
        "fill_value": 0,
        "compressors": (blosc, zarr.codecs.Crc32cCodec()),
        "dimension_names": ("tile", "y", "x", "band"),
    }
    other = zarr.open_group(tmp_path / "b.zarr", mode="w")
    other.create_array("64/image", **wanted)
    header = json.loads((tmp_path / "b.zarr/64/image/zarr.json").read_text())
    assert header == layout.header(tiles)
    other.create_array("64/image", **(wanted | change), overwrite=True)
    with quiet_zarr():
        zarr.consolidate_metadata(tmp_path / "b.zarr")
    store = StoreReader(str(tmp_path / "b.zarr"), read_root(str(tmp_path / "b.zarr")), opened.meta)
    store.__dict__["tiles"] = opened.tiles
    with pytest.raises(StoreError, match=r"64/image differs from schema 1"):
        store.layout(64, "image")
