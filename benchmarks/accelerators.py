"""Measure loading, training and prediction on an accelerator, and write its page.

    python -m benchmarks.accelerators [STORE] [--write-page docs/performance/accelerators.md]

Parts: steps of `training.fit`, by default and without graphs; `training.predict` of the first image
of a process and of further ones, and an image to a network.
They are sized for six minutes on an H100. ``--device cpu --quick`` runs the same code on a CPU, to
check it.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rasterio
import torch

import geoprep
from benchmarks import child
from benchmarks.common import (
    CommonOptions,
    Result,
    announce,
    command,
    rounds,
    run_parts,
    some_of,
)
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.tables import Table, conclude, measured, write_page
from geoprep.errors import GeoprepError, UsageError
from geoprep.imagery.headers import describe
from geoprep.options import argument, option
from loaders import RamTiles
from training.checkpoint import BEST
from training.engine.native import choose_engine
from training.model.build import RESNET34_UNET
from training.prediction.job import open_job
from training.prediction.predict_options import PredictOptions
from training.prediction.screen import Screen
from training.process import is_out_of_memory
from training.run.parts import open_data
from training.run.trainer import Trainer
from training.settings import Config

PARTS = ("step", "predict")
NOT_RUN = "## Not run\n"
"""Line of the page before which the section of a new device is written."""


class StepCase(NamedTuple):
    """A step to measure: batch, crop and `compile` of `training.fit`; as it is by default, or not.

    ``goal`` are images/s on an H100.
    """

    batch_size: int
    crop: int
    compile: str = "loss"
    graph: bool = True  # if the trainer records its steps as graphs
    goal: float | None = None


STEPS = {
    "8 x 160": StepCase(8, 160, goal=1600),
    "8 x 160, no graph": StepCase(8, 160, graph=False),
    "32 x 256": StepCase(32, 256, goal=2500),
    "32 x 256, no graph": StepCase(32, 256, graph=False),
    "128 x 256": StepCase(128, 256, goal=3000),
    "128 x 256, no graph": StepCase(128, 256, graph=False),
    "128 x 256, --compile model": StepCase(128, 256, compile="model", goal=4000),
}


@dataclass(frozen=True)
class AcceleratorScale(LoadingSizes):
    """Sizes of the benchmark: of loading, sides in pixels, numbers of steps per round."""

    scenes: int = 64
    steps: int = 30
    warm_up: int = 12
    trained: int = 300  # steps of the model that predicts
    image: int = 8192
    window: int = 1024


QUICK = AcceleratorScale(
    *(6, 128), batch_size=2, crop=32, epoch=32, steps=1, warm_up=1, trained=1, image=96, window=64
)


@dataclass(frozen=True, kw_only=True)
class AcceleratorsOptions(CommonOptions):
    """Options: of `benchmarks.accelerators`."""

    repeats: int = rounds(3)
    store: Path | None = argument(
        "Store to train on. Default: that of a synthetic city.", "STORE", default=None
    )
    device: str | None = option(
        None,
        "Device to measure: cuda, xpu or cpu. Default: the accelerator that torch finds.",
        "NAME",
    )
    only: tuple[str, ...] | None = some_of(PARTS, "Measure these parts")
    write_page: Path | None = option(
        None,
        "Write the tables to this page of the documentation, beside those of other devices.",
        "PATH",
    )


@command(AcceleratorsOptions)
def main(given: AcceleratorsOptions) -> int:
    """Run the benchmark; return 0 if it ran."""
    device = find_device(given.device)
    scale = QUICK if given.quick else AcceleratorScale()
    sizes: dict[str, Any] = {"batch_size": scale.batch_size, "crop": scale.crop}
    sizes |= {"image": scale.image, "device": device.type}
    sizes |= {"repeats": 1} if given.quick else {}
    with measured("accelerators", given, **sizes) as (result, work):
        result.machine["device"] = describe_device(device)
        store = given.store or synthetic_store(work, scale)
        parts = Measurement(result, device, store, work, scale)
        run_parts(result, {part: getattr(parts, part) for part in PARTS}, given.only or PARTS)
    if given.write_page:
        of, device = result.settings["device"], result.machine["device"]
        shown = tables(result)
        write_page(given.write_page, result, shown, f"{of}: {device}", device, NOT_RUN)
    return conclude(result, given, tables(result))


def find_device(name: str | None) -> torch.device:
    """Return the device to measure; None for the accelerator that torch finds.

    Raises
    ------
    UsageError
        There is no such device.
    """
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if name == "cpu":
        return torch.device("cpu")
    if device is None or (name is not None and device.type != name):
        raise UsageError(
            f"torch {torch.__version__} finds no {name or 'accelerator'} on this machine; "
            "--device cpu --quick runs the same code on the CPU"
        )
    return device


def describe_device(device: torch.device) -> str:
    """Return the name of a device, with its memory and the version of its runtime."""
    module = torch.get_device_module(device)
    name = getattr(module, "get_device_name", platform.processor)() or platform.machine()
    parts = [f"{name} ({device.type})"]
    if hasattr(module, "mem_get_info"):
        parts.append(f"{module.mem_get_info()[1] / 2**30:.0f} GiB")
    for library in ("cuda", "hip", "xpu"):
        version = getattr(torch.version, library, None)
        if version and device.type != "cpu":
            parts.append(f"{library} {version}")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measures one device; each part is a method."""

    result: Result
    device: torch.device
    store: Path
    work: Path
    scale: AcceleratorScale

    def _now(self) -> float:
        """Return the time when the device has done its work."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    def step(self) -> None:
        """Record the step of `training.fit` by batch and crop, as a graph and not."""
        for name, case in STEPS.items():
            announce(f"step, {name}")
            try:
                figures = list(self._steps(self._sized(case)))
            except (RuntimeError, GeoprepError) as error:
                if not isinstance(error, GeoprepError) and not is_out_of_memory(error):
                    raise
                self.result.notes.append(f"{name} is left out: {str(error).splitlines()[0]}")
                continue
            finally:
                self._release()
            of = self._sized(case).batch_size
            rates = [of / took for took in figures]
            self.result.add(f"step.{name}.rate", "images/s", rates, at_least=case.goal)
            self.result.add(f"step.{name}.ms", "ms per step", [took * 1e3 for took in figures])

    def _sized(self, case: StepCase) -> StepCase:
        """Return a case, with the small sizes of ``--quick``."""
        if not self.result.settings["quick"]:
            return case
        return case._replace(batch_size=self.scale.batch_size, crop=self.scale.crop, compile="off")

    def _steps(self, case: StepCase) -> Iterator[float]:
        """Yield the seconds of a step, once per round."""
        step, scale = stepping(self.store, self.work, self.device.type, case)[1], self.scale
        for _ in range(scale.warm_up):
            step()
        for _ in range(self.result.settings["repeats"]):
            begun = self._now()
            for _ in range(scale.steps):
                step()
            yield (self._now() - begun) / scale.steps

    def _release(self) -> None:
        """Return unused memory of the device from torch's cache to the driver."""
        gc.collect()
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()

    def predict(self) -> None:
        """Record predictions from file to file, and from an image to a network."""
        scale, add = self.scale, self.result.add
        case = self._sized(StepCase(32, 256))
        trainer, step = stepping(self.store, self.work, self.device.type, case)
        for _ in range(scale.trained):  # until there are roads
            step()
        trainer.checkpoints.save_best(trainer.info)
        del trainer, step
        self._release()
        images, repeats = self.work / "images", self.result.settings["repeats"]
        images.mkdir()
        tiles = RamTiles.load(self.store, "all", progress=False)
        for number in range(1 + repeats):
            write_scene(images / f"{number}.tif", tiles, scale.image)
        announce("predict")
        mpx, out = scale.image**2 / 1e6, self.work / "predicted"
        given: dict[str, Any] = {"run": str(self.work / "run" / BEST), "images": str(images)}
        given |= {"out": str(out), "device": self.device.type, "window": scale.window}
        found = child.ask("benchmarks.accelerators:predicted", given)
        rates = [mpx / took for took in found["others"]]
        add("predict.first", "s", [found["first"]], at_most=1.9)
        add("predict.rate", "Mpx/s", rates, at_least=240)
        add("predict.share", "", found["shares"])
        announce("an image to a network")
        begun = time.perf_counter()
        geoprep.vectorize(out / "1.tif")
        took = time.perf_counter() - begun
        km2 = mpx * math.prod(describe(str(images / "1.tif")).grid.gsd_m())
        add("network.vectorize", "s", [took])
        add("network.area", "km2/h", [km2 / (mpx / rate + took) * 3600 for rate in rates])


