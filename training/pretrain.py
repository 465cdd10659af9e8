"""``geoprep pretrain``: initial weights for real imagery, from synthetic cities."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import rasterio

from geoprep.cli.running import run
from geoprep.cpus import started_rank
from geoprep.errors import StoreError, UsageError
from geoprep.imagery.band_names import partner_bands
from geoprep.options import argument, option
from geoprep.store.reader import StoreReader
from geoprep.store.shards import digest
from training.cli import Command
from training.settings import MachineConfig, ModelConfig, OptimizerConfig, SamplingConfig

INTRODUCTION = """\
Train a model on synthetic cities that look like a store: initial weights for geoprep fit.

  geoprep pretrain boston.zarr --out runs/start
  geoprep fit boston.zarr --init-from runs/start

It needs no download, and no labels of the store. The cities are drawn with three pixel sizes around
that of the store, in three bands, whose values are distributed as in tiles of the store. geoprep
fit adapts the weights to the store's bands. Use it for few images or short runs.
"""
CLOSING = """\
Next to the folder of the run, FOLDER-cities holds the stores of the cities: another run with the
same cities starts at once. To continue a run that was stopped: geoprep fit --resume FOLDER.

"""
_PIXEL_M = 0.3
"""Pixel size of synthetic scenes."""

_MOST_SIDE = 4096
"""Largest side of a synthetic scene in pixels."""

_CITIES = ("moscow", "mumbai")
"""Names of the synthetic cities, in turn; their seeds decide what they look like."""

_SCALES = (1.0, 0.8, 1.25)
"""Pixel sizes of the cities over that of the store, in turn."""

_BANDS = ("red", "green", "blue")
"""Bands of synthetic scenes. Each gets the values of the store's band of its name, or any."""

_TILES = 3
"""Tiles of the store whose values a scene gets."""


@dataclass(frozen=True, kw_only=True)
class CityOptions:
    """Synthetic cities: their number and size."""

    store: str = argument("Store of the real imagery: pixel size and tile side.", "STORE")
    cities: int = option(3, "Number of cities.", "N", least=1, most=100)
    scenes: int = option(5, "Scenes per city, of about two by two tiles each.", "N", least=1)
    buffer: float = option(
        2.0,
        "Distance from the centre line of a road to the edge of its label, as in geoprep "
        "build-zarr.",
        "METRES",
        above=0,
        most=100,
    )


@dataclass(frozen=True, kw_only=True)
class PretrainOptimizer(OptimizerConfig):
    """Optimisation: epochs, optimizer and learning rate."""

    epochs: int = option(16, "Number of passes over all tiles of the cities.", "N", least=1)


@dataclass(frozen=True, kw_only=True)
class PretrainOutput:
    """Output: folder of the run."""

    out: str | None = option(
        None, "Folder of the run; default: runs/NAME-OF-STORE-start.", "FOLDER"
    )
    overwrite: bool = option(False, "Replace the run in the folder.")
    quiet: bool = option(False, "Hide the progress bars.")


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(
    CityOptions, SamplingConfig, ModelConfig, PretrainOptimizer, MachineConfig, PretrainOutput
):
    """All settings of the command."""


_COMMON = (
    *("store", "cities", "scenes", "buffer", "batch_size", "crop", "model", "targets", "epochs"),
    *("seed", "device", "precision", "out", "overwrite"),
)
COMMAND: Command = Command(
    *("pretrain", PretrainOptions.__bases__, INTRODUCTION, CLOSING),
    action=lambda given: pretrain(given, COMMAND.spell),
    common=_COMMON,
)


def pretrain(given: Mapping[str, Any], spell: Callable[[str], str] = str) -> int:
    """Draw synthetic cities, build their stores and train on them; return the exit status."""
    from training.run.folder import holds_run, refuse_others
    from training.run.start import start_run

    started = started_rank()
    if started is not None and started.ranks > 1:
        raise UsageError("the cities are drawn by one process: start it without torchrun")
    settings = dict(given)
    own = [field.name for field in fields(CityOptions) if field.name in settings]
    cities = CityOptions(**{name: settings.pop(name) for name in own})
    settings.setdefault("epochs", PretrainOptimizer.epochs)
    store = StoreReader.open(cities.store)
    if not store.has_speeds and settings.get("targets", "auto") == "auto":
        settings["targets"] = "binary"  # the cities have speeds
    out = run_folder(given)
    refuse_others(out)
    if holds_run(out) and not given.get("overwrite"):
        raise UsageError(
            f"{out} holds a run: start from it (geoprep fit --init-from {out}), choose another "
            "folder (`out`), or replace it (`overwrite`)"
        )
    stores = city_stores(store, cities, out, settings)
    status = start_run({**settings, "stores": tuple(map(str, stores)), "out": str(out)}, spell)
    if status == 0:
        print(f"start from it: geoprep fit {cities.store} --init-from {out}")
    return status


