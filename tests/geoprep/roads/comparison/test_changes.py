"""What a map lacks, and what nothing confirms: portions of roads, offsets, layers and files."""

import json
import sqlite3
from dataclasses import replace

import geopandas
import numpy as np
import pytest
import shapely
from affine import Affine
from click.testing import CliRunner
from helpers.rasters import write_raster
from helpers.roads import network

import geoprep
from geoprep.cli.commands import cli
from geoprep.errors import GeoprepWarning, UsageError
from geoprep.roads.comparison.matching import moved_by, offset_between
from geoprep.roads.formats.lines import network_from_lines
from geoprep.roads.graph import subnetwork
from geoprep.roads.network import RoadGraph

CRS = "EPSG:32637"


def road(*lines, speed=30.0, **columns) -> geoprep.RoadNetwork:
    placed = [np.add(line, (500_000, 6_000_000)) for line in lines]
    shapes = np.array([shapely.LineString(line) for line in placed], object)
    tags = {name: np.array(values, object) for name, values in columns.items()}
    made = network_from_lines(shapes, np.full(len(lines), speed), CRS, attributes=tags)
    return geoprep.RoadNetwork(made)


GRID = [[(0, y), (400, y)] for y in (0, 100, 200)] + [[(x, 0), (x, 200)] for x in (0, 200, 400)]
TYPES = ["primary", "residential", "residential", "service", "service", "service"]


def test_a_road_is_compared_by_its_portions():
    """A map's road of 400 m, of which 240 m are in the imagery, and a new side road."""
    roads = road([(0, 0), (400, 0)], highway=["primary"])
    proposal = road([(0, 1), (240, 1)], [(100, 1), (100, 80)], [(0, 90), (400, 91)], speed=20.0)
    found = geoprep.compare(roads, proposal)
    assert found.unconfirmed["length_m"].sum() == pytest.approx(160, abs=6)
    assert found.matched["length_m"].sum() == pytest.approx(240, abs=6)
    assert found.missing["length_m"].tolist() == pytest.approx([79, 400], abs=1)
    assert found.summary.loc["primary", ["map", "matched", "unconfirmed"]].tolist() == (
        pytest.approx([0.4, 0.24, 0.16], abs=0.01)
    )


def test_a_road_that_is_crossed_or_touched_is_missing_as_a_whole():
    roads = road([(0, 0), (0, 300)], [(100, -2), (112, 5)])
    found = geoprep.compare(roads, road([(-200, 3), (300, 3)], [(0, 0), (0, 300)]))
    assert found.missing["length_m"].sum() == pytest.approx(500, abs=1)


def test_short_differences_are_none():
    roads = road([(0, 0), (400, 0)])
    longer = road([(-15, 0), (400, 0)], [(200, 0), (200, 15)])
    assert geoprep.compare(roads, longer).missing.empty
    assert len(geoprep.compare(roads, longer, min_length=5.0).missing) == 2


@pytest.mark.parametrize("shift", [(0, 0), (4, -3), (-6, 6)])
def test_the_offset_is_found_although_roads_lack_a_partner(shift):
    whole = road(*GRID, highway=TYPES).graph
    noise = np.random.default_rng(1)
    lines = shapely.segmentize(moved_by(whole, np.negative(shift)).lines, 20)
    lines = shapely.transform(lines, lambda xy: xy + noise.normal(0, 0.5, xy.shape))
    moved = replace(whole, lines=lines, attributes={})
    some = subnetwork(whole, np.arange(len(whole.lines)) % 4 != 0)
    offset = offset_between(moved, some)
    assert (offset.east, offset.north) == pytest.approx(shift, abs=0.4)
    assert 0.1 < offset.spread < 1
    found = geoprep.compare(
        geoprep.RoadNetwork(some), geoprep.RoadNetwork(moved), apply_offset=True
    )
    removed = whole.length_m.sum() - some.length_m.sum()
    assert found.missing["length_m"].sum() == pytest.approx(removed, rel=0.1)


def test_one_heading_tells_no_offset():
    roads = road([(0, 0), (400, 0)])
    assert np.isnan(geoprep.compare(roads, road([(0, 3), (400, 3)])).offset.spread)


def test_files_for_qgis_and_josm(tmp_path):
    confidence = np.full((6, 2), 0.8)
    road(*GRID[:4], highway=TYPES[:4]).to_file(tmp_path / "map.gpkg")
    proposal = network(*[np.add(line, (5e5, 6e6)).tolist() for line in GRID], crs=CRS)
    geoprep.RoadNetwork(replace(proposal, confidence=confidence)).to_file(tmp_path / "city.gpkg")
    files = [str(tmp_path / name) for name in ("map.gpkg", "city.gpkg", "c.gpkg")]
    words = ["compare", *files[:2], "--out", files[2]]
    ran = CliRunner().invoke(cli, words)
    assert ran.exit_code == 0, ran.output
    assert "spread" in ran.output
    document = json.loads(CliRunner().invoke(cli, [*words, "--json", "--overwrite"]).output)
    assert document["km"]["all"]["missing"] == pytest.approx(0.4, abs=0.01)
    missing = geoprep.read_network(tmp_path / "c.geojson")
    assert missing.length_km == pytest.approx(0.4, abs=0.01)
    with sqlite3.connect(tmp_path / "c.gpkg") as database:
        layers = {name for (name,) in database.execute("SELECT f_table_name FROM layer_styles")}
        ((mean,), *_) = database.execute("SELECT confidence_mean FROM missing")
    assert layers == {"missing", "unconfirmed", "matched"}
    assert mean == pytest.approx(0.8)


