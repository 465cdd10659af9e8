"""What is said before the first step: data, plan, network, machine, memory."""

from __future__ import annotations

from collections.abc import Iterator

from loaders import this_rank
from training.checkpoint import Checkpoint
from training.engine.host import describe
from training.engine.memory import MemoryPlan
from training.run import Run
from training.saving import changes


def header(run: Run, allocator: str, memory: MemoryPlan) -> Iterator[tuple[str, str]]:
    """Yield what a person should know of a run, as name and value.

    Parameters
    ----------
    run
        It, at its first stage.
    allocator
        What `training.engine.host.keep_memory` said.
    memory
        What the run needs.
    """
    progress, plan = run.progress, run.plan
    begun = f"epoch {progress.epoch + 1}, step {progress.step}"
    yield "run", f"{run.folder}, {'from the beginning' if not progress.step else 'from ' + begun}"
    yield "data", ", ".join(store.location for store in run.stores)
    yield "", _tiles(run)
    yield "stages", "; ".join(str(stage) for stage in plan.stages)
    yield "samples", _samples(run)
    yield "network", _network(run)
    yield "learning", _learning(run)
    yield from describe(run.engine)
    yield "allocator", allocator
    yield "memory", f"{memory} (GiB)"


def _tiles(run: Run) -> str:
    """Return how many tiles there are, how large, and what was left out."""
    data, facts = run.data, run.facts
    judged = 0 if data.validation_tiles is None else len(data.validation_tiles)
    parts = [
        f"{len(data.tiles)} tiles to learn from, {judged or 'none'} to be judged on",
        f"{facts.level} x {facts.level} pixels of {_metres(facts.gsd_m)}",
        f"bands {', '.join(facts.bands)}",
    ]
    if data.tiles.left_out:
        without = ", ".join(f"{n} {why}" for why, n in data.tiles.left_out.items())
        parts.append(f"left out: {without}")
    return "; ".join(parts)


def _metres(gsd: tuple[float, float]) -> str:
    x, y = (f"{metres:.2g}" for metres in gsd)
    return f"{x} m" if x == y else f"{x} x {y} m"


def _samples(run: Run) -> str:
    config, ranks = run.config, this_rank()[1]
    size = config.sampling.batch_size
    parts = [f"{size} a batch"]
    if ranks > 1:
        parts.append(f"{ranks} ranks")
    if config.optim.accumulate > 1:
        parts.append(f"{config.optim.accumulate} batches a step")
    steps = -(-len(run.data.loader) // config.optim.accumulate)
    together = (
        ""
        if len(parts) == 1 or not isinstance(size, int)
        else (f" = {size * ranks * config.optim.accumulate} a step")
    )
    return f"{' x '.join(parts)}{together}, {steps} steps an epoch"


def _network(run: Run) -> str:
    parameters = sum(p.numel() for p in run.trainable.network.parameters())
    facts = run.facts
    made = "".join(f"; {note}" for note in run.notes)
    return (
        f"{facts.network}, {parameters / 1e6:.1f} M parameters, {len(facts.bands)} bands -> "
        f"{facts.channels} channels ({facts.targets}){made}"
    )


def _learning(run: Run) -> str:
    optim = run.config.optim
    averaged = f", averaged weights (decay {optim.ema:g})" if optim.ema else ""
    return (
        f"{run.config.network.loss}; {optim.optimizer}, {optim.schedule} up to {optim.lr:g}, "
        f"{run.plan.epochs} epochs{averaged}; seed {optim.seed}"
    )


def warn_of_changes(run: Run, saved: Checkpoint | None) -> list[str]:
    """Return what differs from where a run was before, and what that means."""
    if saved is None:
        return []
    found = changes(saved.environment, run.environment())
    return [f"{line}: bits will differ from those of a run never stopped" for line in found]
