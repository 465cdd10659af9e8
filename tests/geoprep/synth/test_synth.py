"""A synthetic city: deterministic, connected, georeferenced, and not to be solved by colour."""

import json
import warnings
from collections import Counter
from itertools import pairwise

import networkx
import numpy as np
import pytest
import rasterio
import shapely
from helpers.factory import tree_digest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyproj import Geod
from rasterio.errors import NotGeoreferencedWarning
from rasterio.features import rasterize

from geoprep import synthesize
from geoprep.errors import UsageError
from geoprep.sources.cities import CITIES, get_city
from geoprep.synth import image as image_module
from geoprep.synth import synthesise
from geoprep.synth.city import make_plan
from geoprep.synth.layout import PIXEL_DEG, make_frame
from geoprep.synth.streets import Kind

MOSCOW = get_city("moscow")
SMALL = {"scenes": 9, "seed": 2, "size": 200}
SN5_KEYS = {
    *("OBJECTID", "bridge", "highway", "osm_id", "surface", "lanes", "inferred_speed_mph"),
    *("inferred_speed_mps", "origarea", "origlen", "partialDec", "truncated"),
}
# Speeds by highway: of 1 or 2 lanes, of more (the SpaceNet 5 rule).
MPH = {
    **dict.fromkeys(("motorway", "motorway_link"), (55, 65)),
    **{"primary": (45, 55), "secondary": (35, 45), "tertiary": (30, 35), "residential": (25, 30)},
    **dict.fromkeys(("unclassified", "service", "track"), (20, 20)),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return synthesise(tmp_path_factory.mktemp("small"), MOSCOW, **SMALL)


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    return synthesise(tmp_path_factory.mktemp("city"), MOSCOW, scenes=9, seed=6, size=800)


def number(image):
    return int(image.stem.rsplit("chip", 1)[1])


def images(folder, product="PS-RGB"):
    return sorted((folder / product).glob("*.tif"), key=number)


def label_of(image):
    name = image.name.replace(image.parent.name, "geojson_roads_speed")
    return (image.parents[1] / "geojson_roads_speed" / name).with_suffix(".geojson")


def features(image):
    """Return the properties and the lines of every road of an image's label."""
    document = json.loads(label_of(image).read_text())
    assert document["crs"]["properties"]["name"] == "urn:ogc:def:crs:OGC:1.3:CRS84"
    found = []
    for feature in document["features"]:
        geometry = feature["geometry"]
        lines = geometry["coordinates"]
        many = geometry["type"] == "MultiLineString"
        found.append((feature["properties"], lines if many else [lines]))
    return found


def read(path):
    with rasterio.open(path) as file:
        return np.asarray(file.read())


def road_mask(image, east_m=0.0, south_m=0.0):
    """Burn the label, 2 m to either side, on the image's grid; moved by some metres if asked."""
    with rasterio.open(image) as file:
        grid, shape = file.transform, file.shape
    frame = make_frame(MOSCOW, 9, 1300)
    step = np.array([frame.px, frame.py])

    def to_metres(degrees):
        metres = (degrees - [grid.c, grid.f]) / [grid.a, grid.e] * step
        metres += np.array([east_m, south_m])
        return metres

    lines = [
        shapely.transform(shapely.LineString(line), to_metres).buffer(2.0)
        for _, road in features(image)
        for line in road
    ]
    if not lines:
        return np.zeros(shape, dtype=bool)
    metric = rasterio.Affine(step[0], 0, 0, 0, step[1], 0)
    burnt = rasterize(lines, shape, transform=metric, dtype="uint8")
    return burnt > 0


def test_bytes_depend_on_the_seed_and_not_on_the_workers(small, tmp_path):
    other = synthesise(tmp_path, MOSCOW, **SMALL, workers=2)
    assert tree_digest(other) == tree_digest(small)
    seeded = synthesise(tmp_path / "other", MOSCOW, **(SMALL | {"seed": 1}))
    drawn = [{*tree_digest(folder / "PS-RGB").values()} for folder in (seeded, small)]
    assert not drawn[0] & drawn[1]


def test_an_interrupted_run_is_taken_up_where_it_stopped(small, tmp_path):
    def stop(finished, _):
        if finished == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        synthesise(tmp_path, MOSCOW, **SMALL, on_scene=stop)
    folder = tmp_path / MOSCOW.aoi
    there = images(folder)
    assert 3 <= len(there) < 9
    label_of(there[0]).unlink()  # a scene with one of its two files is not finished
    kept = {path: path.stat().st_mtime_ns for path in there[1:3]}
    calls = []
    for _ in range(2):  # the second finds a finished city and leaves it alone
        synthesise(tmp_path, MOSCOW, **SMALL, on_scene=lambda *call: calls.append(call))
    assert tree_digest(folder) == tree_digest(small)
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert calls == [(k, 9) for k in range(10 - len(calls), 10)]


@pytest.mark.parametrize("change", [{"seed": 1}, {"size": 201}, {"scenes": 10}])
def test_other_parameters_are_refused(small, change):
    with pytest.raises(UsageError, match=rf"{small}.*other parameters.*another folder"):
        synthesise(small.parent, MOSCOW, **(SMALL | change))


BAD = [{"product": "RGB"}, {"seed": -1}, {"scenes": 0}, {"size": 8}, {"workers": 0}]


@pytest.mark.parametrize("change", BAD)
def test_what_cannot_be_drawn_is_refused(tmp_path, change):
    with pytest.raises(UsageError):
        synthesize("moscow", out=tmp_path, **(SMALL | change))
    assert not any(tmp_path.iterdir())


def test_files_are_named_and_placed_as_in_spacenet(small):
    assert images(small)[0].name == "SN5_roads_train_AOI_7_Moscow_PS-RGB_chip0.tif"
    numbers = {number(path) for path in images(small)}
    assert len(numbers) == 9 <= max(numbers)  # numbers have gaps, as in the real data
    assert all(label_of(image).is_file() for image in images(small))
    folders = sorted(path.name for path in small.iterdir())
    assert folders == ["PS-RGB", "geojson_roads_speed", "synth.json"]


def test_profile_is_that_of_a_real_chip(small, shared_data):
    real = next((shared_data / "AOI_2_Vegas" / "PS-RGB").glob("*.tif"))
    with rasterio.open(real) as expected, rasterio.open(images(small)[0]) as made:
        for key in ("dtype", "nodata", "crs", "tiled", "compress", "interleave", "blockysize"):
            assert made.profile[key] == expected.profile[key], key
        assert made.tags(ns="IMAGE_STRUCTURE") == expected.tags(ns="IMAGE_STRUCTURE")
        assert made.transform.a == pytest.approx(expected.transform.a, rel=1e-6)
        assert made.colorinterp == expected.colorinterp[:3]


def test_chips_touch_on_one_lattice(small):
    corners = set()
    for image in images(small):
        with rasterio.open(image) as file:
            assert (file.crs.to_epsg(), file.shape) == (4326, (200, 200))
            assert (file.transform.a, file.transform.e) == (PIXEL_DEG, -PIXEL_DEG)
            corner = np.array([file.transform.c - 37.62, 55.75 - file.transform.f])
        place = corner / (200 * PIXEL_DEG)
        assert place == pytest.approx(np.rint(place), abs=1e-6)
        corners.add(tuple(np.rint(place).astype(int)))
    assert corners == {(col, row) for col in range(3) for row in range(3)}


@given(st.sampled_from(sorted(CITIES)), st.integers(1, 400), st.integers(64, 1300), st.data())
def test_metres_and_degrees_agree(name, scenes, size, data):
    frame = make_frame(get_city(name), scenes, size)
    index = data.draw(st.integers(0, scenes - 1))
    pixel = np.array(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))), float)
    metres = np.array(frame.to_pixels(index) @ tuple(pixel))
    assert frame.to_degrees(metres) == pytest.approx(frame.georeference(index) @ pixel, abs=1e-10)
    earth, (lon, lat) = Geod(ellps="WGS84"), (frame.lon, frame.lat)
    east, south = earth.inv(lon, lat, lon + 0.01, lat)[2], earth.inv(lon, lat, lon, lat - 0.01)[2]
    assert (frame.px, frame.py) == pytest.approx((east * 2.7e-4, south * 2.7e-4), rel=1e-4)


