"""Measure loading, training and prediction on an accelerator, and write its page.

    python -m benchmarks.accelerators [STORE] [--write-page docs/performance/accelerators.md]

Parts: batches into the device at 1 to 16 loader threads, against a bare copy from page-locked
memory; the step of `training.fit` by precision and compile mode; tiles on the device against tiles
in memory; `training.predict`; with the peak memory of the device. ``--device cpu --quick`` runs the
same code on a CPU, to check it.
"""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, get_args

import numpy as np
import rasterio
import torch

from benchmarks.common import (
    CommonOptions,
    Result,
    announce,
    command,
    ratios,
    rounds,
    run_parts,
    some_of,
)
from benchmarks.loading.data import LoadingSizes, synthetic_store
from benchmarks.tables import Table, conclude, measured
from geoprep.cpus import usable_cpus
from geoprep.errors import GeoprepError, UsageError
from geoprep.options import argument, option
from loaders import Batch, BatchLoader, DeviceTiles, RamTiles
from training.checkpoint import BEST
from training.engine import CompileMode, choose_engine, computes_bf16
from training.prediction import PredictOptions, Screen, open_job
from training.process import is_out_of_memory
from training.run import Trainer, open_data, release, train_step
from training.settings import Config

PARTS = ("loader", "step", "tiles", "predict")
THREADS = (1, 2, 4, 8, 16)
NOT_RUN = "## Not run\n"
"""Line of the page before which the section of a new device is written."""


@dataclass(frozen=True)
class AcceleratorScale(LoadingSizes):
    """Sizes of the benchmark: of loading, sides in pixels, numbers of steps per round."""

    scenes: int = 64
    steps: int = 50
    warm_up: int = 10
    image: int = 8192
    window: int = 1024


