"""What children do: the commands of this project on the small inputs of the campaign."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from affine import Affine
from torch import nn

from benchmarks.faults.children import Ending, run
from geoprep.building import build
from geoprep.errors import GeoprepError
from geoprep.executors import Threads
from geoprep.plan import BuildOptions, make_plan
from geoprep.sources import CITIES, find_scenes
from geoprep.store import StoreReader
from geoprep.synth import synthesise
from geoprep.verify import verify

# Shards that cut scenes, and limits of a whole city: a survey, then many shards.
OPTIONS: dict[str, Any] = {"tile": 32, "shard_tiles": 14, "rescale": "city"}
SEEN_FIRST = 9
EPOCHS = 2


def network(bands: int, channels: int) -> nn.Module:
    """Return a network with running statistics and dropout: everything that has state."""
    return nn.Sequential(
        nn.Conv2d(bands, 8, 5, padding=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, channels, 3, padding=1),
    )


@dataclass(frozen=True)
class World:
    """Inputs that all parts share, and what comes of them where nothing goes wrong.

    Attributes
    ----------
    source
        A synthetic city.
    store
        Built from it.
    checkpoint
        Of a small trained network.
    image
        Larger than the network sees at once.
    """

    folder: Path
    source: Path
    store: Path
    checkpoint: Path
    image: Path

    @classmethod
    def make(cls, folder: Path, scenes: int) -> World:
        """Make all of it; takes seconds."""
        city = synthesise(folder / "city", CITIES["moscow"], scenes=scenes, size=128, seed=1)
        store, checkpoint = folder / "whole.zarr", folder / "run" / "last.pt"
        world = cls(folder, city, store, checkpoint, folder / "x.tif")
        sound(run(build_store, world.source, world.store))
        sound(run(fit_network, world.store, folder / "run"))
        write_image(world.image, 700, 96)
        return world


def write_image(path: Path, height: int, width: int) -> None:
    """Write seeded noise as a GeoTIFF of three bands."""
    pixels = np.random.default_rng(0).integers(1, 256, (3, height, width)).astype(np.uint8)
    place = {"crs": "EPSG:32637", "transform": Affine(0.3, 0, 4e5, 0, -0.3, 6.2e6)}
    shape = {"height": height, "width": width, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", photometric="rgb", **shape, **place) as file:
        file.write(pixels)


def build_store(
    source: Path | str, out: Path, *, overwrite: bool = False, **options: object
) -> str:
    """Build a city's store; return what became of it."""
    found = find_scenes(CITIES["moscow"], source)
    wanted = BuildOptions(**{**OPTIONS, **options})
    plan = make_plan([found], ["moscow"], wanted, Threads(2))
    return build(plan, out, Threads(2), overwrite=overwrite).state


def fit_network(store: Path, out: Path) -> int:
    """Train two short epochs, or go on with what is left of them; return the exit status."""
    from training.checkpoint import load
    from training.fit import main

    torch.set_num_threads(1)
    usual = ("--device", "cpu", "--compile", "off", "--threads", "1", "--loader-threads", "1")
    model = ("--model", "benchmarks.faults.jobs:network", "--quiet")
    if (out / "last.pt").exists():
        if load(out / "last.pt").progress["epoch"] == EPOCHS:
            return 0  # killed when all was done: `fit` says so and asks for more epochs
        return main(["--resume", str(out), *model])
    shape = ("--crop", "32", "--crops-per-tile", "1", "--batch-size", "16", "--save-every", "2")
    start = ("--epochs", str(EPOCHS), "--out", str(out), "--overwrite")
    return main([str(store), *usual, *model, *shape, *start])


def predict_map(checkpoint: Path, image: Path, out: Path) -> int:
    """Map an image, in so many windows that it takes a while; return the exit status."""
    from training.predict import main

    torch.set_num_threads(1)
    model = ("--model", "benchmarks.faults.jobs:network")
    shape = ("--window", "64", "--overlap", "32", "--precision", "fp32", "--quiet")
    return main([str(checkpoint), str(image), *model, *shape, "--out", str(out)])


def command(*arguments: str) -> int:
    """Run the ``geoprep`` command; return its exit status, or raise what it would tell."""
    from geoprep.cli import cli

    status = cli.main(list(arguments), standalone_mode=False)
    return status if isinstance(status, int) else 0


def command_into(arguments: tuple[str, ...], out: Path) -> int:
    """Run the ``geoprep`` command with a place to write to."""
    return command(*arguments, "--out", str(out))


@dataclass(frozen=True)
class Work:
    """A command that writes.

    Attributes
    ----------
    name
        As a reader knows it.
    job
        The function that a child runs, and its arguments but for the last, where it writes.
    made
        What that is, below a folder.
    seen
        Returns what of a result must be the same every time, by name.
    never_half
        File below the folder that is not there, or whole.
    """

    name: str
    job: tuple[Any, ...]
    made: str
    seen: Callable[[Path], dict[str, str]]
    never_half: str = ""

    def call(self, folder: Path) -> tuple[Any, ...]:
        """Return function and arguments for a folder."""
        return (*self.job, folder / self.made)

    def start(self, folder: Path, **how: Any) -> Ending:  # noqa: ANN401 - as of `run`
        """Run it in a child, writing into a folder."""
        return run(*self.call(folder), **how)

    def result(self, folder: Path) -> dict[str, str]:
        """Return what of its result must be the same."""
        return self.seen(folder / self.made)


