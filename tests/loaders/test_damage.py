"""Errors of damaged stores, and the split of tiles by shard."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geoprep.errors import StoreError
from geoprep.store.layout import shard_key
from loaders import RamTiles
from loaders.chunks import by_shard


@given(st.sets(st.integers(0, 200)), st.integers(1, 40))
def test_tiles_are_cut_where_a_shard_ends(rows, shard):
    tiles = np.array(sorted(rows), np.int64)
    cut = by_shard(tiles, shard)
    assert [row for part in cut for row in part] == tiles.tolist()
    shards = [{row // shard for row in part} for part in cut]
    assert all(len(one) == 1 for one in shards)
    assert len(set.union(set(), *shards)) == len(cut)  # a shard is one part


@pytest.mark.parametrize("keep", ["pixels", "compressed"])
@pytest.mark.parametrize("codec_array", ["32/image", "32/speed"])
def test_a_flipped_bit_names_array_and_shard(make_store, codec_array, keep):
    path = make_store(splits=(0,))
    shard = path / shard_key(codec_array, 2)
    data = bytearray(shard.read_bytes())
    data[200] ^= 4
    shard.write_bytes(data)
    with pytest.raises(StoreError) as error:
        RamTiles.load(path, keep=keep)
    message = str(error.value)
    assert f"array {codec_array}, shard {shard.relative_to(path / codec_array)}" in message
    assert "tiles 16 to 23" in message
    assert str(path) in message
    assert "checksum" in message
    assert RamTiles.load(path, level=16).side == 16  # the other level is whole


def test_damage_outside_the_split_does_not_matter(make_store):
    path = make_store(splits=(0, 1), shard_tiles=4)
    (path / shard_key("32/image", 1)).write_bytes(b"nonsense")  # tiles 4 to 7: the second scene
    assert len(RamTiles.load(path, "train")) == 20
    with pytest.raises(StoreError, match="shard c/1"):
        RamTiles.load(path, "val")
