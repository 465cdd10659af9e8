"""Test road networks as notebooks use them: frames, graphs, files, scores and routes."""

import networkx as nx
import numpy as np
import pytest
import rasterio
import shapely
import xarray as xr
from affine import Affine

import geoprep
from geoprep.errors import UsageError

CRS = "EPSG:32637"
GRID = Affine(0.5, 0, 400_000, 0, -0.5, 6_180_000)


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
    mask = crossing()
    with rasterio.open(
        path, "w", driver="GTiff", width=400, height=400, count=1, dtype="uint8", crs=CRS,
        transform=GRID,
    ) as file:  # fmt: skip
        file.write(mask, 1)
    return path


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
    if kind == "array":
        found = geoprep.vectorize(crossing(), transform=GRID, crs=CRS, progress=False)
    elif kind == "dataset":
        with rasterio.open(mask_file) as dataset:
            found = geoprep.vectorize(dataset, progress=False)
    elif kind == "georeferenced xarray":  # as rioxarray writes it
        attributes = {
            "crs_wkt": rasterio.CRS.from_string(CRS).to_wkt(),
            "GeoTransform": " ".join(map(str, GRID.to_gdal())),
        }
        coordinates = {"spatial_ref": ((), 0, attributes)}
        array = xr.DataArray(crossing(), coordinates, dims=("y", "x"))
        found = geoprep.vectorize(array, progress=False)
    elif kind == "xarray":
        array = xr.DataArray(crossing(), dims=("y", "x"))
        found = geoprep.vectorize(array, transform=GRID, crs=CRS, progress=False)
    else:
        found = geoprep.vectorize([mask_file], progress=False)
    assert found.edges.geometry.geom_equals_exact(roads.edges.geometry, 1e-9).all()


def test_an_array_without_georeference_needs_a_pixel_size():
    found = geoprep.vectorize(crossing(), pixel_size=0.5, progress=False)
    assert found.crs is None
    assert found.length_km == pytest.approx(0.4, rel=0.05)
    with pytest.raises(UsageError, match="not georeferenced"):
        geoprep.vectorize(crossing(), progress=False)
    with pytest.raises(UsageError, match="both `transform` and `crs`"):
        geoprep.vectorize(crossing(), crs=CRS, progress=False)


def test_to_crs_keeps_lengths_in_metres(roads):
    lonlat = roads.to_crs(4326)
    assert lonlat.edges.crs.to_epsg() == 4326
    assert lonlat.nodes["x"].between(36, 40).all()
    np.testing.assert_array_equal(lonlat.edges["length"], roads.edges["length"])


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


def test_route_is_a_frame_of_one_row(roads):
    frame = roads.to_crs(4326).nodes
    ends = frame[np.array([d for _, d in roads.to_networkx().degree()]) == 1]
    start, goal = ends.iloc[0], ends.iloc[1]
    found = geoprep.route(roads, (start.x, start.y), (goal.x, goal.y), by="length")
    assert len(found) == 1
    assert found.crs.to_epsg() == 4326
    assert 150 < found["length"].iloc[0] < 210


def test_plot_draws_over_an_image(roads, mask_file):
    import matplotlib as mpl

    mpl.use("agg")
    axes = roads.plot(over=mask_file)
    assert axes.images
    assert axes.collections


def test_the_repr_is_one_line(roads):
    assert repr(roads) == f"<geoprep.RoadNetwork 4 edges, 5 nodes, {roads.length_km:.1f} km, {CRS}>"


def test_parallel_edges_have_different_keys():
    from geoprep.roads import RoadGraph as Graph

    lines = np.array(
        [shapely.LineString([(0, 0), (5, y), (10, 0)]) for y in (1, -1)] * 1, dtype=object
    )
    graph = Graph(
        np.array([[0.0, 0], [10, 0]]), np.array([[0, 1], [1, 0]]), lines, np.full(2, 30.0), CRS
    )
    assert geoprep.RoadNetwork(graph).edges.index.get_level_values("key").tolist() == [0, 1]
