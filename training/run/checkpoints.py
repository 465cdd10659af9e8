"""The checkpoints of a run: restored, and written as last.pt and best.pt."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from loaders import BatchLoader, is_distributed, this_rank
from training.checkpoint import BEST, LAST, Checkpoint, RunProgress, save
from training.engine.distributed import (
    average_in_place,
    gather_on_rank_zero,
    is_rank_zero,
    sum_over_ranks,
)
from training.engine.native import Engine, random_state, seed_all, set_random_state
from training.model.build import ModelInfo
from training.run.step import StepState
from training.settings import Config


class Checkpoints:
    """Restores the state of a run and its random numbers, and saves them in its folder."""

    def __init__(
        self, folder: Path, config: Config, engine: Engine, state: StepState, progress: RunProgress
    ) -> None:
        self._folder, self._config, self._engine = folder, config, engine
        self._state, self._progress = state, progress
        self._saved_step = progress.step if (folder / LAST).exists() else None

    def restore(self, saved: Checkpoint | None) -> None:
        """Restore the state and the random numbers of a checkpoint; without one, seed them."""
        rank, ranks = this_rank()
        if rank:  # every rank draws its own dropout
            seed_all(hash((self._config.seed, rank, self._progress.step)))
            self._progress.reset_sums()
        if saved is None:
            return
        self._state.restore(saved, str(self._folder))
        states = [saved.rng, *saved.rng.get("other_ranks", [])] if saved.rng else []
        if rank < len(states):  # more ranks than before keep their seeds
            set_random_state(states[rank], self._engine.device)
        if len(states) == ranks:  # other numbers of ranks take the means
            own = states[rank].get("statistics", ())
            for now, before in zip(self._state.statistics_of_rank(), own, strict=False):
                now.copy_(before)

    def save(self, info: ModelInfo, loader: BatchLoader, position: int) -> None:
        """Write last.pt from the first rank, with the sums and random states of all ranks.

        The file has the means of the running statistics of all ranks, and those of each rank.
        """
        progress, state, device = self._progress, self._state, self._engine.device
        totals = sum_over_ranks([*progress.sums, progress.labelled], device)
        rng = random_state(device)
        statistics = state.statistics_of_rank() if is_distributed() else []
        own = [value.cpu().clone() for value in statistics]
        rng |= {"statistics": own} if own else {}
        first, *others = gather_on_rank_zero(rng) or [rng]
        average_in_place(statistics)
        try:
            if is_rank_zero():
                progress.sums, progress.labelled = totals[:-1], totals[-1]
                place = {"epoch": progress.epoch, "position": position}
                checkpoint = self._checkpoint(
                    info,
                    optimizer=state.optimizer_state(),
                    loader=loader.state_dict() | place,
                    rng=first | ({"other_ranks": others} if others else {}),
                    scaler={} if state.scaler is None else state.scaler.state_dict(),
                )
                save(self._folder / LAST, checkpoint)
            else:
                progress.reset_sums()
        finally:
            for value, before in zip(statistics, own, strict=True):
                value.copy_(before)
        self._saved_step = progress.step

    def save_best(self, info: ModelInfo) -> None:
        """Write best.pt, the weights without the optimizer, from the first rank."""
        if is_rank_zero():
            save(self._folder / BEST, self._checkpoint(info))

    def where(self, ago: int) -> str:
        """Return step, epoch and seed of a failed step, and how to resume from before it."""
        step, epoch = self._progress.step + 1 - ago, self._progress.epoch + 1
        kept = f"the last checkpoint is of step {self._saved_step}: `resume` {self._folder}"
        again = kept if self._saved_step is not None else "no checkpoint was written: start again"
        return f"(step {step}, epoch {epoch}, seed {self._config.seed}); {again}"

    def _checkpoint(self, info: ModelInfo, **training: Any) -> Checkpoint:  # noqa: ANN401 - fields of many types
        """Return the weights of the run; and what only training needs, as given."""
        return Checkpoint(
            info=info,
            model=self._state.model.state_dict(),
            ema=self._state.averaged,
            progress=asdict(self._progress),
            config=self._config.flat(),
            environment=self._engine.environment(),
            **training,
        )
