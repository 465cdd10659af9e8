"""From the command line to a run that trains: new, or taken up again."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from geoprep.errors import UsageError
from geoprep.store import Store
from loaders import is_distributed
from training.checkpoint import LAST, Checkpoint, load_or_previous, previous_of
from training.cli import OF_ONE_START, Given, write_file
from training.config import Config
from training.data import open_data
from training.distributed import is_first, joined, set_threads
from training.engine.budget import plan_memory, with_batch_size
from training.engine.host import keep_memory
from training.engine.native import choose_engine
from training.loop import fit
from training.monitor.callbacks import Lookout
from training.monitor.console import Watch
from training.monitor.header import header, warn_of_changes
from training.monitor.signals import Stopped, StopSignals
from training.run import Run
from training.stages import Plan

UNCHANGEABLE = ("model", "targets", "bands", "optimizer")
"""Settings that weights and optimizer state depend on."""

ARTEFACTS = ("log.txt", "metrics.csv", "curves.png", "config.yaml", "best.pt", LAST, "last.prev.pt")
FOLDERS = ("pictures", "tensorboard")


def start(given: Given) -> int:
    """Train as the user asked to; return the exit status.

    Raises
    ------
    GeoprepError
        It cannot be done.
    """
    resume = given.values.get("resume")
    saved, note = (None, None) if resume is None else load_or_previous(resume)
    config = given.over({} if saved is None else _plain(saved.config))
    notes = [note] if note else []
    if saved is not None:
        notes += _changes(saved.config, given.values)
        _check_unfinished(saved, config)
    folder = _folder(config)
    recorded = None if config.output.profile else folder
    with joined(config.machine.device):
        stores = open_data(config.data)
        if saved is None and recorded is not None:
            _claim(folder, overwrite=config.output.overwrite)
        watch = Watch(recorded, quiet=config.output.quiet, active=is_first())
        with watch, StopSignals() as stop:
            try:
                return _train(config, stores, folder, saved, notes, watch, stop)
            except Stopped as stopped:
                watch.end_bar()
                again = f"python -m training.fit --resume {shlex.quote(str(folder))}"
                watch.line(f"{stopped}, saved in {folder / LAST}. To go on: {again}")
                return stopped.exit_code


def _train(
    config: Config,
    stores: tuple[Store, ...],
    folder: Path,
    saved: Checkpoint | None,
    notes: list[str],
    watch: Watch,
    stop: StopSignals,
) -> int:
    allocator = keep_memory()
    set_threads(config.machine.threads)
    machine = config.machine
    engine = choose_engine(
        machine.engine, machine.device, machine.precision, compile_mode=machine.compile
    )
    config, tried = with_batch_size(config, engine, stores)
    run = Run(config, engine, stores, folder, saved)
    run.enter_stage()
    watch.rows(header(run, allocator, plan_memory(run)))
    for note in [*notes, *([tried] if tried else []), *warn_of_changes(run, saved)]:
        watch.line(f"note: {note}")
    if config.output.profile:
        from training.monitor.profile import profile

        profile(run, watch)
        return 0
    if is_first():
        write_file(folder / "config.yaml", config)
    fit(run, Lookout(run, watch, stop))
    return 0


def _check_unfinished(saved: Checkpoint, config: Config) -> None:
    """Raise UsageError at a run that has nothing left to do."""
    done, planned = saved.progress["epoch"], Plan.of(config).epochs
    if done >= planned:
        raise UsageError(
            f"all {planned} epochs of this run are done: more of them with --epochs, or start a "
            "new run without --resume"
        )


def _folder(config: Config) -> Path:
    """Return the folder of the run."""
    if config.output.out is not None:
        return Path(config.output.out)
    if config.output.resume is not None:
        folder = Path(config.output.resume)
        return folder.parent if folder.suffix == ".pt" else folder
    if not config.data.stores:
        raise UsageError(
            "name at least one store, such as `python -m training.fit moscow.zarr`, or a run to "
            "go on with: --resume runs/moscow"
        )
    return Path("runs") / Path(config.data.stores[0].rstrip("/")).stem


def _claim(folder: Path, *, overwrite: bool) -> None:
    """Make the folder of a new run.

    Raises
    ------
    UsageError
        There is a run in it already.
    """
    if is_first():
        last = folder / LAST
        taken = last.exists() or previous_of(last).exists()
        if taken and not overwrite:
            raise UsageError(
                f"{folder} holds a run: go on with it (--resume {folder}), choose another folder "
                "(--out), or start anew in it (--overwrite)"
            )
        for name in ARTEFACTS if overwrite else ():
            (folder / name).unlink(missing_ok=True)
        for name in FOLDERS if overwrite else ():
            shutil.rmtree(folder / name, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    if is_distributed():
        dist.barrier()


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a checkpoint that hold for the runs that take it up."""
    return {name: value for name, value in config.items() if name not in OF_ONE_START}


def _changes(before: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return a line for every setting that the user changes in a run that goes on.

    Raises
    ------
    UsageError
        One that cannot be changed.
    """
    lines = []
    for name, value in given.items():
        if name in OF_ONE_START or name == "stores" or before.get(name) == value:
            continue
        flag = f"--{name.replace('_', '-')}"
        if name in UNCHANGEABLE:
            raise UsageError(
                f"{flag} was {before.get(name)} and cannot become {value} in a run that goes on: "
                "its weights and its optimizer's state would not fit. Start a new run (--out)"
            )
        lines.append(
            f"{flag} was {before.get(name)}, is {value}: the run differs from one never stopped"
        )
    return lines