def works(world: World) -> dict[str, Work]:
    """Return every command that writes; the first four make the same bytes every time."""
    store, scene = str(world.store), str(StoreReader.open(world.store).scenes.id[0])

    def geoprep(name: str, made: str, *arguments: str, same: bool = False) -> Work:
        seen = digest if same else _nothing
        return Work(name, (command_into, arguments), made, seen, never_half=made)

    found = (
        Work("build-zarr", (build_store, world.source), "a.zarr", digest),
        Work("predict", (predict_map, world.checkpoint, world.image), "maps", digest, "maps/x.tif"),
        Work("fit", (fit_network, world.store), "run", weights),
        geoprep("page", "a.html", "preview", store, "--quiet", same=True),
        geoprep("preview (picture)", "a.png", "preview", store, "--count", "2"),
        geoprep("export", "a.tif", "export", store, "--scene", scene, "--what", "image", same=True),
        geoprep("export --footprints", "a.gpkg", "export", store, "--footprints", "tile"),
    )
    return {work.name: work for work in found}


def _nothing(path: Path) -> dict[str, str]:
    """Return nothing: that it was made has to do."""
    del path
    return {}


def finished(ending: Ending) -> bool:
    """Return whether a command was done: a status other than 0 is not."""
    return ending.how == "done" and ending.answer in (0, "built", "resumed", "unchanged")


def sound(ending: Ending) -> Ending:
    """Return the ending of a command that nobody disturbed.

    Raises
    ------
    RuntimeError
        It was not done all the same: nothing can be tried.
    """
    if not finished(ending):
        raise RuntimeError(f"undisturbed, and yet: {ending}")
    return ending


def digest(folder: Path) -> dict[str, str]:
    """Return relative path -> hash of every file below a folder, of the folder itself if a file."""
    paths = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    }


def weights(run: Path) -> dict[str, str]:
    """Return the hash of every tensor of a run's last and best network, and of its steps."""
    from training.checkpoint import load

    result = {}
    for name in ("last.pt", "best.pt"):
        saved = load(run / name)
        for key, tensor in saved.model.items():
            data = tensor.contiguous().numpy().tobytes()
            result[f"{name}:{key}"] = hashlib.sha256(data).hexdigest()
    return result


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return what differs between two digests, in words."""
    names = sorted(set(found) | set(wanted))
    wrong = [name for name in names if found.get(name) != wanted.get(name)]
    return (
        [f"{len(wrong)} of {len(names)} differ: {', '.join(wrong[:SEEN_FIRST])}"] if wrong else []
    )


def store_problems(store: Path) -> list[str]:
    """Return what `verify` says of a store, in words."""
    try:
        return [str(problem) for problem in verify(store, workers=1).problems]
    except GeoprepError as error:
        return [str(error)]


def delivered(store: Path, readers: tuple[Callable[[Path], dict[str, Any]], ...]) -> dict[str, Any]:
    """Return what every reader makes of a store: arrays by name, or the error it tells."""
    result: dict[str, Any] = {}
    for reader in readers:
        try:
            result |= reader(store)
        except GeoprepError as error:
            result[reader.__name__] = f"{type(error).__name__}: {error}"
    return result


def ram_tiles(store: Path) -> dict[str, Any]:
    """Return all tiles of all levels from memory."""
    from loaders import RamTiles

    result: dict[str, Any] = {}
    for level in StoreReader.open(store).meta.levels:
        tiles = RamTiles.load(store, "all", level, share=False, progress=False)
        result |= {f"ram{level}.image": tiles.image, f"ram{level}.speed": tiles.speed}
    return result


def stream_tiles(store: Path) -> dict[str, Any]:
    """Return all tiles of the finest level as a stream reads them."""
    from loaders import StreamTiles

    tiles = StreamTiles.open(store, "all", ram_limit="64MB")
    pairs = [tiles.pixels(tile) for tile in range(len(tiles))]
    images, speeds = zip(*pairs, strict=True)
    return {"stream.image": np.stack(images), "stream.speed": np.stack(speeds)}


def whole_scenes(store: Path) -> dict[str, Any]:
    """Return all scenes, put together from their tiles."""
    from geoprep.store import read_image, read_speed

    opened = StoreReader.open(store)
    result: dict[str, Any] = {}
    for scene in range(len(opened.scenes)):
        result[f"scene{scene}.image"] = read_image(opened, scene)
        result[f"scene{scene}.speed"] = read_speed(opened, scene)
    return result


READERS = (ram_tiles, stream_tiles, whole_scenes)