def test_an_eighth_of_the_chips_has_a_slanted_black_border(tmp_path):
    folder = synthesise(tmp_path, MOSCOW, scenes=16, seed=3, size=128)
    black = [(read(image) == 0).all(axis=0) for image in images(folder)]
    cut = [mask for mask in black if mask.any()]
    assert len(cut) == 2
    for mask in cut:
        assert 0.03 < mask.mean() < 0.5
        depths = [len(np.unique(mask.sum(axis=axis))) for axis in (0, 1)]
        assert max(depths) > 10  # slanted, not a straight strip
        assert any(side.all() for side in (mask[0], mask[-1], mask[:, 0], mask[:, -1]))
    chips = [read(image) for image in images(folder)]
    assert all(chip[:, ~mask].min() >= 1 for chip, mask in zip(chips, black, strict=True))


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000), scenes=st.integers(4, 12))
@example(seed=241, scenes=5)  # the cheapest chip to leave empty would cut the city in two
def test_only_the_chosen_chip_has_no_road(seed, scenes):
    plan = make_plan(MOSCOW, scenes, seed, 325)
    lines = shapely.union_all([road.line for road in plan.roads])
    boxes = [plan.frame.box(k) for k in range(scenes)]
    touched = shapely.length(shapely.intersection(boxes, lines)) > 0
    assert np.flatnonzero(~touched).tolist() == [plan.empty]


