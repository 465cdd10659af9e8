"""Build from damaged images and labels: only the scene of the damaged file may fail."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import xxhash

from benchmarks.faults import jobs
from benchmarks.faults.children import Ending, run
from benchmarks.faults.jobs import FaultInputs
from benchmarks.faults.mutations import MUTATIONS
from benchmarks.faults.report import FaultRow
from geoprep.building import build
from geoprep.cpus import usable_cpus
from geoprep.executors import Threads
from geoprep.plan import BuildOptions, make_plan
from geoprep.sources import CITIES, Scene, SourceScenes, find_scenes
from geoprep.store import StoreReader, read_image, read_label

PER_BUILD = 50
PER_SCENE = 4.0
"""Time limit of a scene of 128 x 128 pixels in seconds, on a busy machine."""
SPACE = 4 << 30
"""Limit of further address space of a child process in bytes; threads reserve most of it."""
MOST = 1 << 30
"""Limit of the memory of a build in bytes, including Python and its libraries."""
OPTIONS: dict[str, Any] = {"tile": 64, "levels": 1, "rescale": "none"}
HELD = (
    "no crash, no hang, bounded memory; "
    "the scene is correct or reported with a reason; the other scenes are correct"
)


@dataclass(frozen=True)
class Mutant:
    """A damaged image or label: its scene, its kind, the damage and the bytes."""

    scene: Scene
    kind: str
    how: str
    data: bytes

    @property
    def path(self) -> Path:
        """The undamaged file."""
        return Path(getattr(self.scene, self.kind))


def rows(inputs: FaultInputs, seed: int, tries: int) -> Iterator[FaultRow]:
    """Yield the results of damaged images and of damaged labels, half of the trials each."""
    for kind, what in (("image", "mutated GeoTIFFs"), ("label", "mutated GeoJSON files")):
        with FaultRow(what, HELD) as row:
            _run(inputs, f"{seed} {kind}", kind, max(1, tries // 2), row)
        yield row


def _run(inputs: FaultInputs, seed: str, kind: str, tries: int, row: FaultRow) -> None:
    rng, folder = random.Random(seed), inputs.folder / f"mutated-{kind}"
    folder.mkdir()
    reference = _images(inputs.source, folder)
    mutants = list(_mutants(inputs.source, kind, rng, tries))
    batches = [mutants[i : i + PER_BUILD] for i in range(0, tries, PER_BUILD)]
    statuses = Counter[str]()
    with ThreadPoolExecutor(usable_cpus()) as pool:
        answers = pool.map(
            lambda task: _checked(folder / str(task[0]), task[1], reference), enumerate(batches)
        )
        for some, checked in zip(batches, answers, strict=True):
            for mutant, (status, wrong) in zip(some, checked, strict=True):
                statuses[status] += 1
                row.count([f"{mutant.path}, {mutant.how}: {one}" for one in wrong])
    row.note = ", ".join(f"{count:,} {status}" for status, count in statuses.most_common())
    shutil.rmtree(folder)


def _mutants(source: Path, kind: str, rng: random.Random, tries: int) -> Iterator[Mutant]:
    scenes = find_scenes(CITIES["moscow"], source).scenes
    for number in range(tries):
        scene = scenes[number % len(scenes)]
        how = rng.choice(list(MUTATIONS[kind]))
        file = Path(getattr(scene, kind))
        data = file.read_bytes() if number % 2 or kind == "label" else _uncompressed(file)
        yield Mutant(scene, kind, how, MUTATIONS[kind][how](data, rng))


def _uncompressed(path: Path) -> bytes:
    """Return an uncompressed image: most damaged bytes are then pixels, which can be read."""
    with rasterio.open(path) as file, rasterio.MemoryFile() as memory:
        profile = {**file.profile, "compress": "none", "tiled": False, "blockysize": 16}
        with memory.open(**profile) as out:
            out.write(file.read())
        return bytes(memory.getbuffer())


Answer = tuple[str, list[str]]


def _checked(folder: Path, some: Sequence[Mutant], reference: dict[str, str]) -> list[Answer]:
    """Return the status of each mutant: from one build, or from single builds if it fails."""
    limit = 30 + PER_SCENE * len(some)
    ending = run(build_mutants, folder, some, reference, timeout=limit, memory=SPACE)
    shutil.rmtree(folder, ignore_errors=True)
    if ending.how == "done":
        answers: list[Answer] = ending.answer
        if ending.peak <= MOST:
            return answers
        if len(some) == 1:
            return [("large", [f"took {ending.peak >> 20} MiB"])]
    if len(some) == 1:
        return [_alone(ending)]
    return [_checked(folder, [one], reference)[0] for one in some]


def _alone(ending: Ending) -> Answer:
    if ending.how == "reported":  # an error that ends the command must name the file
        named = ".tif" in ending.answer or "scene" in ending.answer
        return "refused", [] if named else [str(ending)]
    return ending.how, [str(ending)]


def build_mutants(
    folder: Path, some: Sequence[Mutant], reference: dict[str, str]
) -> list[tuple[str, list[str]]]:
    """Build mutants together with an undamaged scene; return status and problems of each."""
    folder.mkdir(parents=True)
    scenes = [_written(folder, number, one) for number, one in enumerate(some)]
    whole = replace(some[0].scene, id="whole")
    options = BuildOptions(**OPTIONS)
    found = SourceScenes((*scenes, whole), origin="mutants", product="PS-RGB")
    out = folder / "out.zarr"
    build(make_plan([found], ["moscow"], options, Threads(1)), out, Threads(1))
    store = StoreReader.open(out)
    wrong = jobs.store_problems(out)
    if _seen(store, len(some)) != reference[whole.image]:
        wrong.append("an undamaged scene has wrong pixels")
    return [
        (str(store.scenes.status[i]), wrong + _scene_problems(store, i, one, reference))
        for i, one in enumerate(some)
    ]


def _written(folder: Path, number: int, mutant: Mutant) -> Scene:
    changed = folder / f"{number:05d}{mutant.path.suffix}"
    changed.write_bytes(mutant.data)
    return replace(mutant.scene, id=changed.stem, **{mutant.kind: str(changed)})


def _images(source: Path, folder: Path) -> dict[str, str]:
    """Return the hash of every built scene by image path; with `` alone``, that of its image."""
    jobs.build_store(source, folder / "plain.zarr", **OPTIONS)
    store = StoreReader.open(folder / "plain.zarr")
    result = {}
    for i, scene in enumerate(find_scenes(CITIES["moscow"], source).scenes):
        result[scene.image] = _seen(store, i)
        result[f"{scene.image} alone"] = _hash(read_image(store, i))
    return result


def _seen(store: StoreReader, scene: int) -> str:
    return _hash(read_image(store, scene)) + _hash(read_label(store, scene))


def _hash(pixels: np.ndarray[Any, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(pixels.tobytes())


def _scene_problems(
    store: StoreReader, scene: int, mutant: Mutant, reference: dict[str, str]
) -> list[str]:
    """Return problems of the scene of a mutant: it must be correct, or reported with a reason."""
    status, reason = str(store.scenes.status[scene]), str(store.scenes.reason[scene])
    if status != "ok":
        empty = not read_image(store, scene).any() or status == "unlabelled"
        return [] if reason and empty else [f"{status}, reason {reason!r}, empty {empty}"]
    if mutant.kind == "label":
        if _hash(read_image(store, scene)) != reference[f"{mutant.scene.image} alone"]:
            return ["the image has wrong pixels"]
        try:
            json.loads(mutant.data)
        except (ValueError, RecursionError) as error:
            return [f"accepted, although it is not JSON ({error})"]
        return []
    return _image_problems(store, scene, mutant.data)


def _image_problems(store: StoreReader, scene: int, data: bytes) -> list[str]:
    """Return differences from the pixels that GDAL reads, for images without conversion."""
    with rasterio.MemoryFile(data) as memory, memory.open() as file:
        plain = file.dtypes[0] == "uint8" and file.count == 3
        wanted = np.moveaxis(file.read(), 0, -1) if plain else None
    image = read_image(store, scene)
    if wanted is None or wanted.shape != image.shape:
        return []
    known = image.any(axis=-1)
    same = np.array_equal(image[known], np.maximum(wanted, 1)[known])
    return [] if same else ["pixels differ from those that GDAL reads"]
