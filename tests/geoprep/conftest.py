"""A small store with one scene of every kind, built once for all tests of this folder."""

import shutil
from pathlib import Path

import pytest
import zarr
from affine import Affine
from helpers.factory import Place, build_of, texture, write_scene
from zarr.core import codec_pipeline

import geoprep
from geoprep.sources.own_images import images_and_labels
from geoprep.store.reader import StoreReader

UTM = "EPSG:32637"
KINDS = (("motorway", "4"), ("residential", "1"), ("tertiary", "3"))
PIXEL = 2.7e-6
"""Degrees, as of SpaceNet's chips."""


def roads_of(count):
    """Return straight roads across an image, of one kind each, for `write_scene`."""
    heights = [(i + 1) / (count + 1) for i in range(count)]
    return [
        ([(0, y - 0.2), (1, y + 0.2)], {"highway": kind, "lanes": lanes, "surface": "asphalt"})
        for y, (kind, lanes) in zip(heights, KINDS, strict=False)
    ]


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """A folder of fifteen small scenes: two CRSs, both ways up, and every way to go wrong."""
    folder = tmp_path_factory.mktemp("scenes")

    def write(name, place, shape, *, seed, roads=2, black=0, **options):
        pixels = texture(*shape, seed=seed)
        pixels[:, :black] = 0
        write_scene(folder, name, pixels, place, roads=roads_of(roads), **options)

    city = [(f"city_{i}", {"roads": 1 + i % 3}) for i in range(6)]
    city += [("city_empty", {"roads": 0}), ("city_unlabelled", {"labelled": False})]
    city += [("city_broken", {}), ("city_black", {"black": 130}), ("city_border", {"black": 37})]
    for column, (name, options) in enumerate(city):
        transform = Affine(PIXEL, 0, 37.6 + 200 * PIXEL * column, 0, -PIXEL, 55.75)
        write(name, Place("EPSG:4326", transform), (150, 130), seed=column, **options)
    (folder / "city_broken.geojson").write_text("{")
    (folder / "city_truncated.tif").write_bytes(b"II*\0")
    north_up = Place(UTM, Affine(0.5, 0, 4e5, 0, -0.5, 6.2e6))
    south_up = Place(UTM, Affine(0.5, 0, 4.01e5, 0, 0.5, 6.2e6))
    write("utm_north", north_up, (97, 131), seed=11)
    write("utm_south", south_up, (97, 131), seed=12)
    write("utm_small", north_up, (41, 50), seed=13)
    return folder


@pytest.fixture(scope="session")
def small_store(sources, tmp_path_factory):
    """The store of these scenes: overlapping tiles of 64, two levels, several shards. Read only."""
    found = images_and_labels([f"{sources}/*.tif"], f"{sources}/*.geojson")
    options = {"tile": 64, "overlap": 8, "shard_tiles": 8, "val": 0.25, "test": 0.1}
    out = tmp_path_factory.mktemp("stores") / "small.zarr"
    build_of(out, found, rescale="none", **options)
    return out


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
        scene = write_scene(tmp_path, "a", texture(*shape), Place(UTM, transform))
        return geoprep.open_store(build_of(tmp_path / "x.zarr", [scene], **options).location)

    return build


@pytest.fixture(params=["BatchedCodecPipeline", "FusedCodecPipeline"])
def pipeline(request):
    """How zarr reads chunks: in an event loop, or without one (from zarr 3.4 on)."""
    if not hasattr(codec_pipeline, request.param):
        pytest.skip(f"this zarr has no {request.param}")
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{request.param}"}):
        yield


@pytest.fixture
def store_copy(small_store, tmp_path):
    """A copy of the small store that a test may damage."""
    return Path(shutil.copytree(small_store, tmp_path / "copy.zarr"))