def test_label_schema_and_speeds_are_those_of_spacenet_5(city):
    seen = Counter[tuple[str, str | None, str | None]]()
    for image in images(city):
        for road, _ in features(image):
            assert set(road) == SN5_KEYS
            types = [type(road[key]) for key in ("OBJECTID", "lanes", "osm_id")]
            assert types == [str, str, float]
            assert road["bridge"] in (None, "yes")
            factor = 1.0 if road["surface"] == "paved" else 0.75
            mph = factor * MPH[road["highway"]][int(road["lanes"]) > 2]
            assert road["inferred_speed_mph"] == mph
            assert road["inferred_speed_mps"] == pytest.approx(mph * 0.44704)
            assert road["origlen"] > 0
            seen[road["highway"], road["surface"], road["bridge"]] += 1
    assert {surface for _, surface, _ in seen} >= {"paved", "unpaved"}
    assert {bridge for _, _, bridge in seen} == {None, "yes"}


@pytest.fixture(scope="module")
def roads():
    return make_plan(MOSCOW, 24, 0, 1300).roads


def test_every_speed_bin_occurs_in_24_scenes(roads):
    length = Counter[int]()
    for road in roads:
        length[-int(-road.kind.mph // 10)] += int(road.line.length)
    assert set(length) == {2, 3, 4, 5, 6, 7}
    assert min(length.values()) > 0.01 * sum(length.values())
    assert {None, "paved", "unpaved"} == {road.kind.surface for road in roads}


def test_sn3_cities_have_the_sn3_schema_and_11_bit_pixels(tmp_path):
    vegas = get_city("vegas")
    folder = synthesise(tmp_path, vegas, scenes=2, seed=0, size=325)
    image = next((folder / "PS-RGB").glob("SN3_roads_train_AOI_2_Vegas_PS-RGB_img*.tif"))
    pixels = read(image)
    assert pixels.dtype == np.uint16
    assert 255 < pixels.max() <= 2047
    label = next((folder / vegas.label_folder).glob("SN3_roads_train_AOI_2_Vegas_*.geojson"))
    road = json.loads(label.read_text())["features"][0]["properties"]
    for key in ("bridge_typ", "lane_numbe", "lane_number", "one_way_ty", "paved", "road_type"):
        assert isinstance(road[key], str), key


def test_a_city_without_labels_gets_none(tmp_path):
    folder = synthesise(tmp_path, get_city("san_juan"), scenes=1, seed=0, size=200)
    assert [path.name for path in sorted(folder.iterdir())] == ["PS-RGB", "synth.json"]
    assert len(list(folder.glob("PS-RGB/SN5_roads_test_public_AOI_9_San_Juan_*.tif"))) == 1


def test_the_roads_of_all_labels_are_one_network(city):
    graph = networkx.Graph()
    for image in images(city):
        for _, lines in features(image):
            for line in lines:
                nodes = [(round(x, 9), round(y, 9)) for x, y in line]
                networkx.add_path(graph, nodes)
    assert len(graph) > 500
    assert networkx.number_connected_components(graph) == 1
    assert sum(degree >= 3 for _, degree in graph.degree) > 15  # junctions


def test_roads_cross_without_a_vertex_on_bridges_only(roads):
    lines = [road.line for road in roads]
    pairs = zip(*shapely.STRtree(lines).query(lines, predicate="intersects"), strict=True)
    over = 0
    for a, b in pairs:
        shared = {*lines[a].coords} & {*lines[b].coords}
        meet = shapely.get_coordinates(lines[a].intersection(lines[b]))
        if any(all(np.hypot(*(p - q)) > 1e-6 for q in shared) for p in meet):
            assert roads[a].bridge or roads[b].bridge
            over += 1
    assert over >= 4  # every pair is met twice


def test_faster_classes_are_wider():
    order = [("track", 1), ("service", 1), ("residential", 2), ("tertiary", 2), ("secondary", 2)]
    order += [("primary", 2), ("motorway", 3), ("primary", 4)]
    kinds = [Kind(highway, lanes, "paved") for highway, lanes in order]
    assert all(a.width < b.width for a, b in pairwise(kinds))


@pytest.mark.parametrize(("east_m", "south_m"), [(14.0, 0), (0, -14.0)])
def test_labels_lie_on_the_roads(city, east_m, south_m):
    green = np.zeros((2, 2))
    for image in images(city):
        r, g, b = read(image).astype(int)
        leaves, valid = g > 1.06 * np.maximum(r, b), r + g + b > 0
        for k, mask in enumerate((road_mask(image), road_mask(image, east_m, south_m))):
            green[k] += leaves[mask & valid].sum(), (mask & valid).sum()
    on, beside = green[:, 0] / green[:, 1]
    assert on < 0.16  # crowns over the road
    assert beside > 2 * on


def color_iou(train, test, bits):
    """Return the best road IoU of any threshold on the share of roads in each bin of colour."""

    def counts(paths):
        road, total = np.zeros((2, 1 << 3 * bits))
        for path in paths:
            coarse = (read(path) >> (8 - bits)).astype(np.intp)
            key = ((coarse[0] << bits) + coarse[1] << bits) + coarse[2]
            total += np.bincount(key.ravel(), minlength=len(total))
            road += np.bincount(key[road_mask(path)], minlength=len(road))
        return road, total

    road, total = counts(train)
    best_first = np.argsort(-(road + 1e-3) / (total + 1e-2))
    road, total = counts(test)
    hit, called = np.cumsum(road[best_first]), np.cumsum(total[best_first])
    return float((hit / (called + road.sum() - hit)).max())


def test_roads_are_not_found_by_color(city):
    chips = images(city)
    in_sample = color_iou(chips, chips, bits=5)
    held_out = color_iou(chips[::2], chips[1::2], bits=5)
    chance = np.mean([road_mask(image).mean() for image in chips])
    assert 0.03 < chance < held_out < 0.25 > in_sample


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    folder = tmp_path_factory.mktemp("products")
    some = {"scenes": 2, "seed": 0, "size": 300}
    every = synthesise(folder, MOSCOW, **some, products=("PAN", "PS-MS", "PS-RGB"))
    alone = synthesise(folder / "alone", MOSCOW, **some)
    assert tree_digest(alone).items() < tree_digest(every).items()  # others change no product
    return every


def unexplained(counts, gray):
    """Return the share of the variance of counts left within each grey level but the extremes."""
    inner = (gray > 1) & (gray < 255)
    level, value = gray[inner].astype(int), counts[inner].astype(float)
    mean = np.bincount(level, value, 256) / np.maximum(np.bincount(level, minlength=256), 1)
    return float((value - mean[level]).var() / value.var())


def test_all_products_show_one_scene(products):
    every = [images(products, name) for name in ("PS-RGB", "PS-MS", "PAN")]
    for rgb, ms, pan in zip(*every, strict=True):
        color, bands, gray = read(rgb), read(ms), read(pan)
        assert [len(pixels) for pixels in (color, bands, gray)] == [3, 8, 1]
        assert bands.dtype == gray.dtype == np.uint16
        assert bands.max() <= 2047
        for k, band in enumerate((4, 2, 1)):
            assert unexplained(bands[band], color[k]) < 0.03
        assert np.corrcoef(bands[1:6].mean(axis=0).ravel(), gray.ravel())[0, 1] > 0.95


def test_multispectral_bands_have_plausible_spectra(products):
    bands = np.concatenate([read(p).reshape(8, -1) for p in images(products, "PS-MS")], axis=1)
    red, infrared = bands[[4, 6]].astype(float)
    greenness = (infrared - red) / (infrared + red)
    road = np.concatenate([road_mask(p).ravel() for p in images(products, "PS-MS")])
    assert np.percentile(greenness, 95) > 0.45
    assert np.median(greenness[road]) < 0.2


def test_classes_show_what_is_uppermost_and_change_no_other_file(tmp_path):
    size = {"scenes": 2, "seed": 0, "size": 128}
    plain = synthesise(tmp_path / "plain", MOSCOW, **size)
    folder = synthesise(tmp_path / "classes", MOSCOW, classes=True, **size)
    files = sorted(path.relative_to(plain) for path in plain.rglob("*") if path.is_file())
    assert all((folder / path).read_bytes() == (plain / path).read_bytes() for path in files)
    assert "name: road\n  value: 2" in (folder / "classes" / "classes.yaml").read_text()
    plan = make_plan(MOSCOW, **{"scenes": 2, "seed": 0, "size": 128})
    for index, path in enumerate(sorted((folder / "classes").glob("*.tif"))):
        with rasterio.open(path) as file:
            found, nodata = file.read(1), file.nodata
        assert nodata == 255
        assert set(np.unique(found)) <= {0, 1, 2, 3, 4, 255}
        middles = [(road.line, 1) for road in plan.roads]
        to_metres = plan.frame.to_pixels(index)
        on_road = rasterize(middles, found.shape, transform=to_metres).astype(bool)
        assert np.isin(found[on_road], (2, 4)).mean() > 0.85  # others are under bridges


def test_drawing_shows_no_warning_of_rasterio(monkeypatch, tmp_path, recwarn):
    """Where threads burn shapes, rasterio misses the transform of one in some runs; same pixels."""

    def burn(*args, **options):
        warnings.warn("Dataset has no geotransform, gcps, or rpcs.", NotGeoreferencedWarning, 2)
        return rasterize(*args, **options)

    monkeypatch.setattr(image_module, "rasterize", burn)
    synthesise(tmp_path, MOSCOW, scenes=2, seed=0, size=64)
    assert not [one for one in recwarn if one.category is NotGeoreferencedWarning]
