"""What each form of a trained network costs and gains: one run, in turns.

    python -m benchmarks.inference [CHECKPOINT STORE] [--quick] [--json FILE] [--only FORM]

Every form runs in a process of its own: the checkpoint plain and compiled, and the files that
`training.export` makes of it. Without a checkpoint its weights are random: rates are the same, and
nothing is said of accuracy.
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

import numpy as np

from benchmarks.child import ChildError, Conversation, run
from benchmarks.common import Result, announce, interleave, parser, ratios, showing
from benchmarks.fitting.mapping import GSD_M, untrained
from benchmarks.inferring.forms import BASE, FORMS, file_of, size_of, task_of
from benchmarks.loading.data import Sizes, synthetic_store
from benchmarks.plots import draw_panels, draw_rows
from benchmarks.tables import conclude, print_figures, print_machine
from geoprep.executors import usable_cores

WORKER = "benchmarks.inferring.worker"
PROMISED = 2.0
LARGEST_DROP = 0.01


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    side
        Of the tiles.
    counts
        Tiles per batch.
    times
        Single tiles whose latency is taken, per round.
    seconds
        That a batch size is measured per round, at least.
    tiles
        That INT8 takes its ranges from.
    """

    side: int = 512
    counts: tuple[int, ...] = (1, 4)
    times: int = 20
    seconds: float = 3.0
    tiles: int = 100


