"""A small store with one scene of every kind, built once for all tests of this folder."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from affine import Affine
from helpers.geojson import feature, write_features
from helpers.rasters import write_raster
from pyproj import Transformer

import geoprep
from geoprep.build.options import BuildOptions
from geoprep.build.plan import make_plan
from geoprep.build.run import build
from geoprep.executors.threads import Threads
from geoprep.sources import images_and_labels
from geoprep.store import StoreReader

LONLAT_ORIGIN = 37.60, 55.75
LONLAT_PIXEL = 2.7e-6
UTM = "EPSG:32637"
ROADS = (("motorway", 4), ("residential", 1))
OPTIONS = BuildOptions(
    rescale="none", tile=64, overlap=8, levels=2, shard_tiles=8, val=0.25, test=0.1
)


def write_scene(folder, name, *, shape, transform, crs="EPSG:4326", seed=0, roads=ROADS, bands=3):
    """Write NAME.tif of seeded noise and NAME.geojson with one straight road a pair."""
    rng = np.random.default_rng(seed)
    height, width = shape
    light = np.linspace(60, 180, width)[None, :, None]
    pixels = np.clip(rng.normal(light, 25, (height, width, bands)), 1, 255).astype(np.uint8)
    write_raster(folder / f"{name}.tif", np.moveaxis(pixels, 2, 0), crs=crs, transform=transform)
    features = []
    to_lonlat = Transformer.from_crs(crs, "EPSG:4326", always_xy=True)
    for i, (highway, lanes) in enumerate(roads):
        y = height * (i + 1) / (len(roads) + 1)
        ends = [transform * at for at in ((0, y - height / 5), (width, y + height / 5))]
        tags = {"highway": highway, "lanes": str(lanes), "surface": "asphalt"}
        features.append(feature([to_lonlat.transform(*end) for end in ends], **tags))
    write_features(folder / f"{name}.geojson", features)
    return pixels


def lonlat_grid(column, row=0):
    """Return the affine of a chip in square degrees, ``column`` chips to the east."""
    step = 200 * LONLAT_PIXEL
    west, north = LONLAT_ORIGIN[0] + column * step, LONLAT_ORIGIN[1] - row * step
    return Affine(LONLAT_PIXEL, 0, west, 0, -LONLAT_PIXEL, north)


def _write_sources(folder):
    for i in range(6):
        roads = (("motorway", 4), ("residential", 1), ("tertiary", 3))[: 1 + i % 3]
        write_scene(
            folder, f"city_{i}", shape=(150, 130), transform=lonlat_grid(i), seed=i, roads=roads
        )
    write_scene(folder, "city_empty", shape=(150, 130), transform=lonlat_grid(6), roads=())
    write_scene(folder, "city_unlabelled", shape=(150, 130), transform=lonlat_grid(7), seed=7)
    (folder / "city_unlabelled.geojson").unlink()
    write_scene(folder, "city_broken", shape=(150, 130), transform=lonlat_grid(8), seed=8)
    (folder / "city_broken.geojson").write_text("{")
    for name, column, black in (("city_black", 9, 130), ("city_border", 10, 37)):
        place = lonlat_grid(column)
        pixels = write_scene(folder, name, shape=(150, 130), transform=place, seed=column)
        pixels[:, :black] = 0
        image = np.moveaxis(pixels, 2, 0)
        write_raster(folder / f"{name}.tif", image, transform=place, crs="EPSG:4326")
    (folder / "city_truncated.tif").write_bytes(b"II*\0")
    north_up, south_up = Affine(0.5, 0, 4e5, 0, -0.5, 6.2e6), Affine(0.5, 0, 4.01e5, 0, 0.5, 6.2e6)
    write_scene(folder, "utm_north", shape=(97, 131), transform=north_up, crs=UTM, seed=11)
    write_scene(folder, "utm_south", shape=(97, 131), transform=south_up, crs=UTM, seed=12)
    write_scene(folder, "utm_small", shape=(41, 50), transform=north_up, crs=UTM, seed=13)


def build_store(images, out, options=OPTIONS):
    """Build all scenes of a folder, labels beside the images."""
    found = images_and_labels([str(images / "*.tif")], str(images / "*.geojson"))
    executor = Threads(2)
    build(make_plan([found], ["custom"], options, executor), out, executor)
    return out


@pytest.fixture(scope="session")
def make():
    """What the fixtures here are made with, for tests that need scenes of their own."""
    return SimpleNamespace(
        write_scene=write_scene, lonlat_grid=lonlat_grid, build_store=build_store
    )


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """A folder of fifteen small scenes: two CRSs, both ways up, and every way to go wrong."""
    folder = tmp_path_factory.mktemp("scenes")
    _write_sources(folder)
    return folder


@pytest.fixture(scope="session")
def small_store(sources, tmp_path_factory):
    """The store of these scenes: overlapping tiles of 64, two levels, several shards. Read only."""
    return build_store(sources, tmp_path_factory.mktemp("stores") / "small.zarr")


@pytest.fixture(scope="session")
def store(small_store):
    """This store, opened. Read only."""
    return StoreReader.open(small_store)


@pytest.fixture(scope="session")
def opened(small_store):
    """This store, opened as notebooks do. Read only."""
    return geoprep.open_store(small_store)


@pytest.fixture
def built(tmp_path):
    """Return a function that builds a store of one scene in a UTM zone and opens it."""

    def build(transform, shape=(64, 96), **options):
        write_scene(tmp_path, "a", shape=shape, transform=transform, crs=UTM)
        out = build_store(tmp_path, tmp_path / "x.zarr", BuildOptions(**options))
        return geoprep.open_store(out)

    return build


@pytest.fixture
def store_copy(small_store, tmp_path):
    """A copy of the small store that a test may damage."""
    return Path(shutil.copytree(small_store, tmp_path / "copy.zarr"))
