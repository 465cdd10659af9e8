"""What each form of a trained network costs and gains: one run, in turns.

    python -m benchmarks.inference [CHECKPOINT STORE] [--exports FOLDER] [--only FORM,...] [--quick]

Every form runs in a process of its own: the checkpoint plain and compiled, and the files that
`training.export` makes of it. Each is timed alone and in `training.predict`, and judged on the
store's validation tiles. Without a checkpoint its weights are random: rates are the same, and
nothing is said of accuracy.

All forms at once take 12 GiB and, on two quiet cores, about 12 minutes. Making the files takes
another 5; ``--exports`` keeps them for the next run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.windows import Window

from benchmarks.child import ChildError, Conversation
from benchmarks.common import Result, announce, interleave, parser, ratios, showing
from benchmarks.fitting.mapping import GSD_M, SHARE, draw_image, untrained
from benchmarks.inferring.forms import (
    BASE,
    FORMS,
    PROMISED,
    exports_of,
    file_of,
    size_of,
    task_of,
)
from benchmarks.loading.data import Sizes, synthetic_store
from benchmarks.plots import draw_panels, draw_rows
from benchmarks.tables import conclude, print_figures, print_machine
from geoprep.executors import usable_cores
from training.cli import wait_passively

WORKER = "benchmarks.inferring.worker"
GAIN = 2.0
LARGEST_DROP = 0.01
OVERLAP = 64
"""Pixels that windows of `training.predict` share."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    side
        Of the tiles.
    count
        Tiles per batch.
    batches
        Rows and columns of batches in the image that is mapped.
    times
        Single tiles whose latency is taken, per round.
    seconds
        That batches are measured per round, at least.
    tiles
        That INT8 takes its ranges from.
    """

    side: int = 512
    count: int = 4
    batches: tuple[int, int] = (4, 2)
    times: int = 20
    seconds: float = 3.0
    tiles: int = 100

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of an image whose windows fill their batches, all of one size."""
        step = self.side - OVERLAP
        rows, columns = self.batches
        return OVERLAP + rows * step, OVERLAP + columns * self.count * step


QUICK = Scale(side=128, count=2, batches=(1, 1), times=3, seconds=0.1, tiles=4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    scale = QUICK if given.quick else Scale()
    settings = {"quick": given.quick, "repeats": given.repeats, "side": scale.side}
    settings["network"] = str(given.checkpoint or "random weights")
    result = Result("inference", settings)
    print_machine(result)
    wait_passively()
    with tempfile.TemporaryDirectory(dir=given.work, prefix="inference-") as folder, showing():
        work = Path(folder)
        store, checkpoint = given.store, given.checkpoint
        if checkpoint is None:
            announce("drawing a city")
            store = str(synthetic_store(work, Sizes(scenes=6, scene_side=256), usable_cores()))
            checkpoint = work / "untrained.pt"
            untrained(Path(store), checkpoint)
        exports = exports_of(given.exports or work, checkpoint, store, scale.tiles)
        files = _export(result, given.only, checkpoint, store, exports, scale)
        announce("drawing an image")
        image = draw_wide_image(work, scale)
        with ExitStack() as stack:
            talks = _load(result, stack, files, image, work, scale)
            _measure(result, talks, scale, given.repeats)
            if given.json:
                result.write(given.json)  # should judging be broken off
            if given.checkpoint is not None:
                _judge(result, talks, store)
    return conclude(result, given, print_tables, draw)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], repeats=2)
    add = options.add_argument
    add("checkpoint", type=Path, nargs="?", help="of a trained network (default: random weights)")
    add("store", nargs="?", help="the store it was trained on, for INT8 and for accuracy")
    add("--only", "--forms", action="append", metavar="FORM,...", help=", ".join(FORMS))
    add("--exports", type=Path, metavar="FOLDER", help="keep exported files here, and use them")
    add("--work", type=Path, help="folder for scratch files (default: TMPDIR)")
    given = options.parse_args(arguments)
    if given.checkpoint is not None and given.store is None:
        options.error("name the store that the checkpoint was trained on as well")
    asked = [name for names in given.only or () for name in names.split(",")]
    for name in asked:
        if name not in FORMS:
            options.error(f"--only {name}: there are {', '.join(FORMS)}")
    given.only = [name for name in FORMS if name in asked or not asked]
    return given


def draw_wide_image(work: Path, scale: Scale) -> Path:
    """Draw a synthetic scene of `Scale.image` rows and columns, and return its 8-bit image."""
    rows, columns = scale.image
    square = draw_image(work, max(rows, columns))
    cut = work / "image.tif"
    with rasterio.open(square) as source:
        window = Window(0, 0, columns, rows)
        profile = {**source.profile, "height": rows, "width": columns}
        with rasterio.open(cut, "w", **profile) as target:
            target.write(source.read(window=window))
    return cut


def _export(
    result: Result, only: Sequence[str], checkpoint: Path, store: str, exports: Path, scale: Scale
) -> dict[str, Path]:
    """Make the file of every form; one that cannot be made leaves a note."""
    files = {}
    for name in only:
        announce(f"exporting {FORMS[name].title}")
        try:
            files[name] = file_of(FORMS[name], checkpoint, store, exports, scale.tiles)
        except ChildError as error:
            result.notes.append(f"{name} is left out: {error}")
        else:
            result.add(f"{name}.size", "MB", [size_of(files[name]) / 1e6])
    return files