def test_networks_without_roads_and_of_different_planes():
    roads = road(*GRID)
    empty = geoprep.RoadNetwork(subnetwork(roads.graph, np.zeros(len(roads), bool)))
    assert len(geoprep.compare(empty, roads).missing) == len(roads)
    assert geoprep.compare(roads, empty).summary.loc["all", "map"] == 0
    plane: RoadGraph = replace(roads.graph, crs=None)
    with pytest.raises(UsageError, match="only one of map and proposal is georeferenced"):
        geoprep.compare(roads, geoprep.RoadNetwork(plane))


WAYS = {"cycleway": 100, "pedestrian": 200, "path": 300, "runway": 400}


@pytest.mark.parametrize("suffix", [".gpkg", ".osm"])
@pytest.mark.parametrize("types", [["primary"], []])
def test_ways_that_are_not_for_cars_are_no_missing_roads(tmp_path, suffix, types):
    """The imagery shows a road, four other ways and a new road; a footway lies unseen."""
    lines = [[(5e5, 6e6 + y), (500_400, 6e6 + y)] for y in (0, *WAYS.values(), 500, 600)]
    shapes = [shapely.LineString(line) for line in lines]
    kinds = [*(types or ["proposed"]), *WAYS, "footway"]
    keys = ["aeroway" if kind == "runway" else "highway" for kind in kinds]
    tags = [{key: kind} for key, kind in zip(keys, kinds, strict=True)]
    frame = geopandas.GeoDataFrame(tags, geometry=shapes[:6], crs=CRS)
    path = tmp_path / f"map{suffix}"
    if suffix == ".osm":
        xy = shapely.get_coordinates(frame.to_crs(4326).geometry)
        nodes = [f"<node id='{n}' lon='{x}' lat='{y}'/>" for n, (x, y) in enumerate(xy, 1)]
        ways = [
            f"<way id='{n}'><nd ref='{2 * n - 1}'/><nd ref='{2 * n}'/><tag k='{k}' v='{v}'/></way>"
            for n, (k, v) in enumerate(zip(keys, kinds, strict=True), 1)
        ]
        path.write_text(f"<osm version='0.6'>{''.join(nodes + ways)}</osm>")
    else:
        frame.to_file(path)
    seen = geopandas.GeoDataFrame(geometry=[*shapes[:5], shapes[6]], crs=CRS)
    with pytest.warns(GeoprepWarning, match="not driveable"):
        found = geoprep.compare(path, geoprep.RoadNetwork.from_geopandas(seen))
    assert found.missing["length_m"].sum() == pytest.approx(800 - 400 * len(types), abs=2)
    assert found.unconfirmed.empty
    assert sorted(found.matched["highway"]) == sorted([*types, *WAYS])
    assert found.summary.loc["runway", ["map", "matched"]].tolist() == pytest.approx(
        [0.4] * 2, 0.01
    )


@pytest.fixture(scope="module")
def strip(tmp_path_factory):
    """An image of 1,200 x 1,100 m with pixels in its northern triangle, and two roads of a map."""
    folder = tmp_path_factory.mktemp("strip")
    y, x = np.mgrid[:1100, :1200]
    flown = (x + y < 1200).astype(np.uint8)
    place = {"transform": Affine(1, 0, 500_000, 0, -1, 6_001_100), "crs": CRS}
    rgb = np.random.default_rng(0).integers(60, 200, (3, 1100, 1200), np.uint8) * flown
    with_alpha = np.concatenate([rgb, 255 * flown[None]])
    write_raster(folder / "alpha.tif", with_alpha, photometric="RGB", alpha="YES", **place)
    speckled = np.where(flown & ((x * y) % 97 > 0), 0, 255).astype(np.uint8)
    write_raster(folder / "nodata.tif", speckled, nodata=255, **place)
    floats = np.where(flown, 0.5, np.nan).astype(np.float32)
    write_raster(folder / "floats.tif", floats, **place)
    write_raster(folder / "mask.tif", 0 * flown, **place)
    geoprep.build_zarr(images=folder / "alpha.tif", out=folder / "store.zarr", progress=False)
    road([(10, 1090), (710, 1090)], [(900, 200), (900, 900)]).to_file(folder / "map.gpkg")
    road([(10, 1090), (710, 1090)]).to_file(folder / "traced.gpkg")
    return folder


@pytest.mark.parametrize(
    ("images", "within"),
    [
        *((name, 0.1) for name in ("alpha.tif", "nodata.tif", "floats.tif", "store.zarr")),
        ("mask.tif", 0.7),  # its zeros are background
    ],
)
def test_ground_without_pixels_is_not_imagery(strip, images, within):
    """The second road crosses the border of the valid pixels 100 m before its end."""
    files = strip / "map.gpkg", strip / "traced.gpkg"
    found = geoprep.compare(*files, images=strip / images).summary.loc["all"]
    assert found["unconfirmed"] == pytest.approx(within, abs=0.01)
    assert found["matched"] == pytest.approx(0.7, abs=0.01)
    (scene,) = geoprep.score(*files, images=strip / images, progress=False).itertuples()
    assert scene.truth_km == pytest.approx(0.7 + within, abs=0.01)
