"""What a run prints at its start: its header, and notes on data and machine."""

from __future__ import annotations

from collections.abc import Iterator

from geoprep.texts import counted
from loaders import this_rank
from training.checkpoint import Checkpoint
from training.data import class_pixels, differences, folds_of, shared_ground
from training.engine.host import describe
from training.run.captured import WARM_UP
from training.run.parts import cutmix_of, info_of
from training.run.trainer import Trainer


def header(run: Trainer, why: str, allocator: str) -> Iterator[tuple[str, str]]:
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
    if mixed := cutmix_of(run.config, run.info, run.stores):
        samples += f", boxes of others up to {mixed:.0%} (`cutmix`)"
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
    length = config.time or counted(run.agreed.epochs, "epoch")
    loss: str = getattr(run.trainable.loss, "name", type(run.trainable.loss).__name__)
    return (
        f"{loss}; {config.optimizer}, {config.schedule} up to {config.lr:g}, "
        f"{length}{averaged}; seed {config.seed}"
    )


def notes(run: Trainer, saved: Checkpoint | None) -> Iterator[str]:
    """Yield what a person should know of data and machine before a run begins."""
    yield from differences(run.info, run.stores)
    yield from _never(run)
    yield from _unscored(run)
    yield from shared_ground(run.stores, folds_of(run.config))
    yield from _changed_since(run, saved)


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
