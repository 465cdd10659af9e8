"""Images without a place on the ground: a plain grid in, and no invented place out."""

import warnings

import numpy as np
import pytest
import rasterio
from affine import Affine
from helpers.consistency import assert_consistent
from helpers.factory import PLACES, Place, build_of, plan_of, texture, write_image, write_roads
from helpers.rasters import write_raster
from rasterio.control import GroundControlPoint
from rasterio.errors import NotGeoreferencedWarning
from rasterio.rpc import RPC

import geoprep
from geoprep.errors import SourceError, UsageError
from geoprep.grid import local_grid
from geoprep.sources.scene import Scene
from geoprep.store.scenes import scene_grid
from geoprep.views.facts import info
from geoprep.views.footprints import export_footprints
from geoprep.views.geotiff import export_scenes
from geoprep.views.overview import preview

NOWHERE = Place(None, Affine.identity())
SIZE = 96, 130

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def pictures(folder):
    """Write RGB pictures as a camera would, and return them, (band, y, x)."""
    made = {f"p{i}": np.moveaxis(texture(*SIZE, seed=i), 2, 0) for i in range(3)}
    for name, picture in made.items():
        png = {"driver": "PNG", "crs": None, "transform": Affine.identity()}
        write_raster(folder / f"{name}.png", picture, **png)
    return made


@pytest.fixture(scope="module")
def store(folder, pictures):
    """Two pictures and, between them in one store, an image that has a place."""
    placed = write_image(folder / "placed.tif", texture(*SIZE, seed=9), PLACES["utm"])
    scenes = [Scene(name, str(folder / f"{name}.png"), None) for name in pictures]
    scenes.insert(1, Scene("placed", str(placed), None))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotGeoreferencedWarning)  # nothing on the screen
        return build_of(
            folder / "s.zarr",
            scenes,
            pixel_size=0.5,
            tile=64,
            shard_tiles=4,
            split_by="block",
            rescale="none",
        )


def test_table_holds_metres_and_no_crs(store, pictures):
    assert store.scenes.crs.tolist() == ["", "EPSG:32637", "", ""]
    assert store.scenes.bounds[0].tolist() == [0, -48, 65, 0]
    grid = scene_grid(store, 0)
    assert grid == local_grid(*SIZE, 0.5)
    assert not grid.georeferenced
    assert scene_grid(store, 1).georeferenced
    assert grid.gsd_m() == (0.5, 0.5)
    assert grid.transform * (4, 6) == (2, -3)  # the plane of roads traced in such an image
    assert_consistent(store.location)
    facts = info(store)
    assert facts["gsd_m"] == [0.5, 0.5]
    area = sum(scene_grid(store, i).gsd_m()[0] ** 2 for i in range(4)) * SIZE[0] * SIZE[1]
    assert facts["km2"] == pytest.approx(area / 1e6, rel=0.02)


def test_all_views_show_images_without_georeference(store, pictures, tmp_path):
    assert preview(store, tmp_path / "sheet.png", count=2).is_file()
    written = export_scenes(store, ["p0", "p2"], tmp_path / "out")
    assert sorted(path.name for path in written) == ["p0.tif", "p2.tif"]
    with rasterio.open(tmp_path / "out" / "p2.tif") as made:
        assert (made.crs, made.transform) == (None, Affine.identity())
        np.testing.assert_array_equal(made.read(), pictures["p2"])
    data = geoprep.open_store(store.location).to_xarray(scene="p1")
    np.testing.assert_array_equal(data.image.values, pictures["p1"])
    assert set(data.spatial_ref.attrs) == {"GeoTransform"}
    assert not {"x", "y"} & set(data.coords)


def test_footprints_omit_images_without_georeference(store, folder, tmp_path):
    path = export_footprints(store, tmp_path / "f.geojson")
    assert path.read_text().count('"geometry": null') == 3
    scene = Scene("p0", str(folder / "p0.png"), None)
    alone = build_of(tmp_path / "a.zarr", [scene], pixel_size=2.0, tile=64)
    with pytest.raises(UsageError, match="none of its scenes is georeferenced"):
        export_footprints(alone, tmp_path / "g.geojson")


def test_vector_labels_need_a_georeferenced_image(folder, pictures, tmp_path):
    roads = write_roads(tmp_path / "p0.geojson", PLACES["utm"], SIZE)
    scene = Scene("p0", str(folder / "p0.png"), str(roads))
    (planned,) = plan_of([scene], pixel_size=0.5).scenes
    assert "need a georeferenced image" in planned.failure
    assert "a raster label of the same size" in planned.failure
    assert not planned.failure.endswith(".")


def test_images_without_georeference_need_a_pixel_size(folder, pictures):
    with pytest.raises(SourceError, match=r"no CRS.*gdal_edit.*`pixel_size`"):
        plan_of([Scene("p0", str(folder / "p0.png"), None)])


def test_control_points_and_rpcs_get_the_line_that_warps_them(tmp_path):
    with_points = write_image(tmp_path / "gcp.tif", texture(40, 40), NOWHERE)
    points = [GroundControlPoint(r, c, 37 + c, 55 - r) for r in (0, 40) for c in (0, 40)]
    with rasterio.open(with_points, "r+") as file:
        file.gcps = points, rasterio.CRS.from_epsg(4326)
    with pytest.raises(SourceError, match=r"4 ground control points.*gdalwarp -t_srs EPSG:4326 "):
        plan_of([Scene("gcp", str(with_points), None)])
    with_rpcs = write_image(tmp_path / "rpc.tif", texture(40, 40), NOWHERE)
    ones = [1.0] * 20
    with rasterio.open(with_rpcs, "r+") as file:
        file.rpcs = RPC(0, 1, 55, 1, ones, ones, 20, 20, 37, 1, ones, ones, 20, 20, None, None)
    with pytest.raises(SourceError, match=r"RPCs.*gdalwarp -rpc .*rpc_warped\.tif"):
        plan_of([Scene("rpc", str(with_rpcs), None)])
