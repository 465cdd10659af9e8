"""Predict in several processes, each on its own cores or with its own accelerator.

One model on many cores waits for its slowest thread after every layer. Each process takes the next
image that no other has taken.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from typing import TypeAlias

from geoprep.cpus import physical_cores, processors
from geoprep.errors import GeoprepError, UsageError
from training.prediction.job import predict_images
from training.prediction.predict_options import PredictOptions
from training.prediction.predictor import ImageOutcome
from training.prediction.screen import Screen, summary
from training.runners.model_files import SUFFIXES, chosen_device
from training.runners.model_options import parse_devices

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 10.0

Messages: TypeAlias = "Queue[ImageOutcome | str | GeoprepError]"
"""The outcome of an image, a line to show, or an error that ends all processes."""


def share_cores(cores: Sequence[int], count: int) -> list[list[int]]:
    """Return ``count`` shares of neighbouring processors, as equal as possible."""
    if count > len(cores):
        raise UsageError(
            "instances",
            f"or devices: {count}, but this process may use {len(cores)} cores: use at "
            "most as many",
        )
    edges = [len(cores) * i // count for i in range(count + 1)]
    return [list(cores[a:b]) for a, b in pairwise(edges)]


def run_instances(options: PredictOptions, spell: Callable[[str], str] = str) -> bool:
    """Predict in several processes; return whether all images were predicted."""
    devices, count = parse_devices(options.device), options.instances
    if count > 1 and devices[0] not in ("auto", "cpu"):
        raise UsageError("instances", f"{count} divide cores: use `device` cpu")
    if len(devices) > 1:
        if options.checkpoint.suffix not in SUFFIXES:  # others need no torch for the device
            for device in devices:
                chosen_device(device)
        count = len(devices)
    else:
        devices *= count
    threads = [thread for core in physical_cores(processors()) for thread in core]
    shares = share_cores(threads, count)
    context = multiprocessing.get_context("spawn")
    messages: Messages = context.Queue()
    taken, begun = context.Value("q"), time.time()
    processes = []
    for i, (device, share) in enumerate(zip(devices, shares, strict=True)):
        own = replace(options, device=device)
        part = partial(predict_images, own, take=partial(_next, taken, first=i == 0), first=i == 0)
        processes.append(context.Process(target=_run, args=(part, share, messages)))
    try:
        # Ctrl-C in a terminal reaches the children as well; they ignore it, and the parent ends
        # them.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in processes:
                process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        return _watch(processes, messages, taken, begun, Screen(quiet=options.quiet, spell=spell))
    finally:
        _end(processes)


def _next(taken: Synchronized[int], *, first: bool) -> int:
    """Return how many images were taken, and count one more.

    All but the first process wait until it has checked the outputs and takes an image.
    """
    while not (first or taken.value):
        time.sleep(0.01)
    with taken.get_lock():
        taken.value += 1
        return taken.value - 1


def _run(work: Callable[[Screen], object], cores: Sequence[int], messages: Messages) -> None:
    """Work as a child process: stay on its cores, and end with the parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.sched_setaffinity(0, cores)
    import torch

    torch.set_num_threads(len(physical_cores(cores)))
    try:
        work(Screen(quiet=True, send=messages.put))
    except GeoprepError as error:
        messages.put(error)


def _watch(
    processes: Sequence[SpawnProcess],
    messages: Messages,
    taken: Synchronized[int],
    begun: float,
    screen: Screen,
) -> bool:
    """Show the progress of the processes until all have ended; return whether none failed."""
    outcomes: list[ImageOutcome] = []
    with screen:
        while True:
            alive = any(process.is_alive() for process in processes)
            alive &= processes[0].is_alive() or taken.value > 0  # else others wait for ever
            try:
                message = messages.get(timeout=0.2)
            except queue.Empty:
                if not alive:
                    break
                continue
            if isinstance(message, GeoprepError):
                raise message
            screen.say(message)
            outcomes += [message] if isinstance(message, ImageOutcome) else []
        screen.say(f"{len(processes)} processes together, start included:")
        for line in summary(outcomes, time.time() - begun, len(processes)):
            screen.say(line)
        ended = [(i, p.exitcode) for i, p in enumerate(processes, 1) if p.exitcode]
        for number, code in ended:
            screen.say(
                f"process {number} ended with status {code}: run the same command again to resume"
            )
    return not ended and not any(outcome.error for outcome in outcomes)


def _end(processes: Sequence[SpawnProcess]) -> None:
    """End the processes that still run; the next run resumes their work."""
    running = [process for process in processes if process.pid is not None]
    for process in running:
        process.terminate()
    for process in running:
        process.join(_PATIENCE_S)
        process.kill()
        process.join()
