"""From the command line to a trained run: epochs of steps, each epoch validated."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geoprep.errors import UsageError
from geoprep.store import Store
from training.checkpoint import BEST, LAST, Checkpoint, load, trusted
from training.cli import write_file
from training.config import OF_ONE_START, SECTIONS, Config, counted
from training.data import differences, facts_of, open_data
from training.engine import (
    choose_batch_size,
    choose_engine,
    estimate_run,
    is_first,
    joined,
    keep_memory,
    of_first,
    set_threads,
)
from training.monitor import Callbacks, Stopped, StopSignals, header, opened
from training.run import Progress, Run

UNCHANGEABLE = (
    *("model", "targets", "bands", "optimizer", "encoder_weights", "encoder_lr", "folds", "fold"),
)
"""Settings that weights, normalisation and optimizer state depend on."""

ARTEFACTS = ("log.txt", "metrics.csv", "curves.png", "config.yaml", BEST, LAST)
FOLDERS = ("pictures", "tensorboard")


def start(given: Mapping[str, Any]) -> int:
    """Train as a person asked to; return the exit status.

    Parameters
    ----------
    given
        Settings by name, as the command line or a file says them.

    Raises
    ------
    GeoprepError
        It cannot be done.
    """
    with joined(given.get("device", "auto")):
        resume = given.get("resume")
        saved = None if resume is None else of_first(lambda: load(resume))
        config, notes = _settings(given, saved)
        done = 0 if saved is None else Progress.from_plain(saved.progress).epoch
        if done >= config.ends[-1]:
            if is_first():
                print(_finished(config, done))
            return 0
        folder = _folder(config)
        if not config.profile:
            of_first(lambda: _check_free(config, folder))
        stores = open_data(config)
        for store in stores:
            for stage in config.plan:
                store.check_level(stage.level)
        with StopSignals() as stop:
            return _train(config, stores, folder, saved, notes, stop)


def _train(
    config: Config,
    stores: tuple[Store, ...],
    folder: Path,
    saved: Checkpoint | None,
    notes: list[str],
    stop: StopSignals,
) -> int:
    allocator = keep_memory()
    set_threads(config.threads)
    engine = choose_engine(config.engine, config.device, config.precision, config.compile)
    config, weighed = choose_batch_size(config, engine, stores)
    run = Run(config, engine, stores, folder, saved)
    run.enter_stage()
    memory, size = estimate_run(run), run.loader.schedule.batch_size
    notes += [*weighed, *differences(run.facts, stores), *_changed_since(run, saved)]
    notes += memory.warnings(size)
    if not config.profile:
        of_first(lambda: _claim(config, folder))
    where = None if config.profile else folder
    with opened(where, step=run.progress.step, quiet=config.quiet) as console:
        for name, value in header(run, allocator, memory.line(size)):
            console.line(f"{name:<12} {value}")
        for note in notes:
            console.line(f"note: {note}")
        if config.profile:
            from training.monitor import profile

            profile(run, console)
            return 0
        try:
            train(run, Callbacks(run, console, stop))
        except Stopped as stopped:
            console.end_bar()
            console.line(f"{stopped}, saved in {folder / LAST}. To go on: {_again(run)}")
            return stopped.exit_code
    return 0


def train(run: Run, callbacks: Callbacks) -> None:
    """Train until all epochs are done or patience is at its end.

    Raises
    ------
    Stopped
        The run was asked to stop, and is saved.
    TrainingError
        Loss or gradient are no longer finite.
    """
    with callbacks.explained():
        while run.progress.epoch < run.epochs and not run.out_of_patience:
            callbacks.begin_epoch(new_stage=run.enter_stage())
            train_epoch(run, callbacks)
            callbacks.end_epoch()
    callbacks.finish()


def train_epoch(run: Run, callbacks: Callbacks) -> None:
    """Train on what is left of the epoch."""
    run.module.train()
    groups, batches = run.groups(), iter(run.loader)
    for group in groups:
        callbacks.after_step(run.step(batches, group), group)
    next(batches, None)  # which ends the epoch of the loader


def _again(run: Run) -> str:
    """Return the command that goes on with a run."""
    from training.model import is_code

    network, augmentation = run.facts.network, run.config.augmentation
    code = f" --model {shlex.quote(network)}" if is_code(network) else ""
    code += f" --augmentation {shlex.quote(augmentation)}" if augmentation else ""
    return f"python -m training.fit --resume {shlex.quote(str(run.folder))}{code}"


def _settings(given: Mapping[str, Any], saved: Checkpoint | None) -> tuple[Config, list[str]]:
    """Return the settings of a run, and a line for each that changes in one that goes on.

    Raises
    ------
    UsageError
        One cannot be changed.
    """
    if saved is None:
        return Config.from_flat(given), []
    bands = ",".join(saved.facts.bands)  # by name: a store may have them in another order by now
    before = {k: v for k, v in saved.config.items() if k not in OF_ONE_START} | {"bands": bands}
    if given.get("targets") == "auto":  # as before, whatever stores say by now
        given = {k: v for k, v in given.items() if k != "targets"}
    facts = {"targets": saved.facts.targets, "model": saved.facts.network}
    notes = list(_changes(before | facts, given))
    if saved.optimizer is None:
        notes.append("this checkpoint holds weights alone: optimizer and random numbers start anew")
    trusted(saved.facts.network, given.get("model"), given["resume"])
    if before.get("augmentation") and "augmentation" not in given:
        raise UsageError(
            f"{given['resume']} asks to import {before['augmentation']}: if you trust it, say so "
            f"with --augmentation {before['augmentation']} (or none)"
        )
    return Config.from_flat({**before, **given}), notes


def _finished(config: Config, done: int) -> str:
    """Return what to say of a run that has nothing left to do after so many epochs."""
    longer = "--stages with more epochs" if config.stages else f"--epochs {2 * done}"
    return (
        f"{config.resume} is finished, with {counted(done, 'epoch')}: nothing was done. To "
        f"train longer add {longer} (the learning rate then takes the course of so many), or start "
        "a new run without --resume"
    )


def _changes(before: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        plain = list(value) if isinstance(value, tuple) else value
        if name in OF_ONE_START or before.get(name) == plain:
            continue
        if name in UNCHANGEABLE:
            raise UsageError(
                f"--{name.replace('_', '-')} was {before.get(name)} and cannot become {value} in a "
                "run that goes on: its weights, its normalisation or its optimizer's state would "
                "not fit. Start a new run (--out)"
            )
        if name == "stores":
            yield f"stores were {', '.join(before.get(name, []))}, are {', '.join(value)}"
            continue
        flag = f"--{name.replace('_', '-')}"
        yield f"{flag} was {before.get(name)}, is {value}: the run differs from one never stopped"


def _changed_since(run: Run, saved: Checkpoint | None) -> Iterator[str]:
    """Yield what differs from where a run was before, and what that means."""
    if saved is None:
        return
    for name, value in run.environment().items():
        if name in saved.environment and saved.environment[name] != value:
            yield (
                f"{name} was {saved.environment[name]}, is {value}: bits will differ from those of "
                "a run never stopped"
            )
    now = facts_of(run.config, run.stores)
    if any(getattr(now, n) != getattr(saved.facts, n) for n in ("mean", "std", "class_mph")):
        yield "the stores hold other pixels than the run began with; it keeps its normalisation"


def _folder(config: Config) -> Path:
    """Return the folder of the run."""
    if config.out is None and config.resume is None and not config.stores:
        raise UsageError(
            "name at least one store, such as `python -m training.fit moscow.zarr`, or a run to "
            "go on with: --resume runs/moscow"
        )
    if config.out is not None:
        return Path(config.out)
    return _before(config) or Path("runs") / Path(config.stores[0].rstrip("/")).stem


def _before(config: Config) -> Path | None:
    """Return the folder of the run that goes on, named by it or by a file in it."""
    if config.resume is None:
        return None
    named = Path(config.resume)
    return named.parent if named.suffix == ".pt" else named


def _goes_on(config: Config, folder: Path) -> bool:
    """Whether a run goes on in its own folder."""
    before = _before(config)
    return before is not None and before.resolve() == folder.resolve()


def _check_free(config: Config, folder: Path) -> None:
    """Raise UsageError where another run is in the folder, and is not to be overwritten."""
    taken = (folder / LAST).exists() or (folder / BEST).exists()
    if taken and not (config.overwrite or _goes_on(config, folder)):
        raise UsageError(
            f"{folder} holds a run: go on with it (--resume {folder}), choose another folder "
            "(--out), or start anew in it (--overwrite)"
        )


def _claim(config: Config, folder: Path) -> None:
    """Make the folder of a run; what another run left there goes, now that nothing is refused."""
    before, here = _before(config), _goes_on(config, folder)
    if config.overwrite and not here:
        for name in ARTEFACTS:
            (folder / name).unlink(missing_ok=True)
        for name in FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    if before is not None and not here and (before / BEST).exists():
        shutil.copyfile(before / BEST, folder / BEST)
    flat = {name: value for name, value in config.flat().items() if name not in OF_ONE_START}
    write_file(folder / "config.yaml", SECTIONS, flat)
