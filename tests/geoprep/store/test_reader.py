"""A finished store, as we and as others open it."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr
from helpers.factory import build_of, row_of_scenes, texture, write_scene

from geoprep.errors import StoreError, UsageError
from geoprep.store.opening import quiet_zarr
from geoprep.store.reader import StoreReader
from geoprep.store.schema import SCENE_COLUMNS, TILE_COLUMNS, StoreMeta


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a store of five scenes in shards of two, and the values behind it."""
    folder = tmp_path_factory.mktemp("store")
    scenes = row_of_scenes(folder / "scenes", 5, 128)
    scenes.append(write_scene(folder / "scenes", "no_label", texture(128, 128), labelled=False))
    return build_of(folder / "a.zarr", scenes, tile=64, shard_tiles=8)


@pytest.fixture
def copy(built, tmp_path):
    """Return a copy of the store, to be damaged."""
    return shutil.copytree(built.location, tmp_path / "copy.zarr")


@pytest.fixture
def bare(built, tmp_path):
    """Return a store with its root metadata alone, which is all that opening reads."""
    folder = tmp_path / "copy.zarr"
    folder.mkdir()
    shutil.copy(f"{built.location}/zarr.json", folder)
    return folder


def test_xarray_sees_tables_and_pixels_without_a_warning(built):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=PendingDeprecationWarning)
        tiles = xarray.open_zarr(built.location)
        levels = {n: xarray.open_zarr(built.location, group=str(n)) for n in built.meta.levels}
    assert dict(tiles.sizes) == {"tile": 24, "coefficient": 6}
    for name in TILE_COLUMNS:
        np.testing.assert_array_equal(tiles[name], getattr(built.tiles, name))
    assert tiles.attrs["geoprep"]["levels"] == [64, 32]
    for level, data in levels.items():
        assert data["image"].dims == ("tile", "y", "x", "band")
        np.testing.assert_array_equal(data["image"], built.image(level)[...])
        assert data["speed"].dtype == np.uint8, "a fill value of 255 must not make floats of it"
        np.testing.assert_array_equal(data["speed"], built.speed(level)[...])


def test_xarray_walks_the_whole_tree(built):
    tree = xarray.open_datatree(built.location, engine="zarr")
    assert {"64", "32", "scenes", "histogram", "ledger"} <= set(tree.children)
    assert tree["scenes"]["id"].values.tolist() == built.scenes.id.tolist()


# Opening what is not fine


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no such store.*build-zarr"),
        (lambda path: path.write_text("text"), ""),
        (Path.mkdir, r"not a Zarr store.*zarr\.json"),
        (lambda path: zarr.open_group(path, mode="w"), "without a geoprep attribute"),
        (lambda path: zarr.create_array(path, shape=(2,), dtype="u1"), ""),
    ],
    ids=["nothing", "file", "folder", "group", "array"],
)
def test_what_is_no_store_is_named(tmp_path, make, says):
    make(tmp_path / "no.zarr")
    with pytest.raises(StoreError, match=rf"no\.zarr.*{says}"):
        StoreReader.open(tmp_path / "no.zarr")


@pytest.mark.parametrize(
    "address", ["nowhere://bucket/a.zarr", "file:///no/such/folder.zarr", "s3:///"]
)
def test_an_address_that_leads_nowhere(address):
    with pytest.raises(StoreError, match=address):
        StoreReader.open(address)


@pytest.mark.filterwarnings("ignore:Successfully reconstructed a store")
def test_a_file_address_is_read_like_a_path(built):
    store = StoreReader.open(f"file://{built.location}")
    np.testing.assert_array_equal(store.image(32)[3], built.image(32)[3])
    np.testing.assert_array_equal(store.tiles.transform, built.tiles.transform)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '"text"', "{}", "null"])
def test_root_metadata_that_cannot_be_read(bare, text):
    (bare / "zarr.json").write_text(text)
    with pytest.raises(StoreError, match=r"copy\.zarr"):
        StoreReader.open(bare)


def edit(folder, change):
    document = json.loads((folder / "zarr.json").read_text())
    attributes = document["attributes"]
    attributes["geoprep"] = change(attributes["geoprep"])
    (folder / "zarr.json").write_text(json.dumps(document))


def test_an_incomplete_store_says_how_to_finish_it(bare):
    edit(bare, lambda attrs: attrs | {"complete": False})
    with pytest.raises(StoreError, match=r"incomplete.*again"):
        StoreReader.open(bare)


@pytest.mark.parametrize("schema", [0, 3, "1", None])
def test_another_schema_is_refused_and_both_are_named(bare, schema):
    edit(bare, lambda attrs: attrs | {"schema": schema, "version": "9.9"})
    with pytest.raises(StoreError, match=rf"schema {schema}.*schemas 1 and 2.*9\.9"):
        StoreReader.open(bare)


