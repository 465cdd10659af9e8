"""Steps recorded as CUDA graphs: the host starts one graph in place of a thousand kernels.

That takes 25 ms, more than an H100 needs to run them for 32 x 256 x 256. A graph uses the memory of
its recording: batches are copied into fixed buffers, the host fills tensors with learning rates.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice

import torch
from torch import Tensor, nn

from loaders import Batch
from training.engine import random_state
from training.run.step import StepResult, StepState, train_step

WARM_UP = 3  # steps of the run before one of their shape is recorded: kernels are compiled in them
Take = Callable[[], StepResult]


@dataclass
class _Shape:
    """Fixed batches of one shape, the steps taken with them, and how they are replayed."""

    buffers: list[Batch]
    steps: int = 0
    recorded: tuple[Callable[[], None], Tensor] | None = None


class CapturedStep:
    """Takes steps as `train_step`, from recordings; ``say`` gets a line if there can be none."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._possible = say, True
        self._shapes: dict[tuple[torch.Size, ...], _Shape] = {}

    def __call__(
        self, module: nn.Module, batches: Iterable[Batch], state: StepState, count: int = 1
    ) -> StepResult:
        """Take an optimizer step, see `train_step`."""
        state.fill_share()
        if not self._possible:
            return train_step(module, batches, state, count)
        asked = time.perf_counter()
        given = [*islice(batches, count)]
        waited = time.perf_counter() - asked
        key = tuple(batch.image.shape for batch in given)
        shape = self._shapes.get(key) or _Shape([b.to(state.engine.device) for b in given])
        self._shapes[key] = shape
        while given:  # the loader fills their memory again
            shape.buffers[len(given) - 1].copy_from(given.pop())
        take = partial(train_step, module, shape.buffers, state, count)
        shape.steps += 1
        if shape.steps <= WARM_UP:
            result = beside(take) if shape.steps < WARM_UP else self._watched(take)
            return result._replace(waited=waited)
        try:
            shape.recorded = shape.recorded or record(take, state)
        except RuntimeError as error:
            self._give_up(f"{error}\n".splitlines()[0])
        if shape.recorded is None:  # not above, where the error keeps memory
            return take()._replace(waited=waited)
        replay, values = shape.recorded
        replay()
        state.step += 1
        return StepResult.of(values.clone(), [*map(len, shape.buffers)], waited)

    def _watched(self, take: Take) -> StepResult:
        """Take the last step before a recording; give up if it does what a graph cannot repeat."""
        before = random_state(torch.device("cpu"))
        with warnings.catch_warnings(record=True, action="always") as told:
            torch.cuda.set_sync_debug_mode("warn")
            result = beside(take)
            torch.cuda.set_sync_debug_mode("default")
        after = random_state(torch.device("cpu"))
        if any("synchronizing CUDA operation" in str(warning.message) for warning in told):
            self._give_up("the host reads values of the device")
        elif not torch.equal(before.pop("torch"), after.pop("torch")) or before != after:
            self._give_up("the host draws random numbers")
        return result

    def _give_up(self, why: str) -> None:
        self._possible, self._shapes = False, {}
        self._say(f"steps are not recorded as CUDA graphs: {why}")


_side: Callable[[], torch.cuda.Stream] = cache(torch.cuda.Stream)


def beside(take: Take) -> StepResult:
    """Take a step on a stream of its own, as CUDA asks for before a recording."""
    _side().wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_side()):
        result = take()
    torch.cuda.current_stream().wait_stream(_side())
    return result


def record(take: Take, state: StepState) -> tuple[Callable[[], None], Tensor]:
    """Return what replays a step, which is recorded and not taken, and its `StepResult.flat`."""
    graph, stream, done = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), state.step
    groups = [group for group in state.optimizer.param_groups if "capturable" in group]
    try:
        for group in groups:
            group["capturable"] = True  # only here: torch warns of it in other steps
        with torch.cuda.graph(graph):
            values = take().flat()
    finally:
        torch.cuda.set_stream(stream)  # one that fails leaves its own
        state.optimizer.zero_grad()
        state.step = done
        for group in groups:
            group["capturable"] = False
    return graph.replay, values
