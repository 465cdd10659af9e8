"""What is said before the first step: data, plan, network, machine, memory."""

from __future__ import annotations

from collections.abc import Iterator

from loaders import this_rank
from training.config import Config, counted
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
    progress, stages = run.progress, run.config.plan
    begun = f"epoch {progress.epoch + 1}, step {progress.step}"
    yield "run", f"{run.folder}, {'from the beginning' if not progress.step else 'from ' + begun}"
    yield "data", ", ".join(store.location for store in run.stores)
    yield "", _tiles(run)
    yield "stages", "; ".join(map(str, stages))
    yield "samples", _samples(run)
    yield "network", _network(run)
    yield "learning", _learning(run.config)
    yield from describe(run.engine)
    yield "allocator", allocator
    yield "memory", memory


def _tiles(run: Run) -> str:
    """Return how many tiles there are, how large, how they are cut, and what was left out."""
    tiles, facts = run.loader.tiles, run.facts
    judges = "none to validate on (best.pt is that of the last epoch)"
    if run.validation is not None:
        judges = f"{len(run.validation.tiles)} to validate on"
    parts = [f"{counted(len(tiles), 'tile')} to learn from, {judges}"]
    if facts.folds is not None:
        parts.append(f"fold {facts.fold} of {facts.folds} validates (counted from 0)")
    parts += [
        f"{facts.level} x {facts.level} pixels of {_metres(facts.gsd_m)}",
        f"bands {', '.join(facts.bands)}",
    ]
    if tiles.left_out:
        parts.append(f"left out: {', '.join(f'{n} {why}' for why, n in tiles.left_out.items())}")
    return "; ".join(parts)


def _metres(gsd: tuple[float, float]) -> str:
    x, y = (f"{metres:.2g}" for metres in gsd)
    return f"{x} m" if x == y else f"{x} x {y} m"


def _samples(run: Run) -> str:
    loader, every, ranks = run.loader, run.config.accumulate, this_rank()[1]
    per_tile, size = loader.sampling.crops_per_tile, loader.schedule.batch_size
    samples = f"{loader.samples} per epoch, {per_tile} per tile"
    if loader.drawn_tiles < len(loader.tiles):
        samples += f" of {loader.drawn_tiles} tiles that have enough road"
    if per_tile < run.config.crops_per_tile:
        samples += " (no window is smaller than a tile)"
    step = f"{size} per batch"
    step += f" x {ranks} ranks" if ranks > 1 else ""
    step += f" x {every} batches per step" if every > 1 else ""
    together = f" = {size * ranks * every} per step" if ranks * every > 1 else ""
    return f"{samples}, {step}{together}, {counted(-(-len(loader) // every), 'step')} per epoch"


def _network(run: Run) -> str:
    parameters = sum(p.numel() for p in run.trainable.network.parameters())
    facts = run.facts
    binary = run.config.targets == "auto" and facts.targets == "binary"
    why = ": the roads of a store have no speeds" if binary else ""
    made = f"; {run.initial}" if run.initial else ""
    return (
        f"{facts.network}, {parameters / 1e6:.1f} M parameters, {len(facts.bands)} bands -> "
        f"{facts.channels} channels ({facts.targets}{why}){made}"
    )


def _learning(config: Config) -> str:
    averaged = f", averaged weights (decay {config.ema:g})" if config.ema else ""
    return (
        f"{config.loss}; {config.optimizer}, {config.schedule} up to {config.lr:g}, "
        f"{counted(config.ends[-1], 'epoch')}{averaged}; seed {config.seed}"
    )
