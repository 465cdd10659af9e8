"""Test options of labels and nodata in whole builds: layers, areas, black imagery, road shares."""

from __future__ import annotations

import json

import geopandas
import numpy as np
import pytest
import shapely
from affine import Affine
from helpers.factory import PLACES, Place, plan_of, texture, write_image
from helpers.factory import write_scene as write
from rasterio.merge import merge

import geoprep as gp
from geoprep.building.options import BuildOptions
from geoprep.building.run import build
from geoprep.errors import LabelError, SourceError, StoreError
from geoprep.executors.threads import Threads
from geoprep.sources.own_images import images_and_labels
from geoprep.sources.scene import Scene, SourceScenes
from geoprep.speed import UNKNOWN_SPEED
from geoprep.store.reader import StoreReader

PLACE = PLACES["utm"]
SIDE = 128


def built(tmp_path, scenes, name="a.zarr", **options):
    """Return the summary of a build and its store."""
    plan = plan_of(scenes, tile=64, **options)
    return build(plan, tmp_path / name, Threads(1)), StoreReader.open(tmp_path / name)


def fields(path, covered, crs=PLACE.crs, **properties):
    """Write areas that cover a share of the scene, without or with attributes."""
    left, top = PLACE.transform * (0, 0)
    right, bottom = PLACE.transform * (SIDE, SIDE * covered)
    shape = shapely.box(left, bottom, right, top)
    frame = geopandas.GeoDataFrame([{"kind": "field"} | properties], geometry=[shape], crs=crs)
    frame.to_file(path)
    return str(path)


@pytest.fixture
def image(tmp_path):
    return str(write_image(tmp_path / "a.tif", texture(SIDE, SIDE), PLACE))


def test_land_cover_is_not_taken_for_roads(tmp_path, image):
    cover = fields(tmp_path / "cover.gpkg", 0.6)
    summary, store = built(tmp_path, [Scene("a", image, cover)])
    assert summary.statuses == {"failed": 1}
    assert "1 area without road attributes" in store.scenes.reason[0]
    found = SourceScenes((Scene("a", image, None),), "x", shared_label=cover)
    with pytest.raises(LabelError, match=r"cover\.gpkg.* give `classes`.*`where`"):
        plan_of(found)


def test_areas_that_are_asked_for_are_254_and_too_much_road_is_warned_of(tmp_path, image):
    cover = fields(tmp_path / "cover.gpkg", 0.6)
    scenes = [Scene("a", image, cover)]
    summary, store = built(tmp_path, scenes, where="1 = 1")
    assert set(np.unique(store.speed(64)[:])) == {0, UNKNOWN_SPEED}
    assert summary.road_fraction == pytest.approx(0.6, abs=0.01)
    (warning,) = summary.warnings
    assert "60." in warning
    assert "`where`" in warning
    assert "label:   road, without speeds" in repr(gp.open_store(store.location))


@pytest.mark.parametrize(
    "meaning", [{"label_values": "1"}, {"classes": "background,road=1", "val": 0.0}]
)
def test_masks_whose_background_is_nodata_are_warned_of_with_the_option(tmp_path, image, meaning):
    mask = np.full((SIDE, SIDE, 1), 255, np.uint8)
    mask[10:20] = 1
    label = str(write_image(tmp_path / "mask.tif", mask, PLACE, nodata=255))
    scenes, hidden = [Scene("a", image, label)], SIDE**2 - SIDE * 10
    warnings = built(tmp_path, scenes, **meaning)[0].warnings
    says = f"{hidden:,} of {SIDE**2:,} pixels of mask.tif have no label, by its nodata tag 255"
    assert [says in warning for warning in warnings] == [True]
    assert "`label_nodata` none" in warnings[0]
    summary, store = built(tmp_path, scenes, "b.zarr", label_nodata="none", **meaning)
    assert summary.warnings == ()
    array = store.label(64) if "classes" in meaning else store.speed(64)
    assert (array[:] == 0).sum() == hidden


def test_a_nodata_tag_that_is_background_is_not_warned_of(tmp_path, image):
    mask = np.zeros((SIDE, SIDE, 1), np.uint8)
    mask[10:] = 255
    label = str(write_image(tmp_path / "mask.tif", mask, PLACE, nodata=0))
    (warning,) = built(tmp_path, [Scene("a", image, label)], label_values="255")[0].warnings
    assert "of the labelled pixels of the store are road" in warning
    assert "have no label" not in warning


