"""Rate of training steps, measured: by batch size, by memory layout and by compile mode.

A step here is that of training: `training.loop.optimizer_step` in training mode, with autocast,
state of the optimizer and averaged weights, on random pixels.
"""

from __future__ import annotations

import copy
import gc
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar, get_args

import torch

from geoprep.errors import UsageError
from geoprep.store import StoreReader
from loaders import Batch, DeviceTiles, select, this_rank
from training.data import crops_of, folds_of, model_info
from training.engine import CompileMode, Engine, max_over_ranks
from training.loop import optimizer_step, update_average
from training.model import Trainable, make_trainable, prepare
from training.run.capacity import available, estimate, largest_sides, tile_bytes
from training.run.state import Run, copy_weights
from training.settings import Config

T = TypeVar("T")

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""Batch sizes to choose from; at least 2, since BatchNorm averages over samples."""

STEPS_PER_EPOCH = 16
"""Minimum steps per epoch: larger batches are a few per cent faster, but learn less per epoch."""

_TIE = 0.02
"""Rates that differ by less are equal; of equal rates the larger batch has better statistics."""

_GIVE_UP = 0.9
"""A rate below this share of the best ends the search: larger sizes are slower still."""

_HEADROOM = 0.05
"""Share of a device's free memory that stays free while sizes are tried: validation and the other
stages of a run need other blocks and workspaces than the measured steps."""

_MESSAGES = re.compile(
    r"out[ _]of[ _](\w+_)?memory|alloc_failed|can't allocate memory", re.IGNORECASE
)
"""Messages of backends that raise no `torch.OutOfMemoryError`."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device or the host has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


def attempt(make: Callable[[], T], device: torch.device) -> T | None:
    """Return the result of a function; None if it runs out of memory, which is then released.

    Parameters
    ----------
    make
        Function to call.
    device
        Device whose cached memory is released.
    """
    try:
        return make()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the clause above: the error holds the tensors of all frames that it passed.
    release(device)
    return None


