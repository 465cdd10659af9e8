"""Steps recorded as CUDA graphs: the host starts one graph in place of a thousand kernels.

That takes 25 ms, more than an H100 needs to run them for 32 x 256 x 256. A graph uses the memory of
its recording: batches are copied into fixed buffers, the host fills tensors with learning rates.
A recording proves itself: its first replay is compared with the same step taken as it is.
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
from training.engine.native import random_state, set_random_state
from training.run.step import StepResult, StepState, train_step

LOSS, NORM, UPDATE = 0.02, 0.1, 0.3
"""Largest relative differences, between a step and its recording, of losses, of the gradient's norm
and of the update of the weights. Those of bf16 and of sums in another order are a tenth of them."""

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
        if shape.steps == WARM_UP + 1:
            result, wrong = compared(shape.recorded, take, state)
            if wrong:
                self._give_up(
                    f"a recorded step differs from the same one taken as it is in {wrong}"
                )
            return result._replace(waited=waited)
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


def compared(
    recorded: tuple[Callable[[], None], Tensor], take: Take, state: StepState
) -> tuple[StepResult, str]:
    """Take a step as it is; return its result, and in what a recording of it differs, if it does.

    The recording is replayed first. What it changes is restored: weights, statistics, averages,
    and states of the optimizer, of the scaler and of random numbers.
    """
    replay, values = recorded
    device, scaler, step = state.engine.device, state.scaler, state.step
    states = [value for of in state.optimizer.state.values() for value in of.values()]
    held = [*state.model.state_dict().values(), *(state.averaged or {}).values()]
    held += [value for value in states if isinstance(value, Tensor)]
    weights = [weight.detach() for weight in state.model.parameters()]
    before, start = [value.clone() for value in held], [weight.clone() for weight in weights]
    scale, numbers = scaler and scaler.state_dict(), random_state(device)

    def moved() -> Tensor:
        return torch.cat([(x - y).flatten() for x, y in zip(weights, start, strict=True)])

    replay()
    found, update = values.clone(), moved()
    torch._foreach_copy_(held, before)
    set_random_state(numbers, device)
    state.step = step
    if scaler is not None and scale:
        scaler.load_state_dict(scale)
    result = take()
    own, last = result.flat(), 4 * len(result.losses)
    by = {
        "loss": (_deviation(found[:last], own[:last]), LOSS),
        "the norm of the gradient": (_deviation(found[last], own[last]), NORM),
        "weights": (float((update - moved()).norm() / moved().norm().clamp(min=1e-12)), UPDATE),
    }
    return result, ", ".join(name for name, (wrong, most) in by.items() if not wrong <= most)


def _deviation(found: Tensor, right: Tensor) -> float:
    """Return the largest relative difference of values; equal ones need not be finite."""
    relative = (found - right).abs() / right.abs().clamp(min=1e-3)
    alike = found.isfinite().logical_or(right.isfinite()).logical_not()
    return float(relative.masked_fill(alike, 0).max())


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
