"""What `training.predict` reaches, of what its compiled network can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.child import ask
from benchmarks.common import Result, announce, interleave, ratios
from benchmarks.fitting.rungs import WORKER
from geoprep.sources import get_city
from geoprep.store import Store
from geoprep.synth import synthesise
from training.checkpoint import Checkpoint, load_network, save
from training.config import Config
from training.data import facts_of
from training.model import build_network
from training.predict import COMMAND, Request, make_job
from training.prediction.images import inspect
from training.prediction.job import Job

SHARE = 0.9
GSD_M = 0.3
"""What an area is stated for."""

VIEWS_ASKED = ("none", "d4")

BARE_BATCHES = 8
"""Batches through the bare network at a time."""


class Silent:
    """A watcher that shows nothing."""

    def begin(self, target: Path, pixels: int) -> Callable[[int], None]:
        """Return a callback that does nothing."""
        del target, pixels
        return lambda done: None

    def done(self, outcome: object) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""


def draw_image(work: Path, side: int) -> Path:
    """Draw one synthetic scene, as large as is wanted, and return its 8-bit image."""
    source = work / f"scene-{side}"
    synthesise(source, get_city("moscow"), scenes=1, seed=3, size=side, workers=1)
    return next(source.glob("**/PS-RGB/*.tif"))


def untrained(store: Path, path: Path) -> None:
    """Write a checkpoint of random weights: how good it is changes nothing in how fast it is."""
    torch.manual_seed(0)
    facts = facts_of(Config(), (Store.open(store),))
    network = build_network(facts.network, bands=len(facts.bands), channels=facts.channels)
    save(path, Checkpoint(facts=facts, network=network.state_dict()))


def measure_mapping(
    result: Result, store: Path, work: Path, *, sides: tuple[int, int], window: int
) -> None:
    """Record how fast images become maps, without and with the eight views.

    Parameters
    ----------
    store
        Whose statistics the network has.
    work
        Folder for images and maps.
    sides
        Of the image that is mapped without views, and of the one with.
    window
        Side of the network's windows.
    """
    announce("drawing images to map")
    images = [str(draw_image(work, side)) for side in sides]
    untrained(store, work / "untrained.pt")
    announce("mapping images, after compiling the network twice")
    task: dict[str, Any] = {"checkpoint": str(work / "untrained.pt"), "out": str(work / "maps")}
    # Compiling takes a minute or two.
    task |= {"images": images, "window": window, "compiled": not result.settings["quick"]}
    repeats = min(result.settings["repeats"], 2)
    record(result, ask(WORKER, {**task, "do": "map", "repeats": repeats}))
    result.settings["predict"]["images"] = sides


def record(result: Result, answer: Mapping[str, Any]) -> None:
    """Record what `map_images` answered."""
    bare = answer["bare"]
    result.add("predict.bare.network", "Mpx/s", [mega / s for mega, s in bare])
    for name, at_least in zip(VIEWS_ASKED, (SHARE, None), strict=True):
        works = answer[name]
        network = [w["network_pixels"] / 1e6 / w["seconds"] for w in works]
        image = [w["image_pixels"] / 1e6 / w["seconds"] for w in works]
        result.add(f"predict.{name}.network", "Mpx/s", network, note="put through the network")
        result.add(f"predict.{name}.image", "Mpx/s", image, note="of the map")
        area = [mega * GSD_M**2 * 3600 for mega in image]
        result.add(f"predict.{name}.area", "km2/h", area, note=f"at {GSD_M} m")
        share = ratios(network, result["predict.bare.network"].values)
        note = "of the bare network's rate, reading, blending and writing included"
        result.add(f"predict.{name}.share", "", share, at_least=at_least, note=note)
    plain = answer["none"][0]
    overlap = plain["network_pixels"] / plain["image_pixels"] - 1
    note = "of the pixels go through the network once more, in windows that share them"
    result.add("predict.overlap", "", [overlap], note=note)
    result.settings["predict"] = {"shape": answer["shape"]}


def map_images(
    checkpoint: str, out: str, images: list[str], window: int, repeats: int, *, compiled: bool
) -> dict[str, Any]:
    """Map images with the command's own code, in turns with its network alone: in the worker.

    Both kinds of map share one network, so that it is compiled once.
    """
    jobs = {
        tta: _job(checkpoint, f"{out}/{tta}", images, window, tta, "on" if compiled else "off")
        for tta in VIEWS_ASKED
    }
    runner = jobs["none"].runner

    def mapped(tta: str, image: str) -> dict[str, float]:
        outcome = replace(jobs[tta], runner=runner).run([image], Silent())[0]
        if outcome.stats is None:
            raise RuntimeError(outcome.error or f"{image} was not mapped")
        names = ("network_pixels", "image_pixels", "seconds")
        return {name: getattr(outcome.stats, name) for name in names}

    mapper = jobs["none"].mapper
    shape = mapper.grid(inspect(images[0], mapper.facts, mapper.options)).shape
    dtype = getattr(torch, str(runner.identity["precision"]))
    bare = _bare(checkpoint, shape, dtype, compiled=compiled)
    cases: dict[str, Callable[[], Any]] = {
        "bare": bare,
        **{tta: partial(mapped, tta, image) for tta, image in zip(jobs, images, strict=True)},
    }
    for name in ("bare", "none"):  # what is compiled is compiled now
        cases[name]()
    return {**interleave(cases, repeats), "shape": shape}


def _job(checkpoint: str, out: str, images: list[str], window: int, tta: str, compiled: str) -> Job:
    """Return the job that the command would carry out."""
    words = [checkpoint, *images, "--out", out, "--window", str(window), "--tta", tta]
    words += ["--compile", compiled, "--overwrite"]
    return make_job(Request(**COMMAND.parse(words)))[0]


def _bare(
    checkpoint: str, shape: tuple[int, int, int], dtype: torch.dtype, *, compiled: bool
) -> Callable[[], tuple[float, float]]:
    """Return a function that runs the network over a batch, for its megapixels and seconds."""
    network, facts = load_network(checkpoint)
    count, height, width = shape
    image = torch.randn(count, len(facts.bands), height, width)
    image = image.to(dtype).contiguous(memory_format=torch.channels_last)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in training.engine.native
    fast: Callable[..., Any] = network
    if compiled:
        fast = torch.compile(network, dynamic=False, options={"freezing": True})

    def run() -> tuple[float, float]:
        done, start = 0, time.perf_counter()
        with torch.no_grad(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            while done < BARE_BATCHES:
                fast(image)
                done += 1
        return done * count * height * width / 1e6, time.perf_counter() - start

    return run
