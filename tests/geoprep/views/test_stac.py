"""A store as a STAC collection: items in GeoParquet, as geopandas reads them."""

import dataclasses
import json

import geopandas as gpd
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from helpers.stores import write_store

import geoprep
from geoprep.errors import UsageError
from geoprep.views.stac import export_stac


@pytest.fixture(scope="module")
def exported(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("stac") / "moscow.parquet"
    assert geoprep.export_stac(store.location, out, datetime="2019-05-01/2019-06-01T12:00:00Z") == [
        out,
        out.with_suffix(".json"),
    ]
    return out


def test_every_georeferenced_scene_is_an_item(store, exported):
    items = gpd.read_parquet(exported)
    scenes = geoprep.open_store(store.location).footprints()
    assert list(items["id"]) == list(scenes.index)
    assert list(items["geoprep:status"]) == list(scenes["status"])
    assert set(items["stac_version"]) == {"1.1.0"}
    assert items.geometry.geom_equals_exact(scenes.geometry.reset_index(drop=True), 1e-9).all()
    boxes = pyarrow.parquet.read_table(exported)["bbox"].to_pylist()  # geopandas leaves it out
    np.testing.assert_allclose([list(box.values()) for box in boxes], items.bounds, atol=1e-12)
    small = items.set_index("id").loc["utm_small"]
    grid = scenes.loc["utm_small"]
    assert small["proj:code"] == grid["crs"]
    assert small["geoprep:road_fraction"] == pytest.approx(grid["road_fraction"])
    first, stop = small["geoprep:tiles"]
    index = list(store.scenes.id).index("utm_small")
    assert set(store.tiles.scene[first:stop]) == {index}
    assert small["assets"]["image"]["href"] == f"{store.location}/{store.meta.levels[0]}/image"
    assert store.image()[first:stop].shape[0] == grid["tiles"]


def test_duckdb_reads_the_items(exported):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    rows = duckdb.sql(
        f"SELECT id, collection, bbox.xmin FROM read_parquet('{exported}')"
    ).fetchall()
    items = gpd.read_parquet(exported)
    assert [row[:2] for row in rows] == list(zip(items["id"], items["collection"], strict=True))
    assert [row[2] for row in rows] == pytest.approx(items.bounds["minx"].tolist())


def test_stac_libraries_read_items_and_collection(exported):
    arrow = pytest.importorskip("stac_geoparquet.arrow", reason="stac-geoparquet is not installed")
    import pystac

    rows = gpd.read_parquet(exported)
    documents = arrow.stac_table_to_items(pyarrow.parquet.read_table(exported))
    items = [pystac.Item.from_dict(document) for document in documents]
    assert [item.id for item in items] == list(rows["id"])
    assert [item.properties["proj:code"] for item in items] == list(rows["proj:code"])
    for item, bounds in zip(items, rows.bounds.to_numpy(), strict=True):
        assert item.bbox == pytest.approx(bounds)
    collection = pystac.Collection.from_file(str(exported.with_suffix(".json")))
    assert collection.extent.spatial.bboxes[0] == pytest.approx(rows.total_bounds)


def test_the_collection_is_in_the_file_and_beside_it(exported):
    metadata = pyarrow.parquet.read_schema(exported).metadata
    embedded = json.loads(metadata[b"stac-geoparquet"])
    collection = json.loads(exported.with_suffix(".json").read_text())
    assert embedded == {"version": "1.1.0", "collections": {"moscow": collection}}
    times = ["2019-05-01T00:00:00+00:00", "2019-06-01T12:00:00+00:00"]
    assert collection["extent"]["temporal"]["interval"] == [times]
    assert collection["assets"]["items"]["href"] == "./moscow.parquet"
    items = gpd.read_parquet(exported)
    left, _, right, _ = items.total_bounds
    assert collection["extent"]["spatial"]["bbox"][0][::2] == pytest.approx([left, right])
    assert items["datetime"].isna().all()
    assert items["start_datetime"][0].isoformat() == "2019-05-01T00:00:00+00:00"


def test_tiles_have_items_of_their_own_on_request(store, tmp_path):
    geoprep.export_stac(store.location, tmp_path / "t.parquet", tiles=True)
    items = gpd.read_parquet(tmp_path / "t.parquet")
    assert items["id"].is_unique
    tiles = geoprep.open_store(store.location).footprints("tile").index
    assert [list(one) for one in items["geoprep:tiles"]] == [[i, i + 1] for i in tiles]
    assert items["start_datetime"].isna().all()  # a store of images that are no items


def test_times_of_items_that_a_store_was_built_from(store, tmp_path, monkeypatch):
    known = ["2024-05-01T08:26:11.123000Z", "2024-04-01T00:00:00Z/2024-06-02T00:00:00Z", "soon"]
    datetimes = dict(zip(store.scenes.id, known, strict=False))
    build = {**store.meta.build, "datetimes": datetimes}
    monkeypatch.setattr(store, "meta", dataclasses.replace(store.meta, build=build))
    for by in ("scene", "tile"):
        export_stac(store, tmp_path / "t.parquet", by, None)
        items = gpd.read_parquet(tmp_path / "t.parquet")
        scenes = items["id"] if by == "scene" else items["id"].str.rsplit("_", n=2).str[0]
        names = ["datetime", "start_datetime", "end_datetime"]
        for scene, *times in zip(scenes, *(items[name] for name in names), strict=True):
            text = datetimes.get(scene, "soon")
            first, last = text.partition("/")[0], text.rpartition("/")[2]
            wanted = ["NaT" if "/" in text else text, first, last]
            for time, one in zip(times, wanted, strict=True):
                assert pd.isna(time) if one in ("soon", "NaT") else time == pd.Timestamp(one)
        extent = json.loads((tmp_path / "t.json").read_text())["extent"]["temporal"]
        assert extent["interval"] == [["2024-04-01T00:00:00+00:00", "2024-06-02T00:00:00+00:00"]]
    export_stac(store, tmp_path / "t.parquet", "scene", "2019-05-01")
    items = gpd.read_parquet(tmp_path / "t.parquet")
    assert items["datetime"].isna().all()
    assert set(items["end_datetime"]) == {pd.Timestamp("2019-05-01", tz="UTC")}


def test_classes_have_shares(tmp_path):
    made = write_store(tmp_path / "x.zarr", classes=("background", "slow", "fast"))
    geoprep.export_stac(made, tmp_path / "x.parquet")
    shares = gpd.read_parquet(tmp_path / "x.parquet")["geoprep:class_fractions"]
    assert list(shares[0]) == ["background", "slow", "fast"]
    assert sum(shares[0].values()) == pytest.approx(1)
    assert shares[0]["slow"] > 0


def test_errors_say_what_to_give(store, tmp_path):
    with pytest.raises(UsageError, match=r"`datetime` May: give 2019-05-01 or START/END"):
        geoprep.export_stac(store.location, tmp_path / "t.parquet", datetime="May")
    with pytest.raises(UsageError, match=r"\.parquet"):
        geoprep.export_stac(store.location, tmp_path / "t.json")
