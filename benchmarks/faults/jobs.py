"""Commands of this project on small inputs, run in child processes of the fault tests."""

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

# Shards that split scenes, and rescale limits of a whole city, which need a survey.
OPTIONS: dict[str, Any] = {"tile": 32, "shard_tiles": 14, "rescale": "city"}
MOST_NAMES = 9
EPOCHS = 2


def small_model(bands: int, channels: int) -> nn.Module:
    """Return a model with all kinds of state: running statistics and dropout."""
    return nn.Sequential(
        nn.Conv2d(bands, 8, 5, padding=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Conv2d(8, channels, 3, padding=1),
    )


@dataclass(frozen=True)
class FaultInputs:
    """Inputs shared by all parts, and outputs made without faults.

    Attributes
    ----------
    source
        Folder of a synthetic city.
    store
        Store built from it.
    checkpoint
        Checkpoint of a small trained model.
    image
        Image larger than a prediction window.
    """

    folder: Path
    source: Path
    store: Path
    checkpoint: Path
    image: Path

    @classmethod
    def make(cls, folder: Path, scenes: int) -> FaultInputs:
        """Create all inputs; takes seconds."""
        city = synthesise(folder / "city", CITIES["moscow"], scenes=scenes, size=128, seed=1)
        store, checkpoint = folder / "whole.zarr", folder / "run" / "last.pt"
        inputs = cls(folder, city, store, checkpoint, folder / "x.tif")
        require_finished(run(build_store, inputs.source, inputs.store))
        require_finished(run(fit_model, inputs.store, folder / "run"))
        write_image(inputs.image, 700, 96)
        return inputs


def write_image(path: Path, height: int, width: int) -> None:
    """Write seeded noise as a GeoTIFF with three bands."""
    pixels = np.random.default_rng(0).integers(1, 256, (3, height, width)).astype(np.uint8)
    place = {"crs": "EPSG:32637", "transform": Affine(0.3, 0, 4e5, 0, -0.3, 6.2e6)}
    shape = {"height": height, "width": width, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", photometric="rgb", **shape, **place) as file:
        file.write(pixels)


def build_store(
    source: Path | str, out: Path, *, overwrite: bool = False, **options: object
) -> str:
    """Build a store of the city; return the state of the build."""
    found = find_scenes(CITIES["moscow"], source)
    wanted = BuildOptions(**{**OPTIONS, **options})
    plan = make_plan([found], ["moscow"], wanted, Threads(2))
    return build(plan, out, Threads(2), overwrite=overwrite).state


def fit_model(store: Path, out: Path) -> int:
    """Train two short epochs, or resume such a run; return the exit status."""
    from training.checkpoint import load
    from training.fit import main

    torch.set_num_threads(1)
    usual = ("--device", "cpu", "--compile", "off", "--threads", "1", "--loader-threads", "1")
    model = ("--model", "benchmarks.faults.jobs:small_model", "--quiet")
    if (out / "last.pt").exists():
        if load(out / "last.pt").progress["epoch"] == EPOCHS:
            return 0  # killed after the last step: `fit` would ask for more epochs
        return main(["--resume", str(out), *model])
    shape = ("--crop", "32", "--crops-per-tile", "1", "--batch-size", "16", "--save-every", "2")
    start = ("--epochs", str(EPOCHS), "--out", str(out), "--overwrite")
    return main([str(store), *usual, *model, *shape, *start])


def predict_image(checkpoint: Path, image: Path, out: Path) -> int:
    """Predict an image in many small windows; return the exit status."""
    from training.predict import main

    torch.set_num_threads(1)
    model = ("--model", "benchmarks.faults.jobs:small_model")
    shape = ("--window", "64", "--overlap", "32", "--precision", "fp32", "--quiet")
    return main([str(checkpoint), str(image), *model, *shape, "--out", str(out)])


def command(*arguments: str) -> int:
    """Run the ``geoprep`` command in this process; return its exit status.

    Raises
    ------
    GeoprepError
        The command failed.
    """
    from geoprep.cli import cli

    status = cli.main(list(arguments), standalone_mode=False)
    return status if isinstance(status, int) else 0


def command_into(arguments: tuple[str, ...], out: Path) -> int:
    """Run the ``geoprep`` command with ``--out``."""
    return command(*arguments, "--out", str(out))


@dataclass(frozen=True)
class WritingCommand:
    """A command that writes output.

    Attributes
    ----------
    name
        Name of the command.
    job
        Function that the child process runs, and its arguments except the last, the output path.
    made
        Output path relative to a folder.
    seen
        Function of the output path that returns hashes, by name, that must not change.
    atomic_output
        Output file that must be absent or complete; empty for none.
    """

    name: str
    job: tuple[Any, ...]
    made: str
    seen: Callable[[Path], dict[str, str]]
    atomic_output: str = ""

    def call(self, folder: Path) -> tuple[Any, ...]:
        """Return function and arguments for an output folder."""
        return (*self.job, folder / self.made)

    def start(self, folder: Path, **how: Any) -> Ending:  # noqa: ANN401 - as of `run`
        """Run the command in a child process, writing to a folder."""
        return run(*self.call(folder), **how)

    def result(self, folder: Path) -> dict[str, str]:
        """Return the hashes of the output that must not change."""
        return self.seen(folder / self.made)


def writing_commands(inputs: FaultInputs) -> dict[str, WritingCommand]:
    """Return every command that writes output; the first four always write the same bytes."""
    store, scene = str(inputs.store), str(StoreReader.open(inputs.store).scenes.id[0])

    def geoprep(name: str, made: str, *arguments: str, same: bool = False) -> WritingCommand:
        seen = digest if same else _nothing
        return WritingCommand(name, (command_into, arguments), made, seen, atomic_output=made)

    found = (
        WritingCommand("build-zarr", (build_store, inputs.source), "a.zarr", digest),
        WritingCommand(
            "predict",
            (predict_image, inputs.checkpoint, inputs.image),
            "maps",
            digest,
            "maps/x.tif",
        ),
        WritingCommand("fit", (fit_model, inputs.store), "run", weights),
        geoprep("page", "a.html", "preview", store, "--quiet", same=True),
        geoprep("preview (picture)", "a.png", "preview", store, "--count", "2"),
        geoprep("export", "a.tif", "export", store, "--scene", scene, "--what", "image", same=True),
        geoprep("export --footprints", "a.gpkg", "export", store, "--footprints", "tile"),
    )
    return {writer.name: writer for writer in found}


def _nothing(path: Path) -> dict[str, str]:
    """Return no hashes: the bytes of this output may differ."""
    del path
    return {}


def finished(ending: Ending) -> bool:
    """Return True if a command succeeded: done, with exit status 0 or a final build state."""
    return ending.how == "done" and ending.answer in (0, "built", "resumed", "unchanged")


def require_finished(ending: Ending) -> Ending:
    """Return the end of a command that ran without faults.

    Raises
    ------
    RuntimeError
        It failed.
    """
    if not finished(ending):
        raise RuntimeError(f"failed without a fault: {ending}")
    return ending


def digest(folder: Path) -> dict[str, str]:
    """Return relative path -> SHA-256 of every file below a folder, or of a single file."""
    paths = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
    }


def weights(run: Path) -> dict[str, str]:
    """Return the SHA-256 of every tensor of a run's last and best model."""
    from training.checkpoint import load

    result = {}
    for name in ("last.pt", "best.pt"):
        saved = load(run / name)
        for key, tensor in saved.model.items():
            data = tensor.contiguous().numpy().tobytes()
            result[f"{name}:{key}"] = hashlib.sha256(data).hexdigest()
    return result


def differences(found: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return a description of the differences between two digests, or an empty list."""
    names = sorted(set(found) | set(wanted))
    wrong = [name for name in names if found.get(name) != wanted.get(name)]
    return (
        [f"{len(wrong)} of {len(names)} differ: {', '.join(wrong[:MOST_NAMES])}"] if wrong else []
    )


def store_problems(store: Path) -> list[str]:
    """Return the problems that `verify` finds in a store."""
    try:
        return [str(problem) for problem in verify(store, workers=1).problems]
    except GeoprepError as error:
        return [str(error)]


def delivered(store: Path, readers: tuple[Callable[[Path], dict[str, Any]], ...]) -> dict[str, Any]:
    """Return the arrays that every reader returns, by name, or its error by the reader's name."""
    result: dict[str, Any] = {}
    for reader in readers:
        try:
            result |= reader(store)
        except GeoprepError as error:
            result[reader.__name__] = f"{type(error).__name__}: {error}"
    return result


def ram_tiles(store: Path) -> dict[str, Any]:
    """Return all tiles of all levels, loaded by `RamTiles`."""
    from loaders import RamTiles

    result: dict[str, Any] = {}
    for level in StoreReader.open(store).meta.levels:
        tiles = RamTiles.load(store, "all", level, share=False, progress=False)
        result |= {f"ram{level}.image": tiles.image, f"ram{level}.speed": tiles.speed}
    return result


def stream_tiles(store: Path) -> dict[str, Any]:
    """Return all tiles of the finest level, read by `StreamTiles`."""
    from loaders import StreamTiles

    tiles = StreamTiles.open(store, "all", ram_limit="64MB")
    pairs = [tiles.pixels(tile) for tile in range(len(tiles))]
    images, speeds = zip(*pairs, strict=True)
    return {"stream.image": np.stack(images), "stream.speed": np.stack(speeds)}


def whole_scenes(store: Path) -> dict[str, Any]:
    """Return all scenes, assembled from their tiles."""
    from geoprep.store import read_image, read_label

    opened = StoreReader.open(store)
    result: dict[str, Any] = {}
    for scene in range(len(opened.scenes)):
        result[f"scene{scene}.image"] = read_image(opened, scene)
        result[f"scene{scene}.speed"] = read_label(opened, scene)
    return result


READERS = (ram_tiles, stream_tiles, whole_scenes)
