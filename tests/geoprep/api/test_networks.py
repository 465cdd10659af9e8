"""Test road networks as notebooks use them: frames, graphs, files, scores and routes."""

import geopandas as gpd
import networkx as nx
import numpy as np
import pytest
import rasterio
import shapely
import xarray as xr
from affine import Affine
from helpers.rasters import write_raster

import geoprep
from geoprep.errors import UsageError

CRS = "EPSG:32637"
GRID = Affine(0.5, 0, 400_000, 0, -0.5, 6_180_000)
WKT, TRANSFORM = rasterio.CRS.from_string(CRS).to_wkt(), " ".join(map(str, GRID.to_gdal()))
REFERENCE = {"spatial_ref": ((), 0, {"crs_wkt": WKT, "GeoTransform": TRANSFORM})}
"""Coordinates of a georeferenced array, as rioxarray writes them."""


def crossing(side=400, width=12):
    """Return a mask, uint8 (y, x), of two roads that cross in the middle."""
    mask = np.zeros((side, side), np.uint8)
    middle = slice(side // 2 - width // 2, side // 2 + width // 2)
    mask[middle] = 255
    mask[:, middle] = 255
    return mask


@pytest.fixture(scope="module")
def mask_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("masks") / "mask.tif"
    return write_raster(path, crossing(), transform=GRID)


@pytest.fixture(scope="module")
def roads(mask_file):
    return geoprep.vectorize(mask_file, progress=False)


def test_a_crossing_has_four_edges_and_five_nodes(roads):
    assert (len(roads), len(roads.nodes), len(roads.edges)) == (4, 5, 4)
    assert roads.length_km == pytest.approx(0.4, rel=0.05)
    assert roads.edges.crs.to_epsg() == 32637


def test_edges_have_the_columns_of_osmnx(roads):
    assert roads.edges.index.names == ["u", "v", "key"]
    assert {"length", "speed_mph", "speed_kph", "travel_time"} <= set(roads.edges.columns)
    assert roads.edges["length"].sum() == pytest.approx(roads.edges.geometry.length.sum(), rel=1e-6)


@pytest.mark.parametrize("kind", ["array", "dataset", "xarray", "georeferenced xarray", "paths"])
def test_arrays_and_datasets_give_the_network_of_the_file(roads, mask_file, kind):
    place = {"transform": GRID, "crs": CRS} if kind in ("array", "xarray") else {}
    with rasterio.open(mask_file) as dataset:
        sources = {
            "array": crossing(),
            "dataset": dataset,
            "xarray": xr.DataArray(crossing(), dims=("y", "x")),
            "georeferenced xarray": xr.DataArray(crossing(), REFERENCE, dims=("y", "x")),
            "paths": [mask_file],
        }
        found = geoprep.vectorize(sources[kind], **place, progress=False)
    assert found.edges.geometry.geom_equals_exact(roads.edges.geometry, 1e-9).all()


def test_an_array_without_georeference_needs_a_pixel_size():
    found = geoprep.vectorize(crossing(), pixel_size=0.5, progress=False)
    assert found.crs is None
    assert found.length_km == pytest.approx(0.4, rel=0.05)
    with pytest.raises(UsageError, match="not georeferenced"):
        geoprep.vectorize(crossing(), progress=False)
    with pytest.raises(UsageError, match="both `transform` and `crs`"):
        geoprep.vectorize(crossing(), crs=CRS, progress=False)


def test_a_table_is_written_by_a_function_of_its_own(roads, mask_file, tmp_path):
    with pytest.raises(UsageError, match=r"x\.csv: use a name that ends in \.gpkg, "):
        geoprep.vectorize(mask_file, out=tmp_path / "x.csv", progress=False)
    counts = geoprep.write_road_table(mask_file, tmp_path / "x.csv", progress=False)
    assert counts == {"images": 1, "edges": len(roads)}
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1 + len(roads)


def test_networkx_has_the_attributes_of_osmnx(roads):
    graph = roads.to_networkx()
    assert isinstance(graph, nx.MultiGraph)
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (5, 4)
    _, _, data = next(iter(graph.edges(data=True)))
    assert {"length", "speed_kph", "travel_time", "geometry"} <= set(data)


def test_a_frame_of_lines_becomes_a_network(roads):
    frame = roads.edges.reset_index(drop=True)[["geometry"]].assign(speed_kph=50.0)
    found = geoprep.RoadNetwork.from_geopandas(frame)
    assert (len(found), len(found.nodes)) == (4, 5)
    assert found.edges["speed_kph"].to_numpy() == pytest.approx(50.0)


def test_score_is_a_frame_with_a_row_per_scene(roads, mask_file, tmp_path):
    path = tmp_path / "truth.gpkg"
    roads.to_file(path)
    scores = geoprep.score(path, roads, images=mask_file, progress=False)
    assert scores.index.name == "scene"
    assert len(scores) == 1
    assert scores["apls"].iloc[0] == pytest.approx(1.0)
    of_both = geoprep.score(roads, roads, images=mask_file, progress=False).attrs["scenes"]
    assert [one["border"] for one in of_both] == ["image"]


def test_the_repr_is_one_line(roads):
    assert repr(roads) == f"<geoprep.RoadNetwork 4 edges, 5 nodes, {roads.length_km:.1f} km, {CRS}>"


def test_parallel_edges_have_different_keys():
    from geoprep.roads.network import RoadGraph as Graph

    lines = np.array(
        [shapely.LineString([(0, 0), (5, y), (10, 0)]) for y in (1, -1)] * 1, dtype=object
    )
    graph = Graph(
        np.array([[0.0, 0], [10, 0]]), np.array([[0, 1], [1, 0]]), lines, np.full(2, 30.0), CRS
    )
    assert geoprep.RoadNetwork(graph).edges.index.get_level_values("key").tolist() == [0, 1]


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson"])
def test_lines_without_a_length_leave_the_other_edges_as_they_are(tmp_path, suffix):
    """Another program wrote them, such as QGIS after snapping."""
    ends = [(0, 0, 100, 0), (50, 50, 50, 50), (200, 0, 300, 0), (300, 0, 300, 90)]
    lines = [shapely.LineString([(4e5 + a, 6e6 + b), (4e5 + c, 6e6 + d)]) for a, b, c, d in ends]
    shares = {"confidence_mean": [0.1, 0.2, 0.3, 0.4], "confidence_least": [0.0, 0.1, 0.2, 0.3]}
    frame = gpd.GeoDataFrame({"speed_mph": [10, 20, 30, 40], **shares}, geometry=lines, crs=CRS)
    frame.to_crs(4326).to_file(tmp_path / f"roads{suffix}")
    found = geoprep.read_network(tmp_path / f"roads{suffix}")
    assert found.edges["speed_mph"].tolist() == [10, 30, 40]
    assert found.edges["confidence_mean"].tolist() == [0.1, 0.3, 0.4]
    assert found.edges["length"].to_numpy() == pytest.approx([100, 100, 90], rel=1e-3)
    scores = geoprep.score(found, tmp_path / f"roads{suffix}", progress=False)
    assert scores["truth_km"].tolist() == pytest.approx([0.29], rel=1e-3)


@pytest.mark.parametrize("kind", ["dataset", "xarray", "decoded xarray", "path"])
def test_nodata_and_units_of_datasets_and_arrays_count(tmp_path, kind):
    """A road of 30 mph crosses nodata of 255 whose edges would be roads."""
    speeds = np.zeros((200, 400), np.uint8)
    speeds[95:105] = 30
    speeds[:, 180:220] = 255
    source = path = write_raster(tmp_path / "speeds.tif", speeds, transform=GRID, nodata=255)
    with rasterio.open(path, "r+") as file:
        file.units = ["mph"]
    if "xarray" in kind:
        kept = {"_FillValue": 255, "units": "mph"}
        source = xr.DataArray(speeds, REFERENCE, ("y", "x"), attrs=kept)
        if kind == "decoded xarray":
            source = xr.decode_cf(source.to_dataset(name="a"))["a"]
            assert np.isnan(source.values[0, 200])
    options = {"close_gaps": False, "progress": False}
    with rasterio.open(path) as dataset:
        source = dataset if kind == "dataset" else source
        by_units, by_kind = (
            geoprep.vectorize(source, kind=one, **options) for one in (None, "mask")
        )
    assert by_units.edges["speed_mph"].to_numpy() == pytest.approx(30)
    for found in (by_units, by_kind):
        assert len(found) == 2
        assert found.length_km == pytest.approx(0.18, rel=0.03)


@pytest.mark.parametrize("known", [True, False])
def test_plot_draws_every_edge_on_the_axes_given(known):
    import matplotlib as mpl

    mpl.use("agg")
    ends = [[(5e5, 6e6), (500400, 6e6)], [(500400, 6e6), (500400, 6000600)]]
    lines = gpd.GeoSeries([shapely.LineString(xy) for xy in ends], crs="EPSG:32637")
    frame = gpd.GeoDataFrame({"speed_mph": [30, 20]} if known else {}, geometry=lines)
    roads = geoprep.RoadNetwork.from_geopandas(frame)
    axes = roads.plot(linewidth=3)
    assert roads.plot(axes) is axes
    assert [len(drawn.get_segments()) for drawn in axes.collections] == [len(roads), len(roads)]
    assert axes.collections[0].get_linewidth() == 3
    assert len(axes.figure.axes) == (3 if known else 1)  # a scale of speeds per call
    mpl.pyplot.close("all")