@pytest.mark.parametrize("value", ["text", 7, [1], None])
def test_an_attribute_of_another_kind_is_no_store(bare, value):
    edit(bare, lambda _: value)
    with pytest.raises(StoreError, match="without a geoprep attribute"):
        StoreReader.open(bare)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("levels", ["../../a", 32]), ("levels", [128, 64]), ("levels", [64, 64]), ("levels", [])),
        *(("bands", ["b"] * 1_000_000), ("tile", 1 << 20), ("tile", "64"), ("overlap", -1)),
        *(("shard_tiles", 0), ("shard_tiles", 1 << 40), ("gsd_m", [1.0]), ("kind", "other")),
        *(("class_colors", ["red"]), ("codec", "none"), ("build", "x")),
    ],
)
def test_values_that_no_build_writes_are_refused_whatever_the_seal(
    built, bare, monkeypatch, field, value
):
    monkeypatch.setattr("geoprep.store.reader.seal", lambda _: built.root["ledger"].attrs["meta"])
    assert StoreReader.open(bare).meta == built.meta
    edit(bare, lambda attrs: attrs | {field: value})
    with pytest.raises(StoreError, match=rf"copy\.zarr/zarr\.json: no build writes that {field}"):
        StoreReader.open(bare)


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/a"])
def test_an_id_that_cannot_name_a_file_is_refused(built, monkeypatch, name):
    columns = {column: getattr(built.scenes, column) for column in SCENE_COLUMNS}
    ids = np.array([name, *built.scenes.id[1:]], object)
    monkeypatch.setattr(StoreReader, "_columns", lambda *_: columns | {"id": ids})
    with pytest.raises(StoreError, match="scenes/id has an id that is no name"):
        _ = StoreReader.open(built.location).scenes


def test_keys_of_a_later_geoprep_are_ignored(built):
    assert StoreMeta.from_attrs(built.meta.to_attrs() | {"invented_later": 1}) == built.meta


def test_a_level_that_is_not_there_names_those_that_are(built):
    with pytest.raises(UsageError, match=r"no level 7.*64, 32"):
        built.image(7)


@pytest.mark.parametrize("name", ["row", "transform", "scenes/id", "histogram/band"])
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.usefixtures("pipeline")
def test_a_damaged_table_is_named_and_a_missing_chunk_is_no_zeros(copy, name, lost):
    """Zarr fills it with zeros: all tiles would be training tiles of the first scene."""
    chunk = next(path for path in (copy / name).rglob("c/**/*") if path.is_file())
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    if lost:
        chunk.unlink()
    store = StoreReader.open(copy)
    says = rf"{chunk.relative_to(copy)} is missing.*build-zarr" if lost else name
    with pytest.raises(StoreError, match=says):
        _ = store.tiles, store.scenes, store.histogram_band, store.histogram_speed


def test_tables_and_layouts_are_read_without_zarr(built):
    program = (
        "import sys; from geoprep.store.reader import StoreReader; "
        f"store = StoreReader.open({built.location!r}); "
        "store.tiles, store.scenes, store.histogram_band, store.layout(64, 'image'); "
        "sys.exit('zarr' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_tables_that_zarr_wrote_anew_are_the_same(built, copy):
    """In several chunks, and with another compressor than that of a build."""
    with quiet_zarr():
        root = zarr.open_group(copy, mode="r+", use_consolidated=False)
        for name in ("scene", "transform", "scenes/bounds"):
            values = root[name][...]
            chunks = (4, *values.shape[1:])
            every = {"write_empty_chunks": True}
            root.create_array(name, data=values, chunks=chunks, config=every, overwrite=True)
        zarr.consolidate_metadata(copy)
    store = StoreReader.open(copy)
    np.testing.assert_array_equal(store.tiles.scene, built.tiles.scene)
    np.testing.assert_array_equal(store.tiles.transform, built.tiles.transform)
    np.testing.assert_array_equal(store.scenes.bounds, built.scenes.bounds)


def test_columns_of_different_length_are_refused(copy, tmp_path):
    """As if one table came from another store."""
    other = build_of(tmp_path / "b.zarr", row_of_scenes(tmp_path / "b", 2, 128), tile=64)
    for place in ("split", "scenes/id"):
        shutil.rmtree(copy / place)
        shutil.copytree(f"{other.location}/{place}", copy / place)
    with quiet_zarr():
        zarr.consolidate_metadata(copy)
    for table in ("tiles", "scenes"):
        with pytest.raises(StoreError, match=r"columns differ in length"):
            getattr(StoreReader.open(copy), table)


@pytest.mark.parametrize(("key", "value"), [("levels", [64, 31]), ("bands", 7), ("complete", 1)])
def test_an_attribute_that_was_edited_is_refused(bare, key, value):
    edit(bare, lambda attrs: attrs | {key: value})
    with pytest.raises(StoreError, match=r"copy\.zarr/zarr\.json: the geoprep attribute differs"):
        StoreReader.open(bare)


def test_a_missing_array_is_named(copy):
    shutil.rmtree(copy / "scenes/id")
    document = json.loads((copy / "zarr.json").read_text())
    del document["consolidated_metadata"]["metadata"]["scenes/id"]
    (copy / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StoreError, match="scenes/id"):
        _ = StoreReader.open(copy).scenes
