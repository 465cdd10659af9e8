"""Starting and resuming a run: settings, folder, lock, header, and how a run ends."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from geoprep.errors import StoreError, UsageError
from geoprep.texts import counted
from loaders import this_rank, touched_nodes
from training.checkpoint import LAST, Checkpoint, RunProgress, load, trusted
from training.data import class_pixels, differences, folds_of, shared_ground
from training.engine.distributed import is_rank_zero, on_rank_zero, process_group, set_threads
from training.engine.host import describe, keep_memory
from training.engine.native import choose_engine
from training.model.build import is_code
from training.process import RunStopped, StopSignals, signal_name
from training.run.captured import WARM_UP
from training.run.folder import RunLock, check_free, claim, folder_of
from training.run.parts import info_of, open_data
from training.run.plan import planned
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
        resume = given.get("resume")
        saved = None if resume is None else on_rank_zero(lambda: _load(Path(resume)))
        config, notes = _settings(given, saved)
        done = RunProgress() if saved is None else RunProgress.from_plain(saved.progress)
        if config.is_finished(done.epoch, done.time_over):
            if is_rank_zero():
                print(spell(_finished(config, done.epoch)))
            return 0
        folder = folder_of(config)
        with RunLock(folder) as lock, StopSignals() as stop:
            try:
                return _run(config, folder, saved, notes, stop, lock, spell, trainer)
            except KeyboardInterrupt:
                if is_rank_zero():
                    print(spell(_interrupted(config, folder, stop.number)), flush=True)
                return 128 + (stop.number or signal.SIGINT)


def run_folder(given: Mapping[str, Any]) -> Path:
    """Return the folder of a run with the given settings."""
    return folder_of(Config.from_flat(given))


def _run(
    config: Config,
    folder: Path,
    saved: Checkpoint | None,
    notes: list[str],
    stop: StopSignals,
    lock: RunLock,
    spell: Callable[[str], str],
    trainer: type[Trainer],
) -> int:
    if config.writes:
        on_rank_zero(lambda: check_free(config, folder, lock))
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
    allocator = keep_memory()
    set_threads(config.threads)
    wanted = config.engine, config.device, config.precision, config.compile
    engine = choose_engine(*wanted, capture=config.capture == "auto")
    config, why = choose_model(config, engine.device.type)
    report = Report(folder if config.writes else None, quiet=config.quiet, spell=spell)
    given = config, engine, stores, folder, saved
    run = trainer(*given, report=report, stop=stop)
    notes += [*differences(run.info, stores), *_never(run), *_unscored(run)]
    notes += [*shared_ground(stores, folds_of(config)), *_changed_since(run, saved)]
    notes += _nodes(config)
    if config.writes:
        on_rank_zero(lambda: claim(config, folder, lock))
    with report.files(run.progress.step):
        for name, value in _header(run, why, allocator):
            report.line(f"{name:<12} {value}")
        for note in notes:
            report.line(f"note: {note}")
        if config.plan:
            for line in planned(run):
                report.line(f"{'plan':<12} {line}")
        if config.profile:
            profile(run)
        if not config.writes:
            return 0
        try:
            run.fit()
        except RunStopped as stopped:
            report.end()
            again = _resume_command(config, folder)
            report.line(f"{stopped}, saved in {folder / LAST}. To resume: {again}")
            return stopped.exit_code
    return 0


def _interrupted(config: Config, folder: Path, number: int) -> str:
    """Return what is left of a run that a signal ended between two checkpoints."""
    name = signal_name(number or signal.SIGINT)
    before = Path(config.resume) if config.resume else folder
    for path in (folder, before):
        if config.writes and (path / LAST).exists():
            again = _resume_command(config, path)
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
    if resume.suffix != ".pt" and not (resume / LAST).exists():
        raise UsageError(
            f"`resume` {resume}: there is no checkpoint ({LAST}) in this folder. Start a run that "
            "was stopped before its first one again with its first command"
        )
    return load(resume)


def _settings(given: Mapping[str, Any], saved: Checkpoint | None) -> tuple[Config, list[str]]:
    """Return the settings of a run, and a line for each that changes in a resumed run."""
    if given.get("init_from") is not None:
        other = "resume" if saved is not None else "encoder_weights"
        if saved is not None or given.get("encoder_weights", "none") != "none":
            raise UsageError(f"`init_from` and `{other}` both set the weights: give one of them")
    if given.get("fold") and given.get("folds") is None and saved is None:
        raise UsageError(f"`fold` {given['fold']} needs `folds`, the number of folds")
    stages = given.get("stages") or (saved and saved.config.get("stages"))
    if given.get("time") and (stages or given.get("epochs", Config.epochs) != Config.epochs):
        other = "stages" if stages else "epochs"
        raise UsageError(f"`time` and `{other}` both say how long to train: give one of them")
    for name in ("level", "crop", "epochs") if given.get("stages") else ():
        if given.get(name, getattr(Config, name)) != getattr(Config, name):
            raise UsageError(f"`stages` has its own levels, crops and epochs: leave out `{name}`")
    if saved is None:
        return Config.from_flat(given), []
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
    return Config.from_flat({**before, **given}), notes


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
                f"`{name}` was {before.get(name)} and cannot become {value} in a resumed run: "
                "weights, normalisation or optimizer state would not fit. Start a new run (`out`)"
            )
        yield (
            f"`{name}` was {before.get(name)}, is {plain}: the result differs from a run without "
            "interruption"
        )


def _never(run: Trainer) -> Iterator[str]:
    """Yield a line on classes that the model cannot learn: no training pixel has them."""
    names = run.info.class_names
    pixels = class_pixels(run.stores, names)
    lacking = [name for name, count in zip(names, pixels, strict=True) if not count]
    if lacking:
        yield (
            f"no pixel of the training tiles has the class {', '.join(lacking)}: the model cannot "
            "learn it. Check the labels, or give training scenes that have it"
        )


def _unscored(run: Trainer) -> Iterator[str]:
    """Yield a line if validation tiles have nothing that a score could count."""
    if run.validation is None:
        return
    tiles, roads = run.validation.tiles, not run.info.has_classes
    if roads:
        scored = bool(tiles.road_fraction.any())
    else:
        pairs = tiles.table[["store", "tile"]].tolist()
        scored = any(tiles.stores[store].class_pixels[tile].any() for store, tile in pairs)
    if not scored:
        what, score = ("road", "road IoU") if roads else ("labelled pixel", "mean IoU")
        yield (
            f"no validation tile has a {what}, so there is no {score}: best.pt is the epoch with "
            "the lowest validation loss, or the last one if no pixel has a label. Choose another "
            "validation split"
        )


def _nodes(config: Config) -> Iterator[str]:
    """Yield a line on memory nodes, if resident tiles lie on those of the loading threads."""
    nodes = touched_nodes()
    if nodes > 1 and config.residency in ("ram", "compressed"):
        yield (
            f"this machine has {nodes} memory nodes, and tiles lie on those of the threads that "
            "load them: start under `numactl --interleave=all` to read them from all nodes alike"
        )


def _changed_since(run: Trainer, saved: Checkpoint | None) -> Iterator[str]:
    """Yield differences between the machine and data of a resumed run and those before."""
    if saved is None:
        return
    for name, value in run.engine.environment().items():
        if name in saved.environment and saved.environment[name] != value:
            yield (
                f"{name} was {saved.environment[name]}, is {value}: the weights will differ in "
                "rounding from a run without interruption"
            )
    if run.relabelled:
        yield (
            "the stores hold other labels than before: the best epoch is chosen anew, among those "
            "from now on"
        )
    now = info_of(run.config, run.stores)
    if any(getattr(now, n) != getattr(saved.info, n) for n in ("mean", "std", "class_mph")):
        yield "the stores hold other pixels than at the start; the run keeps its normalisation"


def _header(run: Trainer, why: str, allocator: str) -> Iterator[tuple[str, str]]:
    """Yield the header of a run at its first stage, as name and value."""
    progress, stages = run.progress, run.config.all_stages
    begun = f"epoch {progress.epoch + 1}, step {progress.step}"
    yield "run", f"{run.folder}, {'new' if not progress.step else 'resumed at ' + begun}"
    yield "data", ", ".join(store.location for store in run.stores)
    yield "", _tiles(run)
    timed = run.config.time and f"{run.config.time} of {stages[0].samples}"
    yield "stages", timed or "; ".join(map(str, stages))
    yield "samples", _samples(run)
    yield "model", _model(run)
    if why:
        yield "", why
    yield "training", _training(run)
    yield from describe(run.engine)
    if run.engine.device.type == "cuda":
        why = "several ranks" if this_rank()[1] > 1 else "`capture` off"
        graphs = f"the first {WARM_UP} of a shape as they are, then recorded as a CUDA graph"
        yield "steps", graphs if run.engine.captures else f"not recorded as CUDA graphs: {why}"
    yield "allocator", allocator


def _tiles(run: Trainer) -> str:
    """Return number, size, splits and bands of the tiles, and tiles that are left out."""
    tiles, info = run.loader.tiles, run.info
    validation = "none for validation (best.pt is that of the last epoch)"
    if run.validation is not None:
        validation = f"{len(run.validation.tiles)} for validation"
        if type(run.validation.tiles) is not type(tiles):
            beside = f"they do not fit on {run.engine.device} beside those for training"
            validation += f" (streamed: {beside})"
    parts = [f"{counted(len(tiles), 'tile')} for training, {validation}"]
    if info.folds is not None:
        parts.append(f"fold {info.fold} of {info.folds} for validation (counted from 0)")
    parts += [
        f"{info.level} x {info.level} pixels of {_metres(info.gsd_m)}",
        f"bands {', '.join(info.bands)}",
    ]
    if tiles.left_out:
        parts.append(f"left out: {', '.join(f'{n} {why}' for why, n in tiles.left_out.items())}")
    return "; ".join(parts)


def _metres(gsd: tuple[float, float]) -> str:
    x, y = (f"{metres:.2g}" for metres in gsd)
    return f"{x} m" if x == y else f"{x} x {y} m"


def _samples(run: Trainer) -> str:
    loader, every, ranks = run.loader, run.config.accumulate, this_rank()[1]
    per_tile, size = loader.sampling.crops_per_tile, loader.schedule.batch_size
    samples = f"{loader.samples} per epoch, {per_tile} per tile"
    if loader.drawn_tiles < len(loader.tiles):
        enough = "of the classes" if run.info.has_classes else "road"
        samples += f" of {loader.drawn_tiles} tiles with enough {enough}"
    if per_tile < run.config.crops_per_tile:
        samples += " (crops are not smaller than tiles)"
    step = f"{size} per batch"
    step += f" x {ranks} ranks" if ranks > 1 else ""
    step += f" x {every} batches per step" if every > 1 else ""
    together = f" = {run.images_per_step} per step" if ranks * every > 1 else ""
    return f"{samples}, {step}{together}, {counted(-(-len(loader) // every), 'step')} per epoch"


def _model(run: Trainer) -> str:
    parameters = sum(p.numel() for p in run.trainable.model.parameters())
    info = run.info
    channels = counted(info.channels, "channel")
    if info.has_classes:
        channels += f": {info.classes}"
    binary = run.config.targets == "auto" and info.targets == "binary"
    why = ": the roads of a store have no speeds" if binary else ""
    initial = f"; {run.initial}" if run.initial else ""
    return (
        f"{info.model}, {parameters / 1e6:.1f} M parameters, {counted(len(info.bands), 'band')} -> "
        f"{channels} ({info.targets}{why}){initial}"
    )


def _training(run: Trainer) -> str:
    config = run.config
    averaged = f", averaged weights (decay {config.ema:g})" if config.ema else ""
    length = config.time or counted(run.epochs, "epoch")
    loss: str = getattr(run.trainable.loss, "name", type(run.trainable.loss).__name__)
    return (
        f"{loss}; {config.optimizer}, {config.schedule} up to {config.lr:g}, "
        f"{length}{averaged}; seed {config.seed}"
    )