def run_folder(given: Mapping[str, Any]) -> Path:
    """Return the folder of a run with the given settings."""
    name = Path(str(given["store"]).rstrip("/")).stem
    return Path(given.get("out") or f"runs/{name}-start")


def city_stores(
    store: StoreReader, cities: CityOptions, out: Path, settings: Mapping[str, Any]
) -> list[Path]:
    """Draw the cities and build their stores, unless they exist; return the stores."""
    folder = out.with_name(f"{out.name}-cities")
    seed, quiet = int(settings.get("seed", 0)), bool(settings.get("quiet"))
    look = digest(store.histogram_band.tobytes())[:6]
    pixel = math.sqrt(math.prod(store.meta.gsd_m))
    stores = []
    for number in range(cities.cities):
        size = pixel * _SCALES[number % len(_SCALES)]
        tile = min(store.meta.levels[0], int(_MOST_SIDE * _PIXEL_M / size))
        form = f"{cities.scenes}x-{size:.3g}m-{tile}px-{cities.buffer:g}-{look}"
        path = folder / f"city-{100 * seed + number}-{form}.zarr"
        if not _complete(path):
            _build(path, 100 * seed + number, cities, size, tile, store, quiet=quiet)
        stores.append(path)
    return stores


def _complete(path: Path) -> bool:
    """Return whether a finished store is there."""
    try:
        StoreReader.open(path)
    except StoreError:
        return False
    return True


def _build(
    path: Path,
    seed: int,
    cities: CityOptions,
    pixel: float,
    tile: int,
    store: StoreReader,
    *,
    quiet: bool,
) -> None:
    """Draw a city and build its store; its scenes are removed afterwards."""
    from geoprep import build_zarr, synthesize

    city = _CITIES[seed % len(_CITIES)]
    side = min(_MOST_SIDE, math.ceil((2 * tile + 8) * pixel / _PIXEL_M))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as source:
        synthesize(city, scenes=cities.scenes, seed=seed, size=side, out=source, progress=not quiet)
        _recolour(sorted(Path(source).glob("*/PS-RGB/*.tif")), store, seed)
        options: dict[str, Any] = {"gsd": pixel, "buffer": cities.buffer, "rescale": "none"}
        options |= {"tile": tile, "levels": 1, "val": 0.0, "progress": not quiet}
        build_zarr(city, source=source, out=path, overwrite=True, **options)


def _recolour(scenes: Sequence[Path], store: StoreReader, seed: int) -> None:
    """Give the bands of each scene the distribution of values in three tiles of the store."""
    from skimage.exposure import match_histograms

    from loaders import select

    rng = np.random.default_rng(seed)
    tiles = select(store, "train").tiles
    tiles = tiles if len(tiles) else select(store, "all").tiles
    valid = store.tiles.valid_fraction[tiles]
    image = store.image(store.meta.levels[0])
    bands, _ = partner_bands(_BANDS, store.meta.bands)
    for scene in scenes:
        drawn = rng.choice(tiles, min(_TILES, len(tiles)), replace=False, p=valid / valid.sum())
        pixels = np.concatenate([np.asarray(image[int(i)]) for i in drawn])
        pixels = pixels[pixels.any(axis=-1)]
        with rasterio.open(scene, "r+") as file:
            values = file.read()
            seen = values.any(axis=0)
            for band, place in zip(values, bands, strict=True):
                own = pixels[:, place]
                band[seen] = match_histograms(band[seen], own).round().clip(1)
            file.write(values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m training.pretrain``; return the exit status."""
    return run(COMMAND, arguments, "python -m training.pretrain")


if __name__ == "__main__":
    sys.exit(main())
