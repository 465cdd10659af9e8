"""The header of a run, printed before the first step: data, stages, model, machine and memory."""

from __future__ import annotations

from collections.abc import Iterator

from loaders import this_rank
from training.engine import describe
from training.run.trainer import Trainer
from training.setting_texts import counted


def header(run: Trainer, allocator: str, memory: str) -> Iterator[tuple[str, str]]:
    """Yield the header of a run at its first stage, as name and value."""
    progress, stages = run.progress, run.config.plan
    begun = f"epoch {progress.epoch + 1}, step {progress.step}"
    yield "run", f"{run.folder}, {'new' if not progress.step else 'resumed at ' + begun}"
    yield "data", ", ".join(store.location for store in run.stores)
    yield "", _tiles(run)
    yield "stages", "; ".join(map(str, stages))
    yield "samples", _samples(run)
    yield "model", _model(run)
    yield "training", _training(run)
    yield from describe(run.engine)
    yield "allocator", allocator
    yield "memory", memory


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
    together = f" = {size * ranks * every} per step" if ranks * every > 1 else ""
    return f"{samples}, {step}{together}, {counted(-(-len(loader) // every), 'step')} per epoch"


def _model(run: Trainer) -> str:
    parameters = sum(p.numel() for p in run.trainable.model.parameters())
    info = run.info
    channels = f"{info.channels} channels"
    if info.has_classes:
        channels += f": {info.classes}"
    binary = run.config.targets == "auto" and info.targets == "binary"
    why = ": the roads of a store have no speeds" if binary else ""
    initial = f"; {run.initial}" if run.initial else ""
    return (
        f"{info.model}, {parameters / 1e6:.1f} M parameters, {len(info.bands)} bands -> "
        f"{channels} ({info.targets}{why}){initial}"
    )


def _training(run: Trainer) -> str:
    config = run.config
    averaged = f", averaged weights (decay {config.ema:g})" if config.ema else ""
    loss: str = getattr(run.trainable.loss, "name", type(run.trainable.loss).__name__)
    if weight := getattr(run.trainable.loss, "direction", 0.0):
        loss += f" and {weight:g} of the direction of roads"
    return (
        f"{loss}; {config.optimizer}, {config.schedule} up to {config.lr:g}, "
        f"{counted(run.epochs, 'epoch')}{averaged}; seed {config.seed}"
    )