@pytest.mark.parametrize(
    ("label", "says"), [("no roads", "no road at all"), ("roads", ""), (None, "")]
)
def test_a_store_without_roads_is_warned_of_unless_it_has_no_labels(tmp_path, label, says):
    roads = {"roads": ()} if label == "no roads" else {}
    scene = write(tmp_path, "a", texture(SIDE, SIDE), PLACE, labelled=label is not None, **roads)
    warnings = built(tmp_path, [scene])[0].warnings
    assert [says in warning for warning in warnings] == [True] * bool(says)


def test_options_at_their_default_leave_attributes_as_they_were(tmp_path, image):
    """So that stores built before these options keep their bytes and resume."""
    attrs = BuildOptions().to_attrs()
    assert not {"layer", "where"} & attrs.keys()
    assert BuildOptions(layer="roads").to_attrs() == attrs | {"layer": "roads"}
    scenes = [Scene("a", image, fields(tmp_path / "c.gpkg", 0.2, highway="primary"))]
    built(tmp_path, scenes, where="1 = 1")
    with pytest.raises(StoreError, match="where was 1 = 1, now None"):
        built(tmp_path, scenes)
    assert built(tmp_path, scenes, where="1 = 1")[0].state == "unchanged"


# --- black that is imagery ----------------------------------------------------------------------


@pytest.fixture(params=["whole", "several shards"])
def lakes(request, tmp_path):
    """Return scenes with dark water at the edge, one of them tagged, and the options to build."""
    pixels = texture(SIDE, SIDE)
    pixels[:50] = 0
    scenes = [
        write(tmp_path, "lake", pixels, PLACE),
        write(tmp_path, "dry", texture(SIDE, SIDE, seed=1), PLACE),
        write(tmp_path, "tagged", pixels, PLACE, nodata=0),
    ]
    return scenes, {} if request.param == "whole" else {"shard_tiles": 1}


def test_the_summary_counts_black_pixels_that_became_nodata(tmp_path, lakes):
    scenes, options = lakes
    summary, store = built(tmp_path, scenes, **options)
    assert summary.black == {"lake": 50 * SIDE}
    assert (store.image(64)[0] == 0).any()


def test_nodata_none_keeps_black_as_imagery(tmp_path, lakes):
    scenes, options = lakes
    summary, store = built(tmp_path, scenes, nodata="none", **options)
    assert summary.black == {}
    image, speed = store.image(64)[:], store.speed(64)[:]
    of = store.tiles.scene
    assert image[of == 0].min() == 1
    assert (speed[of == 0] != 255).all()
    assert (image[of == 2] == 0).any(), "a nodata tag counts all the same"
    record = json.loads((tmp_path / "a.zarr/zarr.json").read_text())
    assert record["attributes"]["geoprep"]["build"]["options"]["nodata"] == "none"


# --- several rasters for one mosaic -------------------------------------------------------------


def test_masks_of_other_names_are_refused_with_the_command_that_makes_one_file_of_them(tmp_path):
    mask = np.zeros((SIDE, SIDE, 1), np.uint8)
    mask[40:50], mask[:, 90:96] = 1, 1
    write_image(tmp_path / "mosaic.tif", texture(SIDE, SIDE), PLACE)
    parts = []
    for number, (top, left) in enumerate(((0, 0), (0, 64), (64, 0))):  # the last quarter is missing
        place = Place(PLACE.crs, PLACE.transform * Affine.translation(left, top))
        parts.append(tmp_path / f"masks/part{number}.tif")
        write_image(parts[-1], mask[top:, left:][:64, :64], place)
    images = [str(tmp_path / "mosaic.tif")]
    with pytest.raises(SourceError, match=r"has the name of a scene.* rio merge --nodata"):
        images_and_labels(images, str(tmp_path / "masks"), masks=True)
    merge(parts, dst_path=tmp_path / "all.tif", nodata=255)
    found = images_and_labels(images, str(tmp_path / "all.tif"), masks=True)
    _, store = built(tmp_path, found, label_values="1")
    assert list(store.scenes.status) == ["ok"]
    tiles = store.speed(64)[:].reshape(2, 2, 64, 64).swapaxes(1, 2).reshape(SIDE, SIDE)
    expected = np.where(mask[..., 0] == 1, UNKNOWN_SPEED, 0)
    expected[64:, 64:] = 255
    np.testing.assert_array_equal(tiles, expected)