QUICK = AcceleratorScale(
    *(6, 128), batch_size=2, crop=32, epoch=32, steps=1, warm_up=1, image=96, window=64
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
        "Device to measure: cuda, xpu, mps or cpu. Default: the accelerator that torch finds.",
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
        write_page(given.write_page, result, tables(result))
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

    def loader(self) -> None:
        """Record batches that reach the device per second, by threads, and a bare copy."""
        scale, tiles = self.scale, RamTiles.load(self.store, "all", progress=False)
        options: dict[str, Any] = {"crop": scale.crop, "augment": "d4"}
        options["crops_per_tile"] = -(-scale.epoch // len(tiles))
        make = partial(BatchLoader, tiles, scale.batch_size, **options)
        most = 2 if self.result.settings["quick"] else usable_cpus()
        cases: dict[str, Callable[[], tuple[float, float]]] = {
            f"loader.{threads}": partial(self._drain, make(threads=threads))
            for threads in THREADS
            if threads <= most
        }
        on_device = DeviceTiles(tiles, self.device)
        crops = BatchLoader(on_device, scale.batch_size, **options)
        cases["loader.device"] = partial(self._drain, crops)
        nbytes = scale.batch_size * scale.crop**2 * (len(tiles.bands) + 1)
        cases["loader.copy"] = partial(self._copy, nbytes, max(1, scale.epoch // scale.batch_size))
        for warm_up in cases.values():
            warm_up()
        runs = self.result.turns(cases)
        for at, rates in runs.items():
            self.result.add(f"{at}.rate", "images/s", [images for images, _ in rates])
            self.result.add(f"{at}.gb", "GB/s", [gigabytes for _, gigabytes in rates])
            copied = [gigabytes for _, gigabytes in runs["loader.copy"]]
            over = ratios([gigabytes for _, gigabytes in rates], copied)
            self.result.add(f"{at}.over_copy", "", over)

    def _drain(self, loader: Iterable[Batch]) -> tuple[float, float]:
        """Return the images and GB per second of an epoch that is copied to the device."""
        images = nbytes = 0
        begun = self._now()
        for batch in loader:
            there = batch.to(self.device, non_blocking=True)
            images += len(there)
            nbytes += there.image.nbytes + there.label.nbytes
            del batch, there
        took = self._now() - begun
        return images / took, nbytes / took / 1e9

    def _copy(self, nbytes: int, times: int) -> tuple[float, float]:
        """Return the batches' images and GB per second of copying them from pinned memory."""
        pinned = self.device.type in ("cuda", "xpu")
        source = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        target = [torch.zeros(nbytes, dtype=torch.uint8, device=self.device) for _ in range(2)]
        begun = self._now()
        for number in range(times):
            target[number % 2].copy_(source[number % 2], non_blocking=True)
        took = self._now() - begun
        return times * self.scale.batch_size / took, times * nbytes / took / 1e9

    def _now(self) -> float:
        """Return the time when the device has done its work."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    def step(self) -> None:
        """Record the step of `training.fit` by precision and compile mode."""
        cases = step_cases(self.device, quick=self.result.settings["quick"])
        for name, settings in cases.items():
            self._record_step(f"step.{name}", settings)

    def tiles(self) -> None:
        """Record the step of `training.fit` with its tiles in memory and on the device."""
        for residency in ("ram", "device"):
            settings = {"residency": residency, "compile": "off"}
            self._record_step(f"tiles.{residency}", settings)

    def _record_step(self, at: str, settings: dict[str, Any]) -> None:
        announce(at)
        try:
            figures = list(self._steps(settings))
        except (RuntimeError, GeoprepError) as error:
            if not isinstance(error, GeoprepError) and not is_out_of_memory(error):
                raise
            self.result.notes.append(f"{at} is left out: {str(error).splitlines()[0]}")
            return
        finally:
            release(self.device)
        of = self.scale
        self.result.add(f"{at}.rate", "images/s", [of.batch_size / took for took, _ in figures])
        self.result.add(f"{at}.ms", "ms per step", [took * 1e3 for took, _ in figures])
        self.result.add(f"{at}.waited", "", [waited for _, waited in figures])
        self._add_peak(at)

    def _steps(self, settings: dict[str, Any]) -> Iterator[tuple[float, float]]:
        """Yield the seconds of a step and the share of waiting for its batch, once per round."""
        trainer, scale = self._trainer(settings), self.scale
        module, batches = trainer.module.train(), chain.from_iterable(repeat(trainer.loader))
        self._reset_peak()
        for _ in range(scale.warm_up):
            train_step(module, batches, trainer.state)
        for _ in range(self.result.settings["repeats"]):
            begun, waited = self._now(), 0.0
            for _ in range(scale.steps):
                waited += train_step(module, batches, trainer.state).waited
            took = self._now() - begun
            yield took / scale.steps, waited / took

    def _trainer(self, settings: dict[str, Any]) -> Trainer:
        """Return a trainer, with its tiles loaded."""
        scale = self.scale
        usual = {"stores": (str(self.store),), "batch_size": scale.batch_size, "crop": scale.crop}
        usual |= {"pictures": 0, "quiet": True, "device": self.device.type, "lr": 1e-4}
        config = Config.from_flat(usual | settings)
        engine = choose_engine(config.engine, config.device, config.precision, config.compile)
        folder = self.work / "run"
        folder.mkdir(exist_ok=True)
        return Trainer(config, engine, open_data(config), folder)

    def _reset_peak(self) -> None:
        gc.collect()
        module = torch.get_device_module(self.device)
        if hasattr(module, "reset_peak_memory_stats"):
            module.reset_peak_memory_stats()

    def _add_peak(self, at: str) -> None:
        """Record the peak memory of tensors on the device, if it counts them."""
        peak_bytes = getattr(torch.get_device_module(self.device), "max_memory_allocated", None)
        if peak_bytes is not None:
            self.result.add(f"{at}.peak", "GiB", [peak_bytes() / 2**30])

    def predict(self) -> None:
        """Record the megapixels per second of `training.predict`, from file to file."""
        self._trainer({"compile": "off"}).save_best()
        image = self.work / "scene.tif"
        write_scene(image, RamTiles.load(self.store, "all", progress=False), self.scale.image)
        for name in ("fp32", "bf16")[: 1 + computes_bf16(self.device)]:
            self._reset_peak()
            speeds = [
                self._predicted(image, name, turn)
                for turn in range(self.result.settings["repeats"])
            ]
            self.result.add(f"predict.{name}.rate", "Mpx/s", [rate for rate, _ in speeds])
            self.result.add(f"predict.{name}.share", "", [share for _, share in speeds])
            self._add_peak(f"predict.{name}")

    def _predicted(self, image: Path, precision: Any, turn: int) -> tuple[float, float]:  # noqa: ANN401 - a Literal
        """Return the megapixels per second of a prediction, and the share of the model's time."""
        announce(f"predict, {precision}, round {turn + 1}")
        options = PredictOptions(
            checkpoint=self.work / "run" / BEST,
            images=(str(image),),
            out=self.work / f"predicted-{precision}-{turn}",
            device=self.device.type,
            precision=precision,
            window=self.scale.window,
            overlap=self.scale.window // 16,
            batch_size=1 if self.result.settings["quick"] else 4,
            quiet=True,
        )
        with Screen(quiet=True, spell=str) as screen:
            (outcome,) = open_job(options)[0].run(screen)
        if outcome.stats is None:
            raise GeoprepError(f"training.predict failed: {outcome.error}")
        seconds = outcome.stats.seconds
        return outcome.stats.image_pixels / 1e6 / seconds, outcome.stats.forward_seconds / seconds


def step_cases(device: torch.device, *, quick: bool) -> dict[str, dict[str, Any]]:
    """Return the settings of `training.fit` that differ on a device, by name."""
    names = ["fp32", *(["tf32", "fp16"] if device.type == "cuda" else [])]
    names += ["bf16"] if computes_bf16(device) else []
    cases: dict[str, dict[str, Any]] = {
        name: {"precision": name, "compile": "off"} for name in names
    }
    for mode in () if quick else get_args(CompileMode):
        if mode != "off":
            cases[f"{names[-1]}-{mode}"] = {"precision": names[-1], "compile": mode}
    return cases


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
    of, device = result.settings, torch.device(result.settings["device"])
    size = f"{of['batch_size']} x {of['crop']} x {of['crop']}"
    threads = {f"`loader_threads` {count}": f"loader.{count}" for count in THREADS}
    threads |= {"DeviceTiles": "loader.device", "bare copy, pinned": "loader.copy"}
    rates = {"images/s": "rate", "GB/s": "gb", "over the copy": "over_copy"}
    cases = {
        f"{settings['precision']}, --compile {settings['compile']}": f"step.{name}"
        for name, settings in step_cases(device, quick=of["quick"]).items()
    }
    steps = {"images/s": "rate", "ms per step": "ms", "waited": "waited", "peak GiB": "peak"}
    kept = {"tiles in memory": "tiles.ram", "tiles on the device": "tiles.device"}
    predicted = {name: f"predict.{name}" for name in ("fp32", "bf16")}
    maps = {"Mpx/s": "rate", "share of the model": "share", "peak GiB": "peak"}
    return [
        Table(f"Batches of {size} into the device", threads, rates),
        Table(f"Step of training.fit, ResNet34-UNet, {size}", cases, steps),
        Table("Tiles in memory and on the device, same step", kept, steps),
        Table(f"training.predict, {of['image']} x {of['image']} pixels", predicted, maps),
    ]


def write_page(path: Path, result: Result, tables: Iterable[Table]) -> None:
    """Write the tables to the section of a device on the page, before the text of `NOT_RUN`."""
    m, of = result.machine, result.settings
    libraries = ", ".join(f"{name} {m['libraries'][name]}" for name in ("geoprep", "torch"))
    text = (
        f"## {m['device']}\n\n{result.started[:10]}, {libraries}, Python {m['python']}. Host: "
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB. Medians of {of['repeats']} "
        "rounds, with the range in brackets.\n\n"
    )
    text += "Small sizes (`--quick`): these figures mean nothing.\n\n" if of["quick"] else ""
    text += "\n".join(filter(None, (table.markdown(result) for table in tables)))
    text += "".join(f"\n- {note}\n" for note in result.notes)
    start, end = f"<!-- {of['device']}: {m['device']} -->\n", "<!-- end -->\n\n"
    before, found, rest = path.read_text(encoding="utf-8").partition(start)
    if found:
        rest = rest.partition(end)[2]
    else:
        before, mark, rest = before.partition(NOT_RUN)
        rest = mark + rest
    path.write_text(f"{before}{start}{text}{end}{rest}", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