def _load(
    result: Result,
    stack: ExitStack,
    files: dict[str, Path],
    image: Path,
    work: Path,
    scale: Scale,
) -> dict[str, Conversation]:
    """Start every form; one that does not start leaves a note."""
    talks = {}
    for name, file in files.items():
        announce(f"loading {FORMS[name].title}")
        words = task_of(FORMS[name], file, image, work / name, (scale.count, scale.side))
        command = [FORMS[name].python, "-m", WORKER, json.dumps(words)]
        talk = stack.enter_context(Conversation(command))
        try:
            load = talk.answer()["load_s"]
            for count in (1, scale.count):  # what is compiled is compiled now, once per shape
                load += talk.ask("first", count=count, side=scale.side)["seconds"]
        except ChildError as error:
            result.notes.append(f"{name} is left out: {error}")
            continue
        talks[name] = talk
        note = "with the first batch of each size, which may compile"
        result.add(f"{name}.load", "s", [load], note=note)
    return talks


def _measure(result: Result, talks: dict[str, Conversation], scale: Scale, repeats: int) -> None:
    """Record latency, rates and memory of every form, in turns."""
    ask = {name: partial(_round_or_note, result, name, talk, scale) for name, talk in talks.items()}
    turns = interleave(ask, repeats)
    whole = {name: [one for one in rounds if one] for name, rounds in turns.items()}
    whole = {name: rounds for name, rounds in whole.items() if len(rounds) == repeats}
    for name, rounds in whole.items():
        record(result, name, rounds, scale)
    if BASE not in whole:
        return
    for name in whole:
        gains = ratios(result[f"{name}.rate"].values, result[f"{BASE}.rate"].values)
        least = GAIN if name in PROMISED else None
        result.add(f"{name}.gain", "", gains, at_least=least, note=f"times {FORMS[BASE].title}")


def _round_or_note(
    result: Result, name: str, talk: Conversation, scale: Scale
) -> dict[str, Any] | None:
    """Return a turn of a form; of one that fails a note remains, and the others go on."""
    try:
        return one_round(talk, scale)
    except ChildError as error:
        result.notes.append(f"{name} failed: {error}")
        return None


def one_round(talk: Conversation, scale: Scale) -> dict[str, Any]:
    """Return latencies in s, Mpx/s alone and in maps, and peak bytes, of one turn of a form."""
    latency = talk.ask("latency", count=1, side=scale.side, times=scale.times)
    rate = talk.ask("rate", count=scale.count, side=scale.side, seconds=scale.seconds)
    return {"latency": latency["seconds"], **rate, **talk.ask("map")}


def record(result: Result, name: str, rounds: Sequence[dict[str, Any]], scale: Scale) -> None:
    """Record the turns of one form, as `one_round` gives them."""
    for share in (50, 99):
        found = [float(np.percentile(one["latency"], share)) * 1e3 for one in rounds]
        result.add(f"{name}.p{share}", "ms", found, note=f"one tile of {scale.side}")
    rates = [one["mpx_s"] for one in rounds]
    result.add(f"{name}.rate", "Mpx/s", rates, note=f"batches of {scale.count}")
    area = [rate * GSD_M**2 * 3600 for rate in rates]
    result.add(f"{name}.area", "km2/h", area, note=f"at {GSD_M} m, without reading and writing")
    maps = [one["image_mpx_s"] * GSD_M**2 * 3600 for one in rounds]
    result.add(f"{name}.maps", "km2/h", maps, note=f"at {GSD_M} m, of training.predict")
    shares = ratios([one["network_mpx_s"] for one in rounds], rates)
    note = "of the rate above that training.predict puts through the network"
    result.add(f"{name}.share", "", shares, at_least=SHARE, note=note)
    # Later rounds come after maps.
    result.add(f"{name}.memory", "GiB", [rounds[0]["peak"] / 2**30], note="before maps are made")


def _judge(result: Result, talks: dict[str, Conversation], store: str) -> None:
    """Record how good each form is on the store's validation tiles, and how much less than fp32."""
    found: dict[str, dict[str, float]] = {}
    for name, talk in talks.items():
        announce(f"judging {FORMS[name].title}")
        try:
            found[name] = talk.ask("judge", store=store)
        except ChildError as error:
            result.notes.append(f"{name} was not judged: {error}")
    for name, metrics in found.items():
        for metric, value in metrics.items():
            result.add(f"{name}.{metric}", "", [value])
            if "fp32" in found:
                most = LARGEST_DROP if FORMS[name].whole else None
                drop = found["fp32"][metric] - value
                result.add(f"{name}.{metric}_drop", "", [drop], at_most=most)


def print_tables(result: Result) -> None:
    """Print what was measured: one row per form."""
    rows = {form.title: name for name, form in FORMS.items()}
    columns = {"Mpx/s": "rate", "gain": "gain", "km2/h": "area", "p50 ms": "p50", "p99 ms": "p99"}
    columns |= {"predict": "share", "its km2/h": "maps"}
    print_figures(result, "Speed", rows, columns, medians=("area", "p50", "p99", "maps"))
    costs = {"MB": "size", "load s": "load", "peak GiB": "memory", "road IoU": "road_iou"}
    costs |= {"drop": "road_iou_drop", "bin IoU": "bin_iou", "its drop": "bin_iou_drop"}
    print_figures(result, "Cost", rows, costs, medians=costs.values())


def draw(result: Result, path: Path) -> None:
    """Draw the area per hour of every form."""
    names = [name for name in FORMS if f"{name}.area" in result.figures]
    figures = {FORMS[name].title: result[f"{name}.area"] for name in names}
    drawings = [(name, lambda _, axis: draw_rows(axis, figures)) for name in names[:1]]
    draw_panels(result, path, f"Inference, km2/h at {GSD_M} m", drawings)


if __name__ == "__main__":
    raise SystemExit(main())