def release(device: torch.device) -> None:
    """Return unused memory of a device from torch's cache to the driver; nothing on a CPU."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


@contextmanager
def occupied(device: torch.device, nbytes: int) -> Iterator[None]:
    """Hold memory of an accelerator inside the context if it has that much; nothing on a CPU."""
    empty = partial(torch.empty, nbytes, dtype=torch.uint8, device=device)
    held = None if device.type == "cpu" else attempt(empty, device)
    try:
        yield
    finally:
        del held


def choose_batch_size(
    config: Config, engine: Engine, stores: Sequence[StoreReader]
) -> tuple[Config, list[str]]:
    """Return settings with a number as batch size, and remarks on how ``auto`` chose it.

    On an accelerator the sizes are tried while the memory of the tiles is occupied. On a CPU, where
    the kernel kills instead of refusing memory, the estimate is a bound.

    Parameters
    ----------
    config, engine, stores
        Settings, engine and stores of the run. All ranks use the size that rank 0 measured, of
        those that fit on every rank.

    Raises
    ------
    UsageError
        Not even the smallest size fits.
    """
    if config.batch_size != "auto":
        return config, []
    device = engine.device
    trainable = make_trainable(config, model_info(config, stores), engine, stores)
    side, finest = largest_sides(config, stores)
    tiles = sum(len(select(store, "train", folds_of(config)).tiles) for store in stores)
    samples = tiles * min(crops_of(config, s, s.level or finest)[1] for s in config.plan)
    fits = learns = samples // (STEPS_PER_EPOCH * this_rank()[1] * config.accumulate)
    training, validation = tile_bytes(config, stores, finest, device)
    room = DeviceTiles.room(device)
    if room is None:  # a CPU
        spare, resident = 0, training + validation
        fits = replace(estimate(trainable, config, engine, side), tiles=resident).largest_batch
    else:
        spare = int(_HEADROOM * available(device)[0])
        # Validation tiles without room beside the others are streamed.
        resident = training + (validation if training + validation <= room else 0)
    with occupied(device, spare + resident):
        most = max(SIZES[0], min(fits, learns))
        rates = _rates_of_steps(trainable, engine, config, side, most)
    release(device)
    failed = min((size for size, rate in rates.items() if not rate), default=math.inf)
    failed = -max_over_ranks([-failed], device)[0]
    rates = {size: rate for size, rate in rates.items() if size < failed}
    (chosen,) = max_over_ranks([0 if this_rank()[0] or not rates else fastest(rates)], device)
    if not chosen:
        raise UsageError(
            f"`batch_size` auto: a batch of {SIZES[0]} x {side} x {side} does not fit into the "
            f"memory of {device}: use a smaller `crop` or a coarser `level`"
            + (", or `residency` ram" if config.residency == "device" else "")
        )
    tried = ", ".join(f"{size}: {rate:.1f}" for size, rate in rates.items())
    bound = (
        f"more than {learns} would give fewer than {STEPS_PER_EPOCH} steps per epoch of {samples} "
        "samples"
    )
    if failed < math.inf:
        bound = f"{failed:.0f} does not fit into memory"
    elif fits < learns:
        bound = f"more than {fits} may not fit into memory"
    note = (
        f"batch size {chosen:.0f} is the fastest on this machine (images/s by size: {tried}); "
        f"{bound}"
    )
    return replace(config, batch_size=int(chosen)), [note]


def _rates_of_steps(
    trainable: Trainable, engine: Engine, config: Config, side: int, most: int
) -> dict[int, float]:
    """Return `measure_rates` of steps that may run out of memory."""
    device = engine.device
    timer = attempt(partial(step_timer, trainable, engine, config, side), device)
    if timer is None:  # not even the weights fit
        return {SIZES[0]: 0.0}
    return measure_rates(lambda size: attempt(partial(timer, size), device), most)


def measure_rates(seconds: Callable[[int], float | None], most: int) -> dict[int, float]:
    """Return the images per second by batch size, up to the size where the rate falls.

    Parameters
    ----------
    seconds
        Function of the batch size that returns the seconds of a step, None if it does not fit.
    most
        Largest size to try.

    Returns
    -------
    dict
        Batch size to images per second; the last is 0 if that size does not fit.
    """
    rates: dict[int, float] = {}
    for size in SIZES:
        if size > most or (rates and rates[max(rates)] < _GIVE_UP * max(rates.values())):
            break
        took = seconds(size)
        rates[size] = size / took if took else 0.0
        if not took:
            break
    return rates


def fastest(rates: dict[int, float]) -> int:
    """Return the size with the highest rate; of about equal rates the largest size."""
    return max(size for size, rate in rates.items() if rate >= (1 - _TIE) * max(rates.values()))


def step_timer(
    trainable: Trainable,
    engine: Engine,
    config: Config,
    side: int,
    repeats: int = 3,
    *,
    compile_mode: CompileMode = "off",
    layout: torch.memory_format = torch.channels_last,
) -> Callable[[int], float]:
    """Return a function that measures the seconds of a training step by batch size.

    The steps train a copy. On a CPU the fastest of ``repeats`` steps after a warm-up step counts;
    on an accelerator their mean, since only their end is waited for.

    Parameters
    ----------
    trainable
        Module that is copied, on any device, not compiled.
    engine, config
        Device and precision; optimizer and averaged weights.
    side
        Side of the images in pixels.
    repeats
        Number of measured steps.
    compile_mode, layout
        Parts of the step to compile, and memory layout of images and weights. For the choice of a
        batch size nothing is compiled, which costs all sizes the same.
    """
    used = replace(engine, compile_mode=compile_mode)
    module = copy.deepcopy(trainable).train()
    optimizer = prepare(module, used, replace(config, lr=0.0))
    module.to(memory_format=layout)  # type: ignore[call-overload]  # torch's own stubs lack this form
    averaged = copy_weights(module.model) if config.ema else None
    scaler = used.grad_scaler()
    bands = trainable.prep.normalize.centre.numel()
    on_cpu = engine.device.type == "cpu"

    def step(batch: Batch) -> None:
        optimizer_step(module, optimizer, used, [batch], clip=config.clip, scaler=scaler)
        if averaged is not None:
            update_average(averaged, module.model, config.ema, 1)

    def now() -> float:
        if not on_cpu:
            torch.accelerator.synchronize(engine.device)
        return time.perf_counter()

    def seconds(batch_size: int) -> float:
        batch = _noise(batch_size, side, bands, layout)
        batch = batch if on_cpu else batch.to(engine.device)
        try:
            step(batch)  # warm-up
            if on_cpu:
                times = [now()]
                for _ in range(repeats):
                    step(batch)
                    times.append(now())
                return min(after - before for before, after in pairwise(times))
            begun = now()
            for _ in range(repeats):
                step(batch)
            return (now() - begun) / repeats
        finally:
            optimizer.zero_grad()  # also after a failure

    return seconds


def _noise(count: int, side: int, bands: int, layout: torch.memory_format) -> Batch:
    """Return a batch of random pixels and labels."""
    random = torch.Generator().manual_seed(count)
    shape = (count, side, side)
    image = torch.randint(1, 256, (*shape, bands), dtype=torch.uint8, generator=random)
    image = image.permute(0, 3, 1, 2).contiguous(memory_format=layout)
    speed = torch.randint(0, 255, shape, dtype=torch.uint8, generator=random)
    number = torch.arange(count)
    return Batch(image, speed, number, torch.zeros(count, 3).int(), number)


def compare_settings(run: Run, repeats: int = 10) -> Iterator[tuple[str, float | None]]:
    """Yield memory layouts and compile modes with the images per second of a step with them.

    Parameters
    ----------
    run
        Run with its tiles loaded, which stays as it is.
    repeats
        Number of measured steps of each.

    Yields
    ------
    tuple
        Name of the setting; images per second, None if the step does not fit into memory.
    """
    engine, config, size = run.engine, run.config, run.loader.schedule.batch_size
    side, _ = largest_sides(config, run.stores, run.stage)
    plain = make_trainable(config, run.info, engine, run.stores)
    plain.load_state_dict(run.trainable.state_dict())
    measured: list[tuple[str, CompileMode, torch.memory_format]] = [
        ("contiguous, not compiled", "off", torch.contiguous_format),
        ("channels last, not compiled", "off", torch.channels_last),
    ]
    modes = [] if engine.compile_mode == "off" else [m for m in get_args(CompileMode) if m != "off"]
    measured += [(f"channels last, `compile` {mode}", mode, torch.channels_last) for mode in modes]
    cudnn = torch.backends.cudnn
    for name, mode, layout in measured:
        yield name, _rate(plain, run, side, size, repeats, compile_mode=mode, layout=layout)
    if engine.device.type == "cuda":
        before = cudnn.benchmark
        name = f"channels last, not compiled, cudnn.benchmark {'off' if before else 'on'}"
        try:
            cudnn.benchmark = not before
            yield name, _rate(plain, run, side, size, repeats)
        finally:
            cudnn.benchmark = before


def _rate(
    trainable: Trainable,
    run: Run,
    side: int,
    size: int,
    repeats: int,
    compile_mode: CompileMode = "off",
    layout: torch.memory_format = torch.channels_last,
) -> float | None:
    """Return the images per second of a setting; None if its step does not fit into memory."""

    def measure() -> float:
        of = (trainable, run.engine, run.config, side, repeats)
        return size / step_timer(*of, compile_mode=compile_mode, layout=layout)(size)

    return attempt(measure, run.engine.device)
