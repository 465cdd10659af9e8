"""Damaged images and labels: no crash, no hang, bounded memory; only their own scene may fail."""

import multiprocessing
import random
import resource
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyogrio
import pytest
import rasterio
from faults.mutations import MUTATIONS
from helpers.factory import build_of
from rasterio.enums import ColorInterp

from geoprep.errors import GeoprepError
from geoprep.sources.cities import CITIES
from geoprep.sources.city_scenes import find_scenes
from geoprep.store.scenes import read_image, read_label
from geoprep.synth import synthesise
from geoprep.verify.store_check import verify

OPTIONS = {"tile": 64, "levels": 1, "rescale": "none"}
BATCH = 25
SPACE = 4 << 30
"""Limit of further address space in bytes; threads reserve most of it."""
CPU_S = 1200


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    """Return the scenes of a synthetic city, and the pixels of each when it is not damaged."""
    folder = tmp_path_factory.mktemp("city")
    source = synthesise(folder / "data", CITIES["moscow"], scenes=6, size=128, seed=1)
    scenes = find_scenes(CITIES["moscow"], source).scenes
    store = build_of(folder / "whole.zarr", scenes, **OPTIONS)
    return scenes, [(read_image(store, i), read_label(store, i)) for i in range(len(scenes))]


def limit():
    space = psutil.Process().memory_info().vms + SPACE
    resource.setrlimit(resource.RLIMIT_AS, (space, space))


@pytest.fixture(scope="module")
def child():
    """Return a process with limits; if it crashes, every call fails."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context, initializer=limit) as pool:
        yield pool


def uncompressed(path):
    """Return an image without compression: most damaged bytes are pixels, which can be read."""
    with rasterio.open(path) as file, rasterio.MemoryFile() as memory:
        with memory.open(**{**file.profile, "compress": "none", "tiled": False}) as out:
            out.write(file.read())
        return bytes(memory.getbuffer())


def damaged(scenes, kind, rng, folder):
    for number in range(BATCH):
        scene = scenes[number % len(scenes)]
        file = Path(getattr(scene, kind))
        data = file.read_bytes() if number % 2 or kind == "label" else uncompressed(file)
        changed = folder / f"{number:03d}{file.suffix}"
        changed.write_bytes(rng.choice(MUTATIONS[kind])(data, rng))
        yield replace(scene, id=changed.stem, **{kind: str(changed)})


def built(out, scenes):
    """Build in a child process; return the pixels, status and reason of every scene."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + CPU_S, resource.RLIM_INFINITY))
    store = build_of(out, scenes, **OPTIONS)
    assert not verify(out, workers=1).problems
    table = store.scenes
    return [
        (read_image(store, i), read_label(store, i), str(table.status[i]), str(table.reason[i]))
        for i in range(len(scenes))
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", MUTATIONS)
def test_damage_stays_in_its_scene(city, child, tmp_path, kind, seed):
    scenes, whole = city
    some = list(damaged(scenes, kind, random.Random(seed), tmp_path))
    try:
        parts = [(some, child.submit(built, tmp_path / "all.zarr", [*some, scenes[0]]).result())]
    except GeoprepError:  # a scene that ends the build is built alone, and named
        parts = []
        for one in some:
            task = child.submit(built, tmp_path / f"{one.id}.zarr", [one, scenes[0]])
            if isinstance(error := task.exception(), GeoprepError):
                assert ".tif" in str(error) or "scene" in str(error), one
            else:
                parts.append(([one], task.result()))
    for given, found in parts:
        assert all(map(np.array_equal, found[-1], whole[0])), "an undamaged scene is wrong"
        for number, scene in enumerate(given):
            check(scene, kind, whole[int(scene.id) % len(scenes)], *found[number])


def check(scene, kind, whole, image, label, status, reason):
    if status != "ok":
        assert reason, scene
        assert status == "unlabelled" or not image.any(), scene
    elif kind == "label":
        pyogrio.read_info(scene.label)  # GDAL, too, reads more than json does
        assert np.array_equal(image, whole[0]), scene
    else:
        with rasterio.open(scene.image) as file:
            plain = file.dtypes[0] == "uint8" and file.count == 3
            plain &= file.colorinterp[0] != ColorInterp.palette  # whose colours are read
            pixels = np.moveaxis(file.read(), 0, -1) if plain else image
        if pixels.shape == image.shape:
            known = image.any(axis=-1)
            assert np.array_equal(image[known], np.maximum(pixels, 1)[known]), scene
