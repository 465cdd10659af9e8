"""What is said before the first step: data, plan, network, machine, memory."""

from __future__ import annotations

from collections.abc import Iterator

from loaders import this_rank
from training.config import counted
from training.engine.host import describe
from training.run import Run


def header(run: Run, allocator: str, memory: str) -> Iterator[tuple[str, str]]:
    """Yield what a person should know of a run, as name and value.

    Parameters
    ----------
    run
        It, at its first stage.
    allocator
        What `training.engine.host.keep_memory` said.
    memory
        What the run needs, for people.
    """
    progress, stages = run.progress, run.config.stages
    begun = f"epoch {progress.epoch + 1}, step {progress.step}"
    yield "run", f"{run.folder}, {'from the beginning' if not progress.step else 'from ' + begun}"
    yield "data", ", ".join(store.location for store in run.stores)
    yield "", _tiles(run)
    yield "stages", "; ".join(map(str, stages))
    yield "samples", _samples(run)
    yield "network", _network(run)
    yield "learning", _learning(run)
    yield from describe(run.engine)
    yield "allocator", allocator
    yield "memory", memory


def _tiles(run: Run) -> str:
    """Return how many tiles there are, how large, how they are cut, and what was left out."""
    data, facts = run.data, run.facts
    validation = 0 if data.validation_tiles is None else len(data.validation_tiles)
    judges = f"{validation or 'none'} to validate on"
    parts = [
        f"{counted(len(data.tiles), 'tile')} to learn from, {judges}"
        + ("" if validation else " (best.pt is that of the last epoch)"),
        f"{facts.level} x {facts.level} pixels of {_metres(facts.gsd_m)}",
        f"bands {', '.join(facts.bands)}",
    ]
    if facts.folds is not None:
        parts.insert(1, f"fold {facts.fold} of {facts.folds} validates (counted from 0)")
    if data.tiles.left_out:
        without = ", ".join(f"{n} {why}" for why, n in data.tiles.left_out.items())
        parts.append(f"left out: {without}")
    return "; ".join(parts)


def _metres(gsd: tuple[float, float]) -> str:
    x, y = (f"{metres:.2g}" for metres in gsd)
    return f"{x} m" if x == y else f"{x} x {y} m"


def _samples(run: Run) -> str:
    loader, every, ranks = run.data.loader, run.config.optim.accumulate, this_rank()[1]
    per_tile = loader.sampling.crops_per_tile
    parts = [f"{loader.samples} per epoch, {per_tile} per tile"]
    if loader.drawn_tiles < len(run.data.tiles):
        parts[0] += f" of {loader.drawn_tiles} tiles that have enough road"
    if per_tile < run.config.sampling.crops_per_tile:
        parts[0] += " (no window is smaller than a tile)"
    size = loader.schedule.batch_size
    step = [f"{size} per batch"]
    step += [f"{ranks} ranks"] if ranks > 1 else []
    step += [f"{every} batches per step"] if every > 1 else []
    together = f" = {size * ranks * every} per step" if len(step) > 1 else ""
    parts += [
        f"{' x '.join(step)}{together}",
        f"{counted(-(-len(loader) // every), 'step')} per epoch",
    ]
    return ", ".join(parts)


def _network(run: Run) -> str:
    parameters = sum(p.numel() for p in run.trainable.network.parameters())
    facts = run.facts
    made = "".join(f"; {note}" for note in run.notes)
    return (
        f"{facts.network}, {parameters / 1e6:.1f} M parameters, {len(facts.bands)} bands -> "
        f"{facts.channels} channels ({facts.targets}{_why_binary(run)}){made}"
    )


def _why_binary(run: Run) -> str:
    """Return why a network learns no speeds though nobody said so, or nothing."""
    chosen = run.config.network.targets == "auto" and run.facts.targets == "binary"
    return ": the roads of a store have no speeds" if chosen else ""


def _learning(run: Run) -> str:
    optim = run.config.optim
    averaged = f", averaged weights (decay {optim.ema:g})" if optim.ema else ""
    return (
        f"{run.config.network.loss}; {optim.optimizer}, {optim.schedule} up to {optim.lr:g}, "
        f"{counted(run.config.epochs, 'epoch')}{averaged}; seed {optim.seed}"
    )