def stepping(
    store: str | Path, work: Path, device: str, case: StepCase
) -> tuple[Trainer, Callable[[], Any]]:
    """Return a trainer of a store, with its tiles loaded, and the function that takes a step."""
    settings: dict[str, Any] = {"stores": (str(store),), "pictures": 0, "quiet": True}
    settings["model"] = RESNET34_UNET
    settings |= {"batch_size": case.batch_size, "crop": case.crop, "compile": case.compile}
    config = Config.from_flat(settings | {"device": device, "lr": 1e-4})
    wanted = config.engine, config.device, config.precision, config.compile
    engine = choose_engine(*wanted, capture=case.graph)
    (work / "run").mkdir(parents=True, exist_ok=True)
    trainer = Trainer(config, engine, open_data(config), work / "run")
    module, batches = trainer.module.train(), chain.from_iterable(repeat(trainer.loader))
    return trainer, partial(trainer.step, module, batches, trainer.state)


def predicted(run: str, images: str, out: str, device: str, window: int) -> dict[str, Any]:
    """Return the seconds of the first image after the imports, and of the others."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"):
        os.environ[name] = f"{out}-caches/{name}"  # compilers and numba find empty caches
    options = PredictOptions(
        checkpoint=Path(run),
        images=(images,),
        out=Path(out),
        device=device,
        window=window,
        quiet=True,
    )
    begun = time.perf_counter()
    with Screen(quiet=True, spell=str) as screen:
        outcomes = open_job(options)[0].run(screen)
    stats = [outcome.stats for outcome in outcomes if outcome.stats is not None]
    if len(stats) < len(outcomes):
        raise GeoprepError("; ".join(outcome.error for outcome in outcomes))
    ends = sorted((image.began + image.seconds, image.forward_seconds) for image in stats)
    others = [(end - before, share) for (before, _), (end, share) in pairwise(ends)]
    return {
        "first": ends[0][0] - begun,
        "others": [seconds for seconds, _ in others],  # from the end of the one before
        "shares": [share / seconds for seconds, share in others],
    }


def write_scene(path: Path, tiles: RamTiles, side: int) -> None:
    """Write an image of a repeated tile as a GeoTIFF."""
    across = -(-side // tiles.side)
    pixels = np.tile(tiles.image[0], (across, across, 1))[:side, :side]
    shape = {"height": side, "width": side, "count": pixels.shape[2], "dtype": "uint8"}
    place = {"crs": tiles.crs(0), "transform": rasterio.Affine(*tiles.affine(0))}
    block = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    with rasterio.open(path, "w", driver="GTiff", **shape, **place, **block) as file:
        file.write(pixels.transpose(2, 0, 1))


def tables(result: Result) -> list[Table]:
    """Return the tables of the report."""
    steps = {"images/s": "rate", "ms per step": "ms"}
    maps = {"first image, s": "first", "further images, Mpx/s": "rate", "model": "share"}
    network = {"vectorize, s": "vectorize", "image to network, km2/h": "area"}
    title = f"An image of {result.settings['image']} pixels a side"
    return [
        Table("Steps of geoprep fit", {name: f"step.{name}" for name in STEPS}, steps),
        Table(title, {"geoprep predict": "predict"}, maps),
        Table("An image to a network", {"predict and vectorize": "network"}, network),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