QUICK = Scale(side=64, counts=(1, 2), times=3, seconds=0.1, tiles=4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status says only whether it ran."""
    given = _arguments(arguments)
    scale = QUICK if given.quick else Scale()
    settings = {"quick": given.quick, "repeats": given.repeats, "side": scale.side}
    settings["network"] = str(given.checkpoint or "random weights")
    result = Result("inference", settings)
    print_machine(result)
    with tempfile.TemporaryDirectory(dir=given.work, prefix="inference-") as folder, showing():
        work = Path(folder)
        store, checkpoint = given.store, given.checkpoint
        if checkpoint is None:
            announce("drawing a city")
            store = str(synthetic_store(work, Sizes(scenes=6, scene_side=256), usable_cores()))
            checkpoint = work / "untrained.pt"
            untrained(Path(store), checkpoint)
        files = _export(result, given.only, checkpoint, store, work, scale)
        if given.checkpoint is not None:
            _judge(result, files, checkpoint, store, work)
        _measure(result, files, scale, given.repeats)
    return conclude(result, given, print_tables, draw)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], repeats=3)
    add = options.add_argument
    add("checkpoint", type=Path, nargs="?", help="of a trained network (default: random weights)")
    add("store", nargs="?", help="the store it was trained on, for INT8 and for accuracy")
    add("--only", action="append", choices=FORMS, metavar="FORM", help=", ".join(FORMS))
    add("--work", type=Path, help="folder for scratch files (default: TMPDIR)")
    given = options.parse_args(arguments)
    if given.checkpoint is not None and given.store is None:
        options.error("name the store that the checkpoint was trained on as well")
    given.only = given.only or list(FORMS)
    return given


def _export(
    result: Result, only: Sequence[str], checkpoint: Path, store: str, work: Path, scale: Scale
) -> dict[str, Path]:
    """Make the file of every form; one that cannot be made leaves a note."""
    files = {}
    for name in only:
        announce(f"exporting {FORMS[name].title}")
        try:
            files[name] = file_of(FORMS[name], checkpoint, store, work, scale.tiles)
        except ChildError as error:
            result.notes.append(f"{name} is left out: {error}")
        else:
            result.add(f"{name}.size", "MB", [size_of(files[name]) / 1e6])
    return files


def _judge(
    result: Result, files: dict[str, Path], checkpoint: Path, store: str, work: Path
) -> None:
    """Record how good each file is on the store's validation tiles, beside the checkpoint in fp32.

    The command that a user runs says so.
    """
    announce("judging on validation tiles")
    exported = {name: file for name, file in files.items() if FORMS[name].file}
    for python in dict.fromkeys(FORMS[name].python for name in exported):
        some = {name: file for name, file in exported.items() if FORMS[name].python == python}
        out = work / "compared.json"
        command = [python, "-m", "training.evaluate", "--compare", str(checkpoint)]
        command += [*map(str, some.values()), "--on", store, "--precision", "fp32"]
        try:
            run([*command, "--json", str(out)])
        except ChildError as error:
            result.notes.append(f"nothing was judged of {', '.join(some)}: {error}")
            continue
        rows = zip(("fp32", *some), json.loads(out.read_text()), strict=True)
        for name, row in rows:
            if f"{name}.road_iou" not in result.figures:
                _judged(result, name, row)


def _judged(result: Result, name: str, row: dict[str, dict[str, float]]) -> None:
    most = LARGEST_DROP if name.endswith("int8") else None
    result.add(f"{name}.road_iou", "", [row["metrics"]["road_iou"]])
    result.add(f"{name}.drop", "", [row["drop"]["road_iou"]], at_most=most)
    if "bin_iou" in row["drop"]:
        result.add(f"{name}.bin_iou", "", [row["metrics"]["bin_iou"]])


def _measure(result: Result, files: dict[str, Path], scale: Scale, repeats: int) -> None:
    """Record loading, latency, rate and memory of every form, in turns."""
    with ExitStack() as stack:
        talks = {}
        for name, file in files.items():
            announce(f"loading {FORMS[name].title}")
            command = [FORMS[name].python, "-m", WORKER, json.dumps(task_of(FORMS[name], file))]
            talk = stack.enter_context(Conversation(command))
            try:
                load = talk.answer()["load_s"]
                for count in scale.counts:  # what is compiled is compiled now, once per shape
                    load += talk.ask("first", count=count, side=scale.side)["first_s"]
            except ChildError as error:
                result.notes.append(f"{name} is left out: {error}")
                continue
            talks[name] = talk
            note = "with the first batch of each size, which may compile"
            result.add(f"{name}.load", "s", [load], note=note)
        ask = {name: partial(one_round, talk, scale) for name, talk in talks.items()}
        for name, rounds in interleave(ask, repeats).items():
            record(result, name, rounds, scale)
    base = result.figures.get(f"{BASE}.rate{scale.counts[-1]}")
    if base is None:
        return
    for name in talks:
        gains = ratios(result[f"{name}.rate{scale.counts[-1]}"].values, base.values)
        result.add(
            f"{name}.gain",
            "",
            gains,
            at_least=PROMISED if name == "pt2-int8" else None,
            note=f"times {FORMS[BASE].title}",
        )


def one_round(talk: Conversation, scale: Scale) -> dict[str, list[float]]:
    """Return latencies in s, and per batch size Mpx/s and peak bytes, of one turn of a form."""
    latency = talk.ask("latency", count=1, side=scale.side, times=scale.times)["seconds"]
    answers = [
        talk.ask("rate", count=count, side=scale.side, seconds=scale.seconds)
        for count in scale.counts
    ]
    return {
        "latency": latency,
        "rate": [found["mpx_s"] for found in answers],
        "peak": [found["peak"] for found in answers],
    }


def record(
    result: Result, name: str, rounds: Sequence[dict[str, list[float]]], scale: Scale
) -> None:
    """Record the turns of one form, as `one_round` gives them."""
    for share in (50, 99):
        found = [float(np.percentile(one["latency"], share)) * 1e3 for one in rounds]
        result.add(f"{name}.p{share}", "ms", found, note=f"one tile of {scale.side}")
    for k, count in enumerate(scale.counts):
        result.add(f"{name}.rate{count}", "Mpx/s", [one["rate"][k] for one in rounds])
    area = [one["rate"][-1] * GSD_M**2 * 3600 for one in rounds]
    result.add(f"{name}.area", "km2/h", area, note=f"at {GSD_M} m, without reading and writing")
    result.add(f"{name}.memory", "GiB", [max(one["peak"]) / 2**30 for one in rounds])


def print_tables(result: Result) -> None:
    """Print what was measured: one row per form."""
    rows = {form.title: name for name, form in FORMS.items()}
    counts = sorted({n.rpartition(".rate")[2] for n in result.figures if ".rate" in n}, key=int)
    columns = {f"Mpx/s, batch {count}": f"rate{count}" for count in counts}
    columns |= {"gain": "gain", "km2/h": "area", "p50 ms": "p50", "p99 ms": "p99"}
    print_figures(result, "Speed", rows, columns, medians=("area", "p50", "p99"))
    costs = {"MB": "size", "load s": "load", "peak GiB": "memory", "road IoU": "road_iou"}
    costs |= {"drop": "drop", "bin IoU": "bin_iou"}
    print_figures(result, "Cost", rows, costs, medians=costs.values())


def draw(result: Result, path: Path) -> None:
    """Draw the area per hour of every form."""
    names = [name for name in FORMS if f"{name}.area" in result.figures]
    figures = {FORMS[name].title: result[f"{name}.area"] for name in names}
    drawings = [(name, lambda _, axis: draw_rows(axis, figures)) for name in names[:1]]
    draw_panels(result, path, f"Inference, km2/h at {GSD_M} m", drawings)


if __name__ == "__main__":
    raise SystemExit(main())
