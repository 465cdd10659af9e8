"""Starting and resuming a run: settings, folder, lock, and how a run ends."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from geoprep.errors import StoreError, UsageError
from geoprep.store.reader import StoreReader
from geoprep.texts import counted
from training.checkpoint import LAST, Checkpoint, RunProgress, load, trusted
from training.engine.distributed import on_rank_zero, process_group, set_threads
from training.engine.host import keep_memory
from training.engine.native import Engine, choose_engine
from training.model.build import is_code
from training.process import RunStopped, StopSignals, signal_name
from training.run.folder import RunLock, check_free, claim, folder_of
from training.run.header import header, notes
from training.run.parts import open_data
from training.run.plan import plan
from training.run.pretrained import choose_model
from training.run.profiler import profile
from training.run.report import Report
from training.run.trainer import Trainer
from training.settings import OF_ONE_START, Config

UNCHANGEABLE = (
    *("model", "targets", "bands", "optimizer", "encoder_weights", "encoder_lr"),
    *("folds", "fold"),
)
"""Settings that weights, normalisation and optimizer state depend on."""

_CHOSEN = (("targets", "auto"), ("model", "auto"))
"""Settings that a resumed run keeps as they were chosen."""


def start_run(
    given: Mapping[str, Any], spell: Callable[[str], str] = str, trainer: type[Trainer] = Trainer
) -> int:
    """Start or resume a run with settings by name; return the exit status.

    ``spell`` replaces parameter names in printed lines, see `training.cli.Command.spell`.
    ``trainer`` is the class that trains, `Trainer` or a user's that is derived from it.
    """
    timeout = given.get("distributed_timeout", Config.distributed_timeout)
    with process_group(given.get("device", Config.device), timeout):
        start = _start_of(given)
        config, saved = start.config, start.saved
        folder = folder_of(config)
        report = Report(folder if config.writes else None, quiet=config.quiet, spell=spell)
        done = RunProgress() if saved is None else RunProgress.from_plain(saved.progress)
        if config.is_finished(done.epoch, done.time_over):
            report.line(_finished(config, done.epoch))
            return 0
        with RunLock(folder) as lock, StopSignals() as stop:
            try:
                return _run(start, trainer, report, lock=lock, stop=stop)
            except KeyboardInterrupt:
                report.line(_interrupted(config, folder, stop.number))
                return 128 + (stop.number or signal.SIGINT)


class _Start(NamedTuple):
    """What a run starts from."""

    config: Config
    saved: Checkpoint | None  # that it resumes
    changes: Sequence[str]  # a line for each setting that a resumed run changes


def _run(
    start: _Start, trainer: type[Trainer], report: Report, *, lock: RunLock, stop: StopSignals
) -> int:
    """Make a trainer and let it work; nothing of it is left when this function returns.

    The process group ends then. If a model on several ranks outlived it, torch would wait for
    Gloo's threads while they wait for Python.
    """
    config, saved, changes = start
    folder = lock.folder
    if config.writes:
        on_rank_zero(lambda: check_free(config, lock))
    stores = _stores(config)
    allocator = keep_memory()
    set_threads(config.threads)
    engine = _engine(config)
    config, why = choose_model(config, engine.device.type)
    run = trainer(config, engine, stores, folder, saved, report=report, stop=stop)
    told = [*changes, *notes(run, saved)]
    if config.writes:
        on_rank_zero(lambda: claim(config, lock))
    with report.files(run.progress.step):
        for name, value in header(run, why, allocator):
            report.line(f"{name:<12} {value}")
        for note in told:
            report.line(f"note: {note}")
        return _work(run)


def _work(run: Trainer) -> int:
    """Plan, profile or train, as the settings say; return the exit status."""
    config = run.config
    if config.plan:
        plan(run)
    if config.profile:
        profile(run)
    try:
        if config.writes:
            run.fit()
    except RunStopped as stopped:
        run.report.end()
        again = _resume_command(config, run.folder)
        run.report.line(f"{stopped}, saved in {run.folder / LAST}. To resume: {again}")
        return stopped.exit_code
    return 0


def run_folder(given: Mapping[str, Any]) -> Path:
    """Return the folder of a run with the given settings."""
    return folder_of(Config.from_flat(given))


def _stores(config: Config) -> tuple[StoreReader, ...]:
    """Return the opened stores of a run, which have its levels."""
    try:
        stores = open_data(config)
    except StoreError as error:
        if config.resume is None:
            raise
        new = _resume_command(config, Path(config.resume), "NEW.zarr ")
        raise StoreError(f"{error}. If it was moved, give its new path: {new}") from error
    for store in stores:
        for stage in config.all_stages:
            store.check_level(stage.level)
    return stores


def _engine(config: Config) -> Engine:
    wanted = config.engine, config.device, config.precision, config.compile
    return choose_engine(*wanted, capture=config.capture == "auto")


def _interrupted(config: Config, folder: Path, number: int) -> str:
    """Return what is left of a run that a signal ended between two checkpoints."""
    name = signal_name(number or signal.SIGINT)
    if config.writes and (folder / LAST).exists():
        again = _resume_command(config, folder)
        return f"stopped by {name}; the last checkpoint is kept. To resume: {again}"
    return f"stopped by {name} before the first checkpoint: start again with the same command"


def _resume_command(config: Config, folder: Path, stores: str = "") -> str:
    """Return the command that resumes a run."""
    model, augmentation = config.model, config.augmentation
    code = f" --model {shlex.quote(model)}" if is_code(model) else ""
    code += f" --augmentation {shlex.quote(augmentation)}" if augmentation else ""
    return f"geoprep fit {stores}--resume {shlex.quote(str(folder))}{code}"


def _load(resume: Path) -> Checkpoint:
    """Return the checkpoint to resume from."""
    if not (resume / LAST).exists():
        raise UsageError(
            "resume",
            f"{resume}: there is no checkpoint ({LAST}) in this folder. Start a run that "
            "was stopped before its first one again with its first command",
        )
    return load(resume)


def _start_of(given: Mapping[str, Any]) -> _Start:
    """Return the settings of a run, with the checkpoint that they resume."""
    resume = given.get("resume")
    if resume is not None and given.get("out") is not None:
        raise UsageError(
            "`resume` and `out` both name a folder: a run is resumed in its own. Leave out `out`, "
            "or copy the folder and resume the copy"
        )
    saved = None if resume is None else on_rank_zero(lambda: _load(Path(resume)))
    if given.get("init_from") not in ("auto", None):
        other = "resume" if saved is not None else "encoder_weights"
        if saved is not None or given.get("encoder_weights", "none") != "none":
            raise UsageError(f"`init_from` and `{other}` both set the weights: give one of them")
    if given.get("fold") and given.get("folds") is None and saved is None:
        raise UsageError("fold", f"{given['fold']} needs `folds`, the number of folds")
    stages = given.get("stages") or (saved and saved.config.get("stages"))
    if given.get("time") and (stages or given.get("epochs", Config.epochs) != Config.epochs):
        other = "stages" if stages else "epochs"
        raise UsageError(f"`time` and `{other}` both say how long to train: give one of them")
    for name in ("level", "crop", "epochs") if given.get("stages") else ():
        if given.get(name, getattr(Config, name)) != getattr(Config, name):
            raise UsageError("stages", f"has its own levels, crops and epochs: leave out `{name}`")
    if saved is None:
        return _Start(Config.from_flat(given), None, ())
    bands = ",".join(saved.info.bands)  # by name: their order in a store may have changed
    before = {k: v for k, v in saved.config.items() if k not in OF_ONE_START} | {"bands": bands}
    if "time" in given:
        before["epochs"] = Config.epochs
    elif given.keys() & {"epochs", "stages"}:
        before["time"] = None
    # As before, whatever the stores and the device are now.
    given = {k: v for k, v in given.items() if (k, v) not in _CHOSEN}
    notes = list(
        _changes(before | {"targets": saved.info.targets, "model": saved.info.model}, given)
    )
    if saved.optimizer is None:
        notes.append(
            "this checkpoint holds weights only: optimizer and random numbers start from the "
            "beginning"
        )
    trusted(saved.info.model, given.get("model"), given["resume"])
    if before.get("augmentation") and "augmentation" not in given:
        raise UsageError(
            f"{given['resume']} imports {before['augmentation']}: if you trust it, add "
            f"`augmentation` {before['augmentation']} (or none)"
        )
    return _Start(Config.from_flat({**before, **given}), saved, notes)


def _finished(config: Config, done: int) -> str:
    """Return a message for a run that is finished after so many epochs."""
    longer = "`stages` with more epochs" if config.stages else f"`epochs` {2 * done}"
    longer = "a longer `time`" if config.time else longer
    return (
        f"{config.resume} is finished, with {counted(done, 'epoch')}: nothing to do. To train "
        f"longer, add {longer} (which changes the learning rate schedule), or start a new run "
        "without `resume`"
    )


def _changes(before: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        plain = list(value) if isinstance(value, tuple) else value
        if name in (*OF_ONE_START, "capture") or before.get(name) == plain:
            continue
        if name in UNCHANGEABLE:
            raise UsageError(
                name,
                f"was {before.get(name)} and cannot become {value} in a resumed run: "
                "weights, normalisation or optimizer state would not fit. Start a new run (`out`)",
            )
        yield (
            f"`{name}` was {before.get(name)}, is {plain}: the result differs from a run without "
            "interruption"
        )
