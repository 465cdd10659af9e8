"""The shard writer: what it writes is Zarr, whoever reads it, and always the same bytes."""

import numpy as np
import pytest
import tensorstore
import zarr

from geoprep.store.layout import shard_key
from geoprep.store.schema import CODECS, StoreMeta
from geoprep.store.shards import ShardWriter
from geoprep.store.writer import create_store

SHARD_TILES = 4


def meta_of(codec="lz4", side=24, bands=3):
    return StoreMeta(
        cities=("custom",),
        bands=tuple(f"band {i + 1}" for i in range(bands)),
        band_indexes=tuple(range(1, bands + 1)),
        gsd_m=(0.3, 0.3),
        tile=side,
        overlap=0,
        rescale="none",
        levels=(side,),
        shard_tiles=SHARD_TILES,
        codec=codec,
    )


def some_tiles(count, side=24, bands=3, seed=0):
    """Return tiles with noise, with runs, one of nodata and one of 255."""
    rng = np.random.default_rng(seed)
    shape = (count, side, side, bands) if bands else (count, side, side)
    tiles = rng.integers(0, 256, shape).astype(np.uint8)
    tiles[::3] //= 64
    if count > 1:
        tiles[1] = 0
    if count > 2:
        tiles[2] = 255
    return tiles


def write(path, tiles, codec="lz4", shard_tiles=SHARD_TILES):
    writer = ShardWriter(path, shard_tiles, codec)
    for tile in tiles:
        writer.add(tile)
    return writer.close()


@pytest.fixture(params=CODECS)
def filled(request, tmp_path):
    """Return a store's folder and what its arrays hold: two full shards and one of two tiles."""
    meta = meta_of(request.param)
    expected = {"image": some_tiles(10), "speed": some_tiles(10, bands=0, seed=1)}
    create_store(tmp_path / "a.zarr", meta, 10)
    for name, tiles in expected.items():
        for shard in range(3):
            part = tiles[shard * SHARD_TILES : (shard + 1) * SHARD_TILES]
            write(tmp_path / "a.zarr" / shard_key(f"24/{name}", shard), part, request.param)
    return tmp_path / "a.zarr", expected


PIPELINES = ["zarr.core.codec_pipeline.BatchedCodecPipeline", "zarrs.ZarrsCodecPipeline"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_zarr_python_and_zarrs_read_the_pixels(filled, pipeline):
    path, expected = filled
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        for name, tiles in expected.items():
            array = zarr.open_array(path / f"24/{name}", mode="r")
            np.testing.assert_array_equal(array[...], tiles)
            np.testing.assert_array_equal(array[3:9, 5:20], tiles[3:9, 5:20])


def test_tensorstore_reads_the_pixels(filled):
    path, expected = filled
    for name, tiles in expected.items():
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/24/{name}/"}}
        array = tensorstore.open(spec, read=True).result()
        np.testing.assert_array_equal(array.read().result(), tiles)


@pytest.mark.parametrize("codec", CODECS)
def test_our_chunks_are_those_of_zarr_python(tmp_path, codec):
    """Same codecs, same parameters: only the order of work is ours."""
    meta, tiles = meta_of(codec), some_tiles(4)
    create_store(tmp_path / "ours.zarr", meta, 4)
    create_store(tmp_path / "theirs.zarr", meta, 4)
    write(tmp_path / "ours.zarr" / shard_key("24/image", 0), tiles, codec)
    with zarr.config.set({"array.write_empty_chunks": True, "threading.max_workers": 1}):
        zarr.open_array(tmp_path / "theirs.zarr/24/image", mode="r+")[...] = tiles

    def chunks(store):
        data = (tmp_path / store / shard_key("24/image", 0)).read_bytes()
        index = np.frombuffer(data[-16 * SHARD_TILES - 4 : -4], "<u8").reshape(-1, 2)
        return [data[offset : offset + size] for offset, size in index.tolist()]

    assert chunks("ours.zarr") == chunks("theirs.zarr")


def test_a_shard_appears_whole_or_not_at_all(tmp_path):
    writer = ShardWriter(tmp_path / "c/0", SHARD_TILES, "lz4")
    writer.add(some_tiles(1)[0])
    assert not (tmp_path / "c/0").exists()
    writer.close()
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["0"]


@pytest.mark.parametrize("where", ["chunk", "index"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_flipped_bit_is_an_error_in_every_reader(filled, where, pipeline):
    path, _ = filled
    shard = path / shard_key("24/image", 1)
    data = bytearray(shard.read_bytes())
    at = 40 if where == "chunk" else len(data) - 30
    data[at] ^= 1
    shard.write_bytes(data)
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        array = zarr.open_array(path / "24/image", mode="r")
        assert array[:4].shape == (4, 24, 24, 3), "other shards are not affected"
        with pytest.raises((ValueError, RuntimeError)):
            array[4:8]
